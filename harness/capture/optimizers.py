"""What a torch optimizer says of itself, as a capture holds it."""

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from harness.base.errors import UsageError
from harness.base.local_optimizer import arguments_of, is_usual

# Arguments in which groups of parameters may differ.
_OF_GROUPS = ("lr", "weight_decay")


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


def own_groups(optimizer: Optimizer, named: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Groups of parameters whose learning rate or weight decay are not the first group's, as a capture holds them.

    Args:
        named: the network's parameters with their names.
    """
    first, *others = optimizer.param_groups
    known = {id(one): name for name, one in named}
    found = []
    for group in others:
        own = {name: _number(group[name]) for name in _OF_GROUPS if name in first and group[name] != first[name]}
        names = [known[id(one)] for one in group["params"] if id(one) in known and one.requires_grad]
        if own and names:
            rate = {"learning_rate": own.pop("lr")} if "lr" in own else {}
            found.append({"parameters": names} | rate | own)
    return found


def _number(value: Any) -> Any:
    return float(value) if hasattr(value, "item") else value
