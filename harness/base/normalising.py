"""Scaling of images in [0, 1] before a network takes them: a change of the network that stands in its name."""

import re
from collections.abc import Sequence

_WRITTEN = re.compile(r"normalised\(([^|()]+)\|([^|()]+)\)")
# How many digits of a mean and a deviation are kept.
_DIGITS = 7

Scaling = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, of all channels or of each."""

BYTES: Scaling = ((0.0,), (1 / 255,))
"""The scaling that leaves images as bytes, from 0 to 255."""
USUAL: tuple[Scaling, ...] = (
    ((0.5,), (0.5,)), ((0.1307,), (0.3081,)), ((0.286,), (0.353,)),
    ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)), ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)  # fmt: skip
"""Scalings of training scripts: of any images, of MNIST, Fashion-MNIST, CIFAR-10 (two), and ImageNet."""


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
