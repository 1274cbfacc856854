"""Whether the noise that a defense declares can be on what was read at all."""

import math

from torch import Tensor

from harness.attacks.residual import deviation_of, explained, lengths, observed_counts
from harness.base.layout import spread
from harness.observation import Observation

# The fourth moment of the noise by the square of its variance, where it is not a Gaussian's.
_KURTOSIS = {"laplace": 6.0, "uniform": 1.8}
_USUAL_KURTOSIS = 3.0
# A misfit is named where chance hardly makes it and it is worth a word: 5% of the variance, 2.5% of the deviation.
_STANDARD_ERRORS, _MATERIAL = 6.0, 0.05
_TINY = 1e-30


def unread_level(observation: Observation) -> str | None:
    """Says where the level of the noise follows the private data, and so may tell of them, to who is not made to read
    it: of P coordinates it is read off to a share of 1 / sqrt(2P), however large it is."""
    noise = observation.noise
    if noise is None or not noise.follows:
        return None
    unread = noise.unread or observation.level is None
    reader = "no attack here reads all of it" if unread else "this attack is not made to read it, as levels is"
    return f"the level of the noise follows private data and may give them away, and {reader}"


def misfit(observation: Observation, candidate: Tensor, fitted: int = 0, best: bool = True) -> str | None:
    """Why the noise that is declared cannot be on what was read, in words; None where it can, or none is declared.

    Nothing is said where noise covers zeros or cuts: of coordinates that are chosen by their size it is another.

    Of noise with deviation s the squared residual over s^2 is P in the mean, with standard deviation
    sqrt((kurtosis - 1) P). The median row is tested, so that a few wrong candidates do not tell.

    Args:
        observation: R rows.
        candidate: gradients (R, P) of candidates that are true, or as near as ``fitted`` free numbers bring them.
        fitted: how many numbers were chosen to make the residual small.
        best: whether they are as near as can be; else a residual that is too large proves nothing.
    """
    noise, deviation = observation.noise, _deviation(observation, candidate)
    read = best and observation.level is not None and noise is not None and not noise.unread
    if not read and (doubt := unread_level(observation)):
        return doubt
    if noise is None or deviation is None or observation.carrying is not None or observation.cut is not None:
        return None
    residual = (observation.target - explained(observation, candidate)) / deviation
    count = observed_counts(observation).double()
    if isinstance(noise.deviation, Tensor):  # coordinates without noise say nothing of its size
        noised = noise.deviation > 0
        residual, count = residual[:, noised], (count * noised.double().mean()).clamp_min(1)
    ratio = float((lengths(residual, 2).square() / count).median())
    least = float(count.min())
    error = math.sqrt((_KURTOSIS.get(noise.law, _USUAL_KURTOSIS) - 1) / least)
    # A median of many varies by sqrt(pi / 2) as much as their mean.
    of_median = error * min(1.0, math.sqrt(math.pi / 2 / observation.rows))
    allowed = max(_MATERIAL, _STANDARD_ERRORS * of_median)
    most = 1 + allowed if best else math.inf
    if 1 - allowed - fitted / least <= ratio <= most:
        return None
    times = math.sqrt(ratio)
    return f"what was read carries about {times:.2g} times the noise that the defense declares"


def _deviation(observation: Observation, candidate: Tensor) -> Tensor | None:
    """Of the noise there would be on candidates (R, P); None where nobody can say."""
    if observation.level is None:
        known = observation.noise is not None and observation.noise.deviation is not None
        return deviation_of(observation) if known else None
    sizes = observation.model.layout.sizes
    return spread(observation.level.deviations(candidate, sizes), sizes).clamp_min(_TINY)
