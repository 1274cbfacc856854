"""A table over several workers of one folder: each makes the cells and trainings of the rows that are dealt to it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.spreading.shard import Shard

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
