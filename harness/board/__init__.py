"""A public board: rows that anybody can make again, as cards; and the making again."""

from harness.board.comparing import Comparison, compare, rebuild
from harness.board.making import Collected, collect
from harness.board.reading import read_card

__all__ = ["Collected", "Comparison", "collect", "compare", "read_card", "rebuild"]
