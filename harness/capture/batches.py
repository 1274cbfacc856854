"""The batches of a client's training: what its loaders gave, held against what went through its network.

What went through the network is what steps were made of. A loader tells more, such as passes, where its batches are
these.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

# Samplers whose passes take every example once.
_IN_PASSES = (RandomSampler, SequentialSampler, SubsetRandomSampler, DistributedSampler)
Steps = Sequence[tuple[int, ...]]
"""Of each step the sizes of its batches; () where they were not seen."""


@dataclass
class Loader:
    """A loader like torch's, and the places in their passes, from 1, of the batches that it gave.

    Attributes:
        examples: None where its passes do not take each once.
        places: None of a loader that is given and was not seen at work.
        used: how many batches it had given when the last step was taken.
    """

    batch_size: int | None
    drop_last: bool
    examples: int | None
    order: str
    places: list[int] | None = field(default_factory=list)
    used: int = 0

    @property
    def each(self) -> int:
        """Batches in a pass."""
        if not self.batch_size or self.examples is None:
            return 0
        return self.examples // self.batch_size if self.drop_last else -(-self.examples // self.batch_size)

    def given(self, count: int) -> list[int]:
        """The places of what it gave until the last step; of one that was not seen as if it gave ``count``."""
        if self.places is None:
            return [1 + place % self.each for place in range(count)] if self.each else []
        return self.places[: self.used]

    def sizes(self, count: int) -> list[int]:
        """The sizes of these batches; [] where they cannot be told."""
        if not self.batch_size or self.examples is None:
            return []
        left = [self.examples - self.batch_size * (place - 1) for place in self.given(count)]
        return [min(self.batch_size, one) for one in left]


def loader_of(dataset: Any, batches: Any) -> Loader:
    """What is known of a loader from its dataset and its sampler of batches."""
    sampler, count = getattr(batches, "sampler", None), None
    with suppress(Exception):
        count = len(dataset) if sampler is None else len(sampler)
    if sampler is not None and (not isinstance(sampler, _IN_PASSES) or getattr(sampler, "replacement", False)):
        count = None
    order = "same" if isinstance(sampler, SequentialSampler) else "reshuffled"
    size = getattr(batches, "batch_size", None)
    return Loader(size, bool(getattr(batches, "drop_last", False)), count, order)


def batches_of(steps: Steps, loaders: Sequence[Loader], tell: Callable[[str], None]) -> dict[str, Any]:
    """The facts of a capture that follow from its batches.

    Args:
        loaders: that gave batches before the first step; others' may be among them.
        tell: is told why there is no such fact.
    """
    each = sorted({len(one) for one in steps if one})
    if len(each) > 1:
        tell("its steps follow different numbers of batches; train the captured round with as many before each step")
        return {}
    found: dict[str, Any] = {"accumulate": each[0]} if each and each[0] > 1 else {}
    told = [_told_by(one, steps, each[0] if each else 1) for one in loaders]
    known = [one for number, one in enumerate(told) if one and one not in told[:number]]
    if not all(steps):  # its network was found too late to tell
        return found | (known[0] if len(known) == 1 else {})
    sizes = [size for one in steps for size in one]
    if len(known) == 1 and ("epochs" in known[0] or len(set(sizes)) == 1):
        return found | known[0]
    return found | _of_sizes(sizes, loaders, tell)


def _told_by(loader: Loader, steps: Steps, each: int) -> dict[str, Any]:
    """What a loader tells of the batches behind these steps; {} where they are not its."""
    count = each * len(steps)
    sizes, places = loader.sizes(count), loader.given(count)
    seen = [steps[place // each] for place in range(0, count, each)]
    whole = len(places) == count
    made = [size for place, one in enumerate(seen) for size in one or sizes[each * place : each * (place + 1)]]
    if loader.batch_size is None or len(places) < count or not (whole or all(steps)):
        return {}
    if loader.examples is None:
        return {} if all(steps) else {"batch_size": loader.batch_size}
    if made != sizes if whole else not set(made) <= set(sizes):
        return {}
    found: dict[str, Any] = {"examples": loader.examples, "batch_size": min(loader.batch_size, loader.examples)}
    found |= {"drop_last": True} if loader.drop_last else {}
    if whole and loader.each and places == [*range(1, loader.each + 1)] * (count // loader.each):
        return found | {"epochs": count // loader.each} | ({"order": loader.order} if count > loader.each else {})
    # As many batches as a pass has would be read as one.
    return {"batch_size": found["batch_size"]} if count == loader.each else found


def _of_sizes(sizes: list[int], loaders: Sequence[Loader], tell: Callable[[str], None]) -> dict[str, Any]:
    """What the sizes of batches tell by themselves: passes end with a smaller one, and are alike."""
    size, smaller = max(sizes), [place for place, one in enumerate(sizes) if one < max(sizes)]
    if not smaller:
        return {"batch_size": size}
    each = smaller[0] + 1
    passes = len(sizes) // each
    begun = {sum(place == 1 for place in one.given(0)) for one in loaders if one.places and one.used == len(sizes)}
    if sizes != sizes[:each] * passes or (begun and passes not in begun):
        tell(f"its batches are of different sizes, such as {size} and {sizes[smaller[0]]}, and make no whole passes; "
             "train the captured round in whole passes or with drop_last")  # fmt: skip
        return {}
    return {"batch_size": size, "examples": sum(sizes[:each]), "epochs": passes}
