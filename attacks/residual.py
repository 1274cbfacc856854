"""How improbable what was read would be if a candidate's gradient lay behind it."""

import math
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from harness.attacks.covered_zeros import shares_sent
from harness.attacks.objectives import observed_only
from harness.base.layout import group_sums, spread
from harness.noise_level import NoiseLevel
from harness.observation import Observation

FLOOR = 1e-4
"""What single precision leaves of a gradient, relative to the root mean square of what was read."""

_TINY = 1e-30
# What was cut lies within that share of the bound, and so many deviations of noise that came after, in all coordinates.
_ROUNDING, _USUAL_WIDTH, _WIDTH = 1e-4, 6.0, {"laplace": 13.0}
# Root mean squares of what was read, which optimizers ask for in every iteration.
_ROOTS: WeakKeyDictionary[Observation, dict[bool, Tensor]] = WeakKeyDictionary()
# A root mean square below it is that of zeros.
_LEAST = 1e-12
# Deviations from which a Gaussian's tail is its first term, to single precision.
_FAR = 30.0


def improbability(observation: Observation, candidate: Tensor) -> Tensor:
    """Negative log-likelihood (R,), float64, of what was read under candidate gradients (R, P), less that of none.

    That of a candidate whose gradient is zero is the same for all candidates: without it rows can be compared.
    """
    nothing = torch.zeros_like(candidate)
    if observation.level is None:
        return surprise(observation, candidate, sharp=True) - surprise(observation, nothing, sharp=True)
    # Nothing would have next to no noise: such numbers leave no digits for differences.
    return surprise(observation, candidate) - _with_best_levels(observation, observation.target, 2, FLOOR)


def surprise(
    observation: Observation, candidate: Tensor, floor: float = FLOOR, corner: float = 0.0, lead: bool = False,
    sharp: bool = False,
) -> Tensor:  # fmt: skip
    """Negative log-likelihood (R,), float64, of what was read under candidate gradients (R, P), up to a constant.

    A level that follows the candidate's gradient is that of each candidate, which tells them apart however large it is.
    Any other that nobody publishes is the most probable one: of P coordinates with residual r, the Gaussian's
    log-likelihood is then -P/2 log ||r||^2. A law that is not known counts as Gaussian, and no noise as what
    rounding leaves.

    Args:
        observation: R rows.
        candidate: differentiable.
        floor: error that is always allowed for, relative to the root mean square of what was read.
        corner: where the noise is Laplace's, how far from zero, in deviations, its density is rounded off, so that an
            optimizer does not meet the edge.
        lead: whether a candidate is compared as it is where what was read is no cut of it. Cut, it would be without a
            derivative just where it is wrong.
        sharp: whether coordinates with less noise than others are allowed less error too: candidates are told apart by
            what these show, and optimizers find no way down.
    """
    noise = observation.noise
    if observation.carrying is not None:
        return _where_zeros_are_covered(observation, candidate, floor, corner, sharp)
    residual = observation.target - explained(observation, candidate, lead)
    order = 1 if noise is not None and noise.law == "laplace" else 2
    if observation.level is not None:
        return _with_own_levels(observation, observation.level, candidate, residual, floor)
    if noise is not None and noise.deviation is None:
        return _with_best_levels(observation, residual, order, floor)
    if noise is not None and noise.law == "uniform":
        return _of_each(observation, residual, floor, corner, sharp).sum(1, dtype=torch.float64)
    scaled = residual / deviation_of(observation, floor, sharp)
    if order == 2:
        return lengths(scaled, order).square() / 2
    return math.sqrt(2) * lengths(_rounded_off(scaled, corner), order)


def _where_zeros_are_covered(
    observation: Observation, candidate: Tensor, floor: float, corner: float, sharp: bool
) -> Tensor:
    """Negative log-likelihood (R,) where each coordinate was sent, or left out and is noise alone."""
    kept = _unbounded(observation, candidate)
    bounded = kept if observation.cut is None else kept.clamp(-observation.cut, observation.cut)
    density: Tensor | None = None
    for share, likely in shares_sent(observation, kept):
        seen = observation.target - share * bounded if share else observation.target
        part = likely.log() - _of_each(observation, seen, floor, corner, sharp)
        density = part if density is None else torch.logaddexp(density, part)
    assert density is not None
    return -density.sum(1, dtype=torch.float64)


def _of_each(observation: Observation, residual: Tensor, floor: float, corner: float, sharp: bool) -> Tensor:
    """Negative log-density (R, P), up to a constant, of what noise of a known level would have to be."""
    noise = observation.noise
    assert noise is not None and noise.deviation is not None
    if noise.law == "uniform":
        # Within its bounds all is alike, and only what rounding leaves lies beyond.
        return _gaussian_tail((residual.abs() - math.sqrt(3) * noise.deviation) / _floor(observation, floor, sharp))
    scaled = residual / deviation_of(observation, floor, sharp)
    return math.sqrt(2) * _rounded_off(scaled, corner).abs() if noise.law == "laplace" else scaled.square() / 2


def _gaussian_tail(beyond: Tensor) -> Tensor:
    """-log of the probability that a standard normal exceeds this; the library's derivative fails far out."""
    far = beyond.clamp(_FAR, 1e18)
    exact = -torch.special.log_ndtr(-beyond.clamp_max(_FAR))
    return torch.where(beyond > _FAR, far.square() / 2 + far.log() + math.log(math.tau) / 2, exact)


def _rounded_off(scaled: Tensor, corner: float) -> Tensor:
    return (scaled.square() + corner**2).sqrt() - corner if corner else scaled


def _with_best_levels(observation: Observation, residual: Tensor, order: int, floor: float) -> Tensor:
    """Negative log-likelihood (R,) of residuals (R, P) under the most probable level of each group of coordinates."""
    assert observation.noise is not None
    groups = observation.model.layout.groups(observation.noise.grouping)
    rounding, total = _floor(observation, floor).squeeze(1).double(), torch.zeros(1, dtype=torch.float64)
    for part, read in zip(residual.split(groups, 1), observation.target.split(groups, 1), strict=True):
        count = ((read != 0) if observation.sparse else torch.ones_like(read)).sum(1).double()
        power = lengths(part, order) ** order / count.clamp_min(1) + rounding**order
        total = total.to(power) + count / order * power.log()
    return total


def _with_own_levels(
    observation: Observation, level: NoiseLevel, candidate: Tensor, residual: Tensor, floor: float
) -> Tensor:
    """Negative log-likelihood (R,) of residuals (R, P) under the level that each candidate (R, P) itself would have."""
    sizes = observation.model.layout.sizes
    variances = level.deviations(candidate, sizes).square() + _floor(observation, floor).double().square()
    counts = torch.tensor(sizes, dtype=torch.float64, device=variances.device)
    squares = torch.stack([lengths(part, 2).square() for part in residual.split(sizes, 1)], 1)
    return (counts * variances.log() + squares / variances).sum(1) / 2


def knows_clip(observation: Observation) -> bool:
    """Whether gradients of candidates can be clipped just as those behind the observation were."""
    return observation.clipping is not None and observation.clipping.bound is not None


def explained(observation: Observation, candidate: Tensor, lead: bool = False) -> Tensor:
    """What of the observed gradients candidates (R, P) explain: zero where it left coordinates out; cut where it was;
    where clients have bounds of their own, which nobody knows, by the best non-negative scale of each clipping
    group. ``lead``: see :func:`surprise`."""
    candidate, limit = _unbounded(observation, candidate), observation.cut
    if limit is None:
        return candidate
    bounded = candidate.clamp(-limit, limit)
    return torch.where(_may_be(observation, bounded, limit), bounded, candidate) if lead else bounded


def _may_be(observation: Observation, bounded: Tensor, limit: float) -> Tensor:
    """Where (R, P) what was read may be a coordinate that was cut, of the same sign where the noise's level is open."""
    target, noise = observation.target, observation.noise
    alike = bounded * target > 0
    if noise is not None and noise.deviation is None:
        return alike
    width = 0.0 if noise is None or noise.deviation is None else _WIDTH.get(noise.law, _USUAL_WIDTH) * noise.deviation
    return ((target - bounded).abs() <= limit * _ROUNDING + width) | (alike & (target.abs() >= limit))


def _unbounded(observation: Observation, candidate: Tensor) -> Tensor:
    """What candidates (R, P) explain before coordinates are cut."""
    target, clipping = observation.target, observation.clipping
    if observation.sparse:
        candidate = observed_only(candidate, target)
    if clipping is not None and not knows_clip(observation):
        groups = observation.clipping_groups
        inner, own = group_sums(candidate * target, groups), group_sums(candidate.square(), groups)
        candidate = candidate * spread((inner / own.clamp_min(_TINY)).clamp_min(0), groups)
    return candidate


def deviation_of(observation: Observation, share: float = FLOOR, sharp: bool = False) -> Tensor:
    """Of the known noise (R, 1) or (R, P), and of the error that is always allowed for."""
    floor, noise = _floor(observation, share, sharp), observation.noise
    if noise is None or noise.deviation is None:
        return floor
    return torch.hypot(floor, torch.as_tensor(noise.deviation).to(floor))


def _floor(observation: Observation, share: float, sharp: bool = False) -> Tensor:
    """The error that is always allowed for: (R, 1), or ``sharp`` (R, P) where coordinates have levels of their own."""
    roots = _ROOTS.setdefault(observation, {})
    if sharp not in roots:
        root = (lengths(observation.target, 2) / observed_counts(observation).double().sqrt())[:, None]
        root = _sharpened(observation, root) if sharp else root
        roots[sharp] = root.to(observation.target).clamp_min(_TINY)
    return share * roots[sharp]


def _sharpened(observation: Observation, root: Tensor) -> Tensor:
    """Where deviations are of coordinates, the root of those with no more noise; but for those that are all read as 0,
    of which single precision says nothing."""
    noise, target = observation.noise, observation.target
    if noise is None or not isinstance(noise.deviation, Tensor):
        return root
    own = _roots_of_no_more_noise(target, noise.deviation.to(target), observation.sparse)
    return torch.where(own < _LEAST, root, own)


def _roots_of_no_more_noise(target: Tensor, deviations: Tensor, sparse: bool) -> Tensor:
    """For each coordinate (R, P) the root mean square of those whose noise is no stronger, left out ones apart: what
    has little noise, or none, must not drown in the floor of what has much."""
    levels, order = deviations.sort(stable=True)
    values = target[:, order].double()
    there = (values != 0).double() if sparse else torch.ones_like(values)
    last = torch.searchsorted(levels, deviations, right=True) - 1
    means = values.square().cumsum(1) / there.cumsum(1).clamp_min(1)
    return means[:, last].sqrt()


def observed_counts(observation: Observation) -> Tensor:
    """(R,) how many coordinates were not left out."""
    target = observation.target
    if observation.sparse:
        return (target != 0).sum(1).clamp_min(1).to(target.dtype)
    return torch.full_like(target[:, 0], target.shape[1])


def lengths(vectors: Tensor, order: int) -> Tensor:
    """Norms (R,) of rows, summed in double precision: differences of single nats between millions of them count."""
    return torch.linalg.vector_norm(vectors, order, dim=1, dtype=torch.float64)
