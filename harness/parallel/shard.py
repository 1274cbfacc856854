"""A part of a run, dealt by the names of its units: the same cells in every process that is given the same options."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from harness.base.errors import UsageError

_MOST = 10_000


class Named(Protocol):
    """A thing that processes tell apart by its name."""

    @property
    def name(self) -> str:
        """The same in every process that is given the same options."""
        ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 1) of ``count``."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """``3/8`` is the third of eight.

        Raises:
            UsageError: it is not written so, or there is no such part.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not found:
            raise UsageError(f"--shard {text!r} is not a part of a whole; write 3/8 for the third of eight")
        index, count = int(found[1]), int(found[2])
        if not 1 <= count <= _MOST:
            raise UsageError(f"--shard {text!r} is of a whole of {count}; take one of 1 to {_MOST}")
        if not 1 <= index <= count:
            raise UsageError(f"there is no shard {index}/{count}; shards of {count} are 1/{count} to {count}/{count}")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, units: Sequence[N]) -> list[N]:
        """Its units, in the order asked for; all shards together have each unit once, and differ by one at most."""
        names = sorted(unit.name for unit in units)
        own = set(names[self.index - 1 :: self.count])
        return [unit for unit in units if unit.name in own]


WHOLE = Shard(1, 1)
