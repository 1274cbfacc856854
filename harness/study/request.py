"""How to run a table or a sweep, and what of it one of several workers of a folder makes: the rows dealt to it."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from harness.base.progress import counted
from harness.evaluation import Run
from harness.parallel.shard import WHOLE, Shard

T = TypeVar("T")


class ShardDone(Exception):
    """What was dealt to this shard is made; the table itself needs what all of them made."""


@dataclass(frozen=True)
class _Place(Generic[T]):
    name: str
    thing: T


def dealt(things: Iterable[T], what: str, shard: Shard) -> Sequence[T]:
    """Those of a shard, in their order.

    They are dealt by a hash of their place: in turn, every third of three datasets would be one shard's.

    Args:
        what: they are, so that the first ones of two kinds are not all one shard's.
    """
    places = [
        _Place(hashlib.sha256(f"{what} {place}".encode()).hexdigest(), thing) for place, thing in enumerate(things)
    ]
    return [place.thing for place in shard.of(places)]


@dataclass(frozen=True)
class Request:
    """How to run a table: ``victims`` per cell where given, else the table's own number (fewer for ``quick``).

    ``shard``: make what is dealt to it, and no table; None makes everything.
    """

    run: Run
    data_root: Path
    device: str = "cpu"
    quick: bool = False
    victims: int | None = None
    seeds: tuple[int, ...] = (0,)
    shard: Shard | None = None

    def count(self, full: int, quick: int) -> int:
        """Victims per cell."""
        return self.victims or (quick if self.quick else full)

    def dealt(self, things: Iterable[T], what: str) -> Iterator[T]:
        """One thing after another, a shard's own alone, as :func:`harness.base.progress.counted` shows them.

        Things do not need each other; after all of them comes :meth:`require_whole`.
        """
        yield from counted(dealt(things, what, self.shard or WHOLE), what)

    def require_whole(self) -> None:
        """Raises ShardDone: this is a shard, and what comes now needs everything that was dealt."""
        if self.shard:
            raise ShardDone
