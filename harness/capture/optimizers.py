"""Facts that a torch optimizer and the loaders of its batches tell at its steps, as a capture holds them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

from harness.base.errors import UsageError
from harness.base.local_optimizer import arguments_of, is_usual

# Arguments in which groups of parameters may differ.
_OF_GROUPS = ("lr", "weight_decay")
# How much ratios of learning rates may be off by rounding.
_ALIKE = 1e-6


class Steps:
    """The optimizers of one training, and what their arguments were at each step.

    Args:
        tell: is told what keeps the training from being captured.
        unlike: gets what does so unless a fact is given, by the facts of which one is asked.

    Attributes:
        rates: the learning rate of each step that was taken.
    """

    def __init__(self, tell: Callable[[str], None], unlike: dict[tuple[str, ...], str]) -> None:
        self.rates: list[float] = []
        self._tell, self._unlike = tell, unlike
        self._all: list[tuple[Optimizer, dict[str, Any] | None]] = []
        self._carried = False
        # How the groups of the first differ from each other, which stays so.
        self._apart: list[tuple[float, Any]] = []
        self._trained: set[int] = set()
        # Parameters that a step was taken with; torch's optimizers leave out those without a gradient, decay and all.
        self._with_gradient: set[int] = set()
        # What the last step left in the optimizer: each tensor, and how often it was written to by then.
        self._left: list[tuple[Tensor, int]] | None = None

    @property
    def first(self) -> Optimizer | None:
        """The optimizer that took the first step."""
        return self._all[0][0] if self._all else None

    def are_of(self, optimizer: Optimizer) -> bool:
        """Return whether this one has begun a step."""
        return any(one is optimizer for one, _ in self._all)

    def begin(self, optimizer: Optimizer) -> None:
        """Its first step begins."""
        self._all.append((optimizer, None))
        self._trained = _trained_by(optimizer)
        self._carried = self._carried or any(optimizer.state.values())
        try:
            self._all[-1] = optimizer, facts_of(optimizer)
        except UsageError as problem:
            self._unlike["optimizer",] = f"{problem}, or give the optimizer whose steps it takes"

    def look(self, optimizer: Optimizer) -> None:
        """Its gradients are there, and a step is taken."""
        if len(self._all) > 1:  # the reason that is told; each would miss what the others keep
            return
        given = {id(one) for one in parameters_of(optimizer) if one.grad is not None}
        if self.rates and given != self._with_gradient and _remembers(optimizer):
            self._tell(
                "a weight had no gradient in some of its steps, in which its optimizer neither moved nor decayed it; "
                "train the same in every step"
            )
        self._with_gradient |= given
        now = _state_of(optimizer)
        if self._left is not None and (
            len(now) != len(self._left)
            or any(one is not two or was != is_now for (one, was), (two, is_now) in zip(now, self._left, strict=True))
        ):
            self._tell(
                "its optimizer's state was changed between two steps; leave it alone in the captured round, or make a "
                "new optimizer before it"
            )

    def leave(self, optimizer: Optimizer) -> None:
        """Note what an optimizer keeps, after a step or where it left one out."""
        self._left = _state_of(optimizer)

    def end(self, optimizer: Optimizer) -> None:
        """Note that an optimizer took a step."""
        first = next((facts for one, facts in self._all if one is optimizer), None)
        if first is None:  # of no known class, which is told
            self.rates.append(float(optimizer.param_groups[0].get("lr") or 0.0))
        else:
            self._compare(first, facts_of(optimizer))
            self._compare_groups(optimizer)
        if _trained_by(optimizer) != self._trained and len(self._all) == 1:
            self._tell("other parameters were trained later in the round; train the same in every step")

    def _compare(self, first: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        self.rates.append(now["lr"])
        changed = next((name for name, one in now.items() if name != "lr" and one != first[name]), None)
        if changed is not None:
            self._tell(
                f"{changed} of {now['name']} changed during the round; change the learning rate alone (a scheduler: "
                "cycle_momentum=False)"
            )

    def _compare_groups(self, optimizer: Optimizer) -> None:
        """Groups of parameters may have learning rates of their own, which a schedule scales alike."""
        if len(optimizer.param_groups) == 1 or not any(one["lr"] for one in optimizer.param_groups):
            return
        first = float(optimizer.param_groups[0]["lr"])
        apart = [(float(one["lr"]) / (first or 1.0), one.get("weight_decay")) for one in optimizer.param_groups]
        if not first or not all(rate for rate, _ in apart):
            self._tell("a group of parameters has learning rate 0; freeze it (requires_grad_(False)) and leave it out")
        self._apart = self._apart or apart
        if len(apart) != len(self._apart) or any(
            abs(rate / was - 1) > _ALIKE or decay != before
            for (rate, decay), (was, before) in zip(apart, self._apart, strict=True)
            if was
        ):
            self._tell("learning rates of groups of parameters changed apart; scale them alike, or keep them")

    def facts(self, network: nn.Module | None) -> dict[str, Any]:
        """The facts of a capture that follow from them; {} where there is no one optimizer.

        Args:
            network: the client's, without what is wrapped around it; None where it was not seen.
        """
        if len(self._all) > 1:
            self._tell(f"{len(self._all)} optimizers took steps; train the captured round with one")
        if len(self._all) != 1 or not self.rates:
            return {}
        optimizer, first = self._all[0]
        rate, kind = next((one for one in self.rates if one), 0.0), type(optimizer)
        unknown = {"name": f"{kind.__module__}.{kind.__qualname__}"}
        found = {"optimizer": (first or unknown) | {"lr": rate}, "local_steps": len(self.rates)}
        found |= {"schedule": tuple(self.rates)} if len(set(self.rates)) > 1 else {}
        found |= {"state": "carried"} if self._carried else {}
        if network is None:
            if any((one, two) != self._apart[0] for one, two in self._apart):
                self._tell("its network was not seen, whose groups of parameters have arguments of their own")
            return found
        groups = own_groups(optimizer, network.named_parameters(), self._apart, rate) if self._apart else []
        return found | {"frozen": self.frozen(network)} | ({"groups": groups} if groups else {})

    def frozen(self, network: nn.Module) -> tuple[str, ...]:
        """Names of what the optimizer does not train, or was never given a gradient of."""
        trained = _trained_by(self._all[0][0]) & self._with_gradient
        return tuple(name for name, one in network.named_parameters() if id(one) not in trained)


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Return all parameters of an optimizer's groups."""
    return (one for group in optimizer.param_groups for one in group["params"])


def _state_of(optimizer: Optimizer) -> list[tuple[Tensor, int]]:
    """Return the tensors that an optimizer keeps for its next step, and how often each was written to."""
    kept = (value for own in optimizer.state.values() for value in own.values())
    return [(one, one._version) for one in kept if isinstance(one, Tensor)]


def _remembers(optimizer: Optimizer) -> bool:
    """Return whether a step moves weights by more than their gradients: by what it keeps of them, or by decay."""
    return bool(_state_of(optimizer)) or any(group.get("weight_decay") for group in optimizer.param_groups)


def _trained_by(optimizer: Optimizer) -> set[int]:
    """Return what is trained, by its identity."""
    return {id(one) for one in parameters_of(optimizer) if one.requires_grad}


def facts_of(optimizer: Optimizer) -> dict[str, Any]:
    """The class and arguments of a torch optimizer, as a capture holds them; see :func:`own_groups` for the rest.

    Raises:
        UsageError: it is none that can be judged: another class, also one of somebody's own with a name of torch's, or
            groups of parameters that differ in more than learning rate and weight decay.
    """
    kind, (first, *others) = type(optimizer), optimizer.param_groups
    name = kind.__name__
    torchs = kind.__module__.startswith("torch.optim.")
    names = ("lr", *sorted(arguments_of(name if torchs else f"{kind.__module__}.{name}")))
    shared = [one for one in names if one not in _OF_GROUPS and one in first]
    differing = next((one for one in shared if any(other[one] != first[one] for other in others)), None)
    if differing is not None:
        raise UsageError(
            f"{name} has groups of parameters with another {differing}, and theirs may differ in learning rate and "
            "weight decay alone; train the captured round with one"
        )
    try:
        for flag, value in first.items():
            is_usual(name, flag, value)
    except ValueError as odd:
        raise UsageError(f"{name} with {odd}") from odd
    return {"name": name} | {name: _number(first[name]) for name in names if name in first}


def own_groups(
    optimizer: Optimizer, named: Iterable[tuple[str, Any]], apart: Sequence[tuple[float, Any]], rate: float
) -> list[dict[str, Any]]:
    """Groups of parameters whose learning rate or weight decay are not the first group's, as a capture holds them.

    Args:
        named: the network's parameters with their names.
        apart: of each group the ratio of its learning rate to the first's, and its weight decay.
        rate: the first's.
    """
    known = {id(one): name for name, one in named}
    found = []
    for group, (ratio, decay) in list(zip(optimizer.param_groups, apart, strict=True))[1:]:
        own = {"learning_rate": rate * ratio} if abs(ratio - 1) > _ALIKE else {}
        own |= {"weight_decay": _number(decay)} if decay != apart[0][1] else {}
        names = [known[id(one)] for one in group["params"] if id(one) in known and one.requires_grad]
        if own and names:
            found.append({"parameters": names} | own)
    return found


def _number(value: Any) -> Any:
    return float(value) if hasattr(value, "item") else value


# --------------------------------------------------------------------------------------
# The batches of a client's training: what its loaders gave, held against what went through its network.
#
# What went through the network is what steps were made of. A loader tells more, such as passes, where its batches are
# these.


# Samplers whose passes take every example once.
_IN_PASSES = (RandomSampler, SequentialSampler, SubsetRandomSampler, DistributedSampler)
Taken = Sequence[tuple[int, ...]]
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
    """Return what is known of a loader from its dataset and its sampler of batches."""
    sampler, count = getattr(batches, "sampler", None), None
    with suppress(Exception):
        count = len(dataset) if sampler is None else len(sampler)
    if sampler is not None and (not isinstance(sampler, _IN_PASSES) or getattr(sampler, "replacement", False)):
        count = None
    order = "same" if isinstance(sampler, SequentialSampler) else "reshuffled"
    size = getattr(batches, "batch_size", None)
    return Loader(size, bool(getattr(batches, "drop_last", False)), count, order)


def batches_of(steps: Taken, loaders: Sequence[Loader], tell: Callable[[str], None]) -> dict[str, Any]:
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


def _told_by(loader: Loader, steps: Taken, each: int) -> dict[str, Any]:
    """Return what a loader tells of the batches behind these steps; {} where they are not its."""
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
    """Return what the sizes of batches tell by themselves: passes end with a smaller one, and are alike."""
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
