"""The ``harness`` command."""

from harness.cli import (  # noqa: F401  (imported to register)
    account,
    audit,
    bench,
    check,
    compare,
    data,
    evaluate,
    history,
    listing,
    report,
    reproduce,
    train,
)
from harness.cli.app import main, run

__all__ = ["main", "run"]
