"""What a defense may find in its memory, by which a memory that comes back from a file is checked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Remembered:
    """A tensor of finite floating-point numbers.

    Attributes:
        shape: of the server's tensor, or of each client's row; None stands for as many values as the model has weights.
        least, most: every value's range.
    """

    shape: tuple[int | None, ...] = ()
    least: float = -math.inf
    most: float = math.inf

    def problem(self, value: Tensor, parameters: int | None = None, rows: int | None = None) -> str | None:
        """Return the reason why a tensor is none of these, in half a sentence; ``parameters`` None allows any."""
        leading = () if rows is None else (rows,)
        expected = (*leading, *(parameters if size is None else size for size in self.shape))
        found = tuple(value.shape)
        if len(found) != len(expected) or any(w not in (None, f) for w, f in zip(expected, found, strict=True)):
            return f"has shape {found} instead of {expected}"
        if not value.is_floating_point() or not value.isfinite().all():
            return "holds other things than finite floating-point numbers"
        within = bool(((value >= self.least) & (value <= self.most)).all())
        return None if within else f"must lie between {self.least:g} and {self.most:g}"


def memory_problem(
    memory: Mapping[str, Tensor], known: Mapping[str, Remembered], parameters: int | None = None
) -> str | None:
    """Return the reason why a server's memory is not exactly what is ``known`` by name; None where it is."""
    for name in (*memory, *known):
        if name not in known:
            return f"holds {name[:40]!r}, which is no part of it"
        if name not in memory:
            return f"lacks {name!r}"
        if problem := known[name].problem(memory[name], parameters):
            return f"is damaged: {name!r} {problem}"
    return None
