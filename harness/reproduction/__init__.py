"""The papers' tables, ours beside theirs."""

from harness.reproduction.comparison import Comparison, Request
from harness.reproduction.table1 import table1
from harness.reproduction.table3 import table3

TABLES = {"table1": table1, "table3": table3}

__all__ = ["TABLES", "Comparison", "Request", "table1", "table3"]
