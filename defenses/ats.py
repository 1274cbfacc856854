"""ATS: training images are transformed by a policy, which ``ats_search`` finds on public images.

Source: Gao et al. 2021, "Privacy-preserving Collaborative Learning with Automatic Transformation Search", section
3, as in ATSPrivacy 2496fc95, ``policy.py``, ``autoaugment.py`` and ``benchmark/comm.py``: a list of the policy is drawn
for each image, and all its transforms act in a row; their printed probabilities are never used there.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from pydantic import field_validator
from torch import Tensor

from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation
from harness.federation.taps import Point

# The 50 transforms by number, with their strengths of 0 to 9; those that are not here are named only.
_NAMES = (
    "invert 7, contrast 6, rotate 2, translateX 9, sharpness 1, sharpness 3, shearY 2, translateY 2, autocontrast 5, "
    "equalize 2, shearY 5, posterize 5, color 3, brightness 5, sharpness 9, brightness 9, equalize 5, equalize 1, "
    "contrast 7, sharpness 5, color 5, translateX 5, equalize 7, autocontrast 8, translateY 3, sharpness 6, "
    "brightness 6, color 8, solarize 0, invert 0, equalize 0, autocontrast 0, equalize 8, equalize 4, color 5, "
    "equalize 5, autocontrast 4, solarize 4, brightness 3, color 0, solarize 1, autocontrast 0, translateY 3, "
    "translateY 3, autocontrast 1, solarize 1, equalize 5, invert 0, translateY 3, autocontrast 1"
)
_TABLE = [(name, int(strength)) for name, strength in (one.split() for one in _NAMES.split(", "))]
Transform = Callable[[Tensor], Tensor]


def _moved(images: Tensor, share: float, axis: int) -> Tensor:
    """Images moved by a share of their size, to the nearest pixel, with black behind them."""
    size = images.shape[axis]
    source = torch.arange(size, device=images.device) + math.floor(0.5 + share * size)
    moved = images.index_select(axis, source.clamp(0, size - 1))
    shape = [1] * images.dim()
    shape[axis] = size
    return moved * ((source >= 0) & (source < size)).reshape(shape)


def _contrasted(images: Tensor, by: float) -> Tensor:
    """Images (..., C, H, W) of more or less contrast around their mean grey."""
    parts = images.new_tensor((0.299, 0.587, 0.114) if images.shape[-3] == 3 else (1 / images.shape[-3],))
    grey = (images * parts[:, None, None]).sum(-3, keepdim=True).mean((-1, -2), keepdim=True)
    return (grey + (1 + by) * (images - grey)).clamp(0, 1)


def _stretched(images: Tensor) -> Tensor:
    low, high = images.amin((-1, -2), keepdim=True), images.amax((-1, -2), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp_min(1e-12), images)


def _sides(number: int) -> list[Transform]:
    """A transform, with each sign that its strength may have."""
    name, strength = _TABLE[number]
    share, some = strength / 9 * 150 / 331, strength / 9 / 2
    if name in ("translateX", "translateY"):
        axis = -1 if name == "translateX" else -2
        return [lambda images, by=by: _moved(images, by, axis) for by in (-share, share)]
    if name == "contrast":
        return [lambda images, by=by: _contrasted(images, by) for by in (-some, some)]
    if name == "brightness":
        return [lambda images, by=by: (images * (1 + by)).clamp(0, 1) for by in (-some, some)]
    if name == "solarize":
        return [lambda images: torch.where(images * 255 < 256 * (1 - strength / 9), images, 1 - images)]
    return [{"invert": lambda images: 1 - images, "autocontrast": _stretched}[name]]


def _is_here(number: int) -> bool:
    try:
        return bool(_sides(number))
    except KeyError:
        return False


#: The transforms that are here.
NUMBERS = tuple(number for number in range(len(_TABLE)) if _is_here(number))


@dataclass(frozen=True)
class TransformInputs(Operation):
    """Transforms each example by one of some lists of transforms, ``+`` between lists and ``-`` within them."""

    policy: str

    points = (Point.INPUTS,)
    about = "inputs"

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        ways = list(self.disguises())
        lists = [len(one) for one in self._lists()]
        # A list by chance, then signs by chance: lists may have different numbers of ways.
        ends = torch.tensor([0, *lists]).cumsum(0)
        drawn = context.uniform("transform", rows.flatten(2)[..., :2])
        which = (drawn[..., 0] * len(lists)).long()
        counts, starts = torch.tensor(lists).to(which), ends[:-1].to(which)
        place = starts[which] + (drawn[..., 1] * counts[which]).long()
        every = torch.stack([way(rows) for way in ways])
        return every.gather(0, place[None, ..., None, None, None].expand(1, *rows.shape))[0]

    def _lists(self) -> list[list[tuple[Transform, ...]]]:
        return [list(product(*(_sides(int(one)) for one in part.split("-")))) for part in self.policy.split("+")]

    def disguises(self) -> Iterator[Transform]:
        for ways in self._lists():
            for way in ways:
                yield lambda images, way=way: _in_a_row(images, way)

    def words(self) -> str:
        names = [" and ".join(_TABLE[int(one)][0] for one in part.split("-")) for part in self.policy.split("+")]
        return f"each is transformed by {', or '.join(names)}"


def _in_a_row(images: Tensor, ways: tuple[Transform, ...]) -> Tensor:
    for way in ways:
        images = way(images)
    return images


@DEFENSES.register("paper:ATS")
@validated_defense
class Ats(Defense):
    """Transforms every image by a list of the ``policy``: numbers of the paper's 50 transforms, ``3-1-7+43-18-18``.

    Transforms that rotate, shear, sharpen, colour, equalise or posterise are not here.
    """

    policy: str = "3-1-7+43-18-18"

    @field_validator("policy")
    @classmethod
    def _is_known(cls, value: str) -> str:
        try:
            for number in value.replace("+", "-").split("-"):
                _sides(int(number))
        except (ValueError, IndexError, KeyError):
            raise ValueError(
                "is no list of transforms that are here; write numbers of 0 to 49 such as 3-1-7+43-18-18"
            ) from None
        return value

    def operations(self, cohort: Cohort) -> list[Operation]:
        transformed = TransformInputs(self.policy)
        return [transformed, of_filter("paper:ATS", self, (), transformed)]
