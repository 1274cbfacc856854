"""What clipping and then noise, both at one stage, leave of one example or client for anybody to reconstruct."""

import math

from torch import Tensor

from harness.federation.context import RoundContext
from harness.observation import Clipping, Noise
from harness.privacy import GaussianLimit, Limit, NoLimit

NO_NOISE = "no noise is added by then"
BARE = "some coordinates carry no noise"
NO_CLIPPING = "noise without clipping: one record may move the result by any amount"
LEFT_OUT = "which coordinates are left out depends on private data"
FOLLOWS_DATA = "the scale of the noise follows private data"
_TYPICAL = 0.1  # the blind probability at which limits of different families are compared


def limit_of(noise: Noise | None, clipping: Clipping | None, unit: float, context: RoundContext) -> Limit | NoLimit:
    """The limit on what one clipped vector can be told by, from what a defense does at a stage.

    Args:
        noise: on a coordinate of what the stage gives out, ``context.noise_scale`` left aside.
        clipping: of what the noise was added to, around zero.
        unit: how far one clipped vector moves what the stage gives out, for each unit of the clipping's bound.
        context: of the round, with noise.
    """
    if noise is None:
        return NoLimit(NO_NOISE)
    if clipping is None or clipping.bound is None or math.isinf(clipping.bound):
        # Where neither bound nor noise is known it is the noise's scale that everything else hangs on.
        return NoLimit(FOLLOWS_DATA if noise.estimated else NO_CLIPPING)
    if noise.deviation is None:
        return NoLimit(FOLLOWS_DATA)
    if noise.law != "gaussian":
        return NoLimit(f"no theorem here covers noise of the law {noise.law}")
    groups = len(context.layout.groups(clipping.grouping))
    least = float(noise.deviation.min()) if isinstance(noise.deviation, Tensor) else noise.deviation
    if least == 0:
        return NoLimit(BARE)
    distance = clipping.bound * math.sqrt(groups) * unit
    return GaussianLimit(distance / (least * context.noise_scale))


def height(limit: Limit | NoLimit) -> float:
    """How much a limit allows, to compare limits of different families."""
    return limit.ceiling(_TYPICAL) if isinstance(limit, Limit) else 2.0
