"""What a torch optimizer says of itself at its steps, as a capture holds it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

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

    @property
    def first(self) -> Optimizer | None:
        """The optimizer that took the first step."""
        return self._all[0][0] if self._all else None

    def are_of(self, optimizer: Optimizer) -> bool:
        """Whether this one has begun a step."""
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
        self._with_gradient |= {id(one) for one in parameters_of(optimizer) if one.grad is not None}

    def end(self, optimizer: Optimizer) -> None:
        """It took a step."""
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


def _trained_by(optimizer: Optimizer) -> set[int]:
    """What is trained, by its identity."""
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
