"""How images in [0, 1] are scaled before a network takes them: a change of the network that stands in its name."""

import re
from collections.abc import Sequence

_WRITTEN = re.compile(r"normalised\(([^|()]+)\|([^|()]+)\)")
# How many digits of a mean and a deviation are kept.
_DIGITS = 7

Scaling = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, of all channels or of each."""


def name_of_scaling(mean: Sequence[float], deviation: Sequence[float]) -> str:
    """Write a scaling as it stands behind a network's name: ``normalised(0.5|0.25)``, channels apart by slashes."""
    written = ("/".join(f"{float(one):.{_DIGITS}g}" for one in values) for values in (mean, deviation))
    return f"normalised({'|'.join(written)})"


def scaling_of(name: str) -> Scaling | None:
    """Return the scaling in a network's name; None where there is none.

    Raises:
        ValueError: its numbers are none, or cannot be a mean and a deviation.
    """
    found = _WRITTEN.search(name)
    if found is None:
        return None
    mean, deviation = (tuple(float(one) for one in part.split("/")) for part in found.groups())
    if len(mean) != len(deviation) or not all(one > 0 for one in deviation):
        raise ValueError("as many deviations as means, above 0")
    return mean, deviation
