"""Groups of weights with a learning rate and a weight decay of their own, as ``torch.optim`` takes them.

They stand in a text as runs of a flat vector of weights: ``64x0.1x0/10x1x0.01`` are 64 weights at a tenth of the
learning rate and without decay, then 10 at the learning rate itself.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated

from pydantic import Field
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.ranges import NonNegative, Positive
from harness.base.vectors import spread

Group = tuple[Annotated[int, Field(ge=1)], Positive, NonNegative]
"""Of a run of weights: how many, their learning rate as a multiple of the optimizer's, and their weight decay."""
Groups = Annotated[tuple[Group, ...], Field(max_length=10_000)]


def groups_of_text(text: str) -> list[list[str]]:
    """Return the runs of a text, unchecked."""
    return [one.split("x") for one in text.split("/")]


def text_of_groups(groups: Sequence[Group]) -> str:
    """Return runs as a text has them."""
    return "/".join(f"{count}x{factor}x{decay}" for count, factor, decay in groups)


def groups_of_tensors(
    names: Sequence[str], sizes: Sequence[int], usual: tuple[float, float], own: Mapping[str, tuple[float, float]]
) -> tuple[Group, ...]:
    """Return the runs of a network's tensors.

    Args:
        names, sizes: of the tensors, in the order of the flat vector.
        usual: the learning rate and the weight decay of tensors without their own.
        own: of others, by name.

    Raises:
        UsageError: a name is none of the tensors'.
    """
    unknown = next((name for name in own if name not in names), None)
    if unknown is not None:
        raise UsageError(f"groups name {unknown!r}, which is no weight that the network trains; correct the name")
    told = [(own.get(name, usual), size) for name, size in zip(names, sizes, strict=True)]
    return tuple(
        (sum(size for _, size in part), rate / usual[0], decay)
        for (rate, decay), part in groupby(told, lambda one: one[0])
    )


def of_each(groups: Sequence[Group], values: Sequence[float], like: Tensor) -> Tensor:
    """Return a number for each weight, (P,), of one number for each run; of several rounds' weights in each the same.

    Args:
        like: (..., P), whose dtype and device it gets.

    Raises:
        UsageError: the runs are of another number of weights.
    """
    counts = [count for count, _, _ in groups]
    rounds, rest = divmod(like.shape[-1], sum(counts))
    if rest or not rounds:
        raise UsageError(f"groups are of {sum(counts)} weights, and the network has {like.shape[-1]}; correct them")
    return spread(like.new_tensor(values), tuple(counts)).repeat(rounds)
