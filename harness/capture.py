"""What one client sent in one round, kept in a folder for ``harness judge``; made where the federation runs.

Importing this takes no attack, defense or dataset along.
"""

from harness.judging.capture_loop import captured
from harness.judging.capture_record import CaptureRecord, Declared
from harness.judging.capture_writing import write_capture

__all__ = ["CaptureRecord", "Declared", "captured", "write_capture"]
