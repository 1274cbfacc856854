"""Capture of what one client sent in one round, in a folder for ``harness judge``; made where the federation runs.

Importing this takes no attack, defense or dataset along.
"""

from harness.capture.loop import captured
from harness.judging.capture import CaptureRecord, write_capture
from harness.judging.framework_defenses import Declared

__all__ = ["CaptureRecord", "Declared", "captured", "write_capture"]
