"""The papers' tables, ours beside theirs."""

from harness.reproduction.comparison import Comparison, Request
from harness.reproduction.table1 import table1
from harness.reproduction.table3 import table3
from harness.reproduction.table6 import table6
from harness.reproduction.table7 import table7
from harness.reproduction.table8 import table8
from harness.reproduction.table11 import table11

TABLES = {
    "table1": table1, "table3": table3, "table6": table6, "table7": table7, "table8": table8, "table11": table11,
}  # fmt: skip

__all__ = ["TABLES", "Comparison", "Request", "table1", "table3", "table6", "table7", "table8", "table11"]
