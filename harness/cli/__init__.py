"""The ``harness`` command."""

from harness.cli import account, audit, bench, data, evaluate, listing, reproduce, train  # noqa: F401  (imported to register)
from harness.cli.app import main, run

__all__ = ["main", "run"]
