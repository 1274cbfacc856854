"""Stages: losses that an attack descends one after the other, each from where the one before it ended.

Updates of adaptive optimizers make losses that no start is near to. So an attack begins with an easier one: where only
signs are known, with signs that are blurred; where it plays several steps, with gradients at known points between the
weights before and after. Which, the declared optimizer says (docs/attacks.md).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.attacks.adam import Adam
from harness.attacks.lbfgs import LBFGS
from harness.attacks.step_signs import by_signs, is_of_two, tells_both
from harness.base.local_optimizer import Adaptive
from harness.base.vectors import spread
from harness.observation import Observation

SIGNS_TV, SIGNS_BOX = 0.1, 10.0
"""Where signs are compared, which leave more images open than gradients do: the least weight of total variation, and
that of the mean square by which pixels lie beyond [0, 1]."""
MOST_POINTS = 16
"""Of a path; more local steps than that share points, and are not unrolled."""
_KNOWN, _ENOUGH = 0.5, 0.4
"""A coordinate is read where its error is below that share of it; of those that are not zero, that share has to be, so
that magnitudes are compared and not signs."""
_ALLOWED = 1.0
"""In root mean squares: of weights of all sizes nothing descends the loss, so few coordinates may outweigh others."""
_BLURRED, _SHARP, _STAGES = 10.0, 0.01, 24
"""Medians of |g| below which a gradient is blurred, in the first of so many stages and in the last."""
_RATE = 0.1
_NEARLY = 0.2
"""Of the attack's own rate, where it goes on from what signs brought."""
_TINY = 1e-30


@dataclass(frozen=True)
class Stage:
    """A part of an attack's iterations.

    Attributes:
        iterations: at most.
        blur: of signs, see :func:`signs`; None where none are compared.
        allowed: error of each coordinate that is read, in root mean squares of all; None for what rounding leaves.
        path: whether local steps are taken at points that are known: before their own are, or since they are too many
            to be played.
        both: whether the signs are of two steps, each at its own weights.
    """

    iterations: int
    blur: float | None = None
    allowed: float | None = None
    path: bool = False
    both: bool = False

    def seen(self, observation: Observation) -> Observation:
        """The observation as this stage takes it."""
        if self.path:
            return replace(observation, update_model="path")
        if self.both:
            assert self.blur is not None
            return by_signs(observation, self.blur)
        reading = observation.reading
        if reading is None or reading.adaptive is None:
            return observation
        if self.allowed is not None:
            exact = reading.certainty(observation.target, observation.weights, self.allowed)
            return replace(observation, certainty=exact)
        if self.blur is None:
            return observation
        return replace(observation, reading=replace(reading, adaptive=replace(reading.adaptive, blur=self.blur)))


DESCENDED = Stage(1, allowed=_ALLOWED)
"""How magnitudes of adaptive steps are compared by who descends."""


def stages_of(observation: Observation, iterations: int) -> list[Stage]:
    """Return the stages in which an attack that matches gradients spends its iterations on rows that are alike; one
    stage for plain SGD."""
    adaptive = adaptive_step(observation)
    if adaptive is not None and readable(observation)[0]:
        return [replace(DESCENDED, iterations=iterations)]
    if adaptive is not None:
        return _sharpening(iterations)
    if not is_unrolled(observation):
        return [Stage(iterations)]
    if observation.local_steps > MOST_POINTS:
        return [Stage(iterations, path=True)]
    if iterations > 1 and is_of_two(observation) and tells_both(observation)[0]:
        first = iterations - iterations // 3
        return [*(replace(one, both=True) for one in _sharpening(first)), Stage(iterations - first)]
    # Adaptive steps are about as long whatever the gradients, so that the way between the weights says where they were
    # taken. Steps of SGD are as long as the gradients: points on the way are far off, and images found there lead
    # nowhere.
    if observation.optimizer.name != "sgd" and iterations > 1:
        return [Stage(iterations // 2, path=True), Stage(iterations - iterations // 2)]
    return [Stage(iterations)]


def is_unrolled(observation: Observation) -> bool:
    """Return whether attacks play several steps of another optimizer than plain SGD."""
    several = observation.local_steps > 1 and observation.update_model == "unroll"
    return several and not observation.optimizer.is_plain


def least_share(observation: Observation) -> float:
    """Return the least share that one local step of an unrolled optimizer has in the update; 1 for all else."""
    if not is_unrolled(observation):
        return 1.0
    shares = None if observation.reading is None else observation.reading.shares
    return (1.0 if shares is None else min(shares)) / observation.local_steps


def _sharpening(iterations: int) -> list[Stage]:
    """Signs that are blurred less and less."""
    count = min(_STAGES, iterations)
    ends = [stage * iterations // count for stage in range(count + 1)]
    blurs = [_BLURRED * (_SHARP / _BLURRED) ** (stage / max(count - 1, 1)) for stage in range(count)]
    return [Stage(end - begin, blur) for begin, end, blur in zip(ends, ends[1:], blurs, strict=False)]


def descent(usual: LBFGS | Adam, stages: list[Stage], stage: Stage) -> LBFGS | Adam:
    """The optimizer of one of these stages: that of the attack, but for signs, whose loss has flat parts, one by
    signs."""
    if stage.blur is not None:
        return Adam(sum(one.iterations for one in stages if one.blur is not None), _RATE, signed=True, decay="cosine")
    if stages[0].blur is not None and isinstance(usual, Adam):
        return replace(usual, iterations=stage.iterations, learning_rate=_NEARLY * usual.learning_rate)
    return usual


def alike(observation: Observation) -> list[Tensor]:
    """Rows of an observation, those together that an attack spends its iterations on in the same way."""
    rows = torch.arange(observation.rows)
    if adaptive_step(observation) is None and not is_of_two(observation):
        return [rows]
    read = (tells_both if is_of_two(observation) else readable)(observation).cpu()
    return [part for part in (rows[read], rows[~read]) if len(part)]


def adaptive_step(observation: Observation) -> Adaptive | None:
    """The first step of an adaptive optimizer that was read; None of all else."""
    return None if observation.reading is None else observation.reading.adaptive


def blur_of(observation: Observation) -> float | None:
    """Return how blurred signs are compared, in medians of |g|; None where more than signs is compared."""
    adaptive = adaptive_step(observation)
    return None if adaptive is None else adaptive.blur


def readable(observation: Observation) -> Tensor:
    """Return which rows (R,) of adaptive steps give enough magnitudes away; the others give signs."""
    read = ~unread(observation)
    return read.sum(1) >= _ENOUGH * (observation.target != 0).sum(1)


def unread(observation: Observation) -> Tensor:
    """Coordinates (R, P) of adaptive steps of which rounding leaves the sign and a least magnitude, or nothing."""
    assert observation.reading is not None
    error = observation.reading.error(observation.target, observation.weights)
    return error >= _KNOWN * observation.target.abs()


def excused(candidate: Tensor, observation: Observation) -> Tensor:
    """Gradients (R, P) as they are compared: no larger than what was read, where that is only a least magnitude, as an
    adaptive step leaves it."""
    target = observation.target
    if adaptive_step(observation) is None:
        return candidate
    larger = (candidate * target.sign() > target.abs()) & (target != 0)
    return target.where(larger & unread(observation), candidate)


def signs(candidate: Tensor, target: Tensor, sizes: tuple[int, ...], blur: float) -> Tensor:
    """Return the distance (R,) of the signs of gradients (R, P) from those observed: between 0 and 4.

    It is the mean over tensors of mean (tanh(a / s) - sign g)^2, where s is ``blur`` times the tensor's median |a|.
    """
    scales = torch.stack([part.detach().abs().median(1).values for part in candidate.split(sizes, 1)], 1)
    blurred = (candidate / spread(blur * scales.clamp_min(_TINY), sizes)).tanh()
    apart = (blurred - target.sign()).square()
    return torch.stack([part.mean(1) for part in apart.split(sizes, 1)], 1).mean(1)
