"""Improbability of what was read if a candidate's gradient lay behind it."""

import math
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from harness.attacks.objectives import gaussian_distance, observed_only
from harness.attacks.objectives import row_lengths as lengths
from harness.attacks.stages import DESCENDED, excused
from harness.base.coding import ByChance
from harness.base.vectors import group_sums, spread
from harness.observation import Noise, NoiseLevel, Observation

# How likely a coordinate was sent at all, where noise that came after covers the zeros of those that were left out.
#
# Whoever takes all for sent holds a candidate's whole gradient against one most of which was thrown away, and finds
# it improbable although it is true.

# A candidate near to the truth orders its coordinates nearly as the truth does.
_OTHERWISE = 0.01


def shares_sent(observation: Observation, candidate: Tensor) -> Iterator[tuple[float, Tensor]]:
    """Yield the shares of all looks in which a coordinate may have been sent, and how likely each is: (R, P), or
    (1, P).

    Args:
        observation: one whose ``carrying`` is known.
        candidate: gradients (R, P) as they were before any coordinate was cut.
    """
    chosen = observation.carrying
    assert chosen is not None
    sent = probability_sent(observation, candidate)
    looks = chosen.looks if chosen.choice == "chance" else 1
    for times in range(looks + 1):
        yield times / looks, math.comb(looks, times) * sent**times * (1 - sent) ** (looks - times)


def probability_sent(observation: Observation, candidate: Tensor) -> Tensor:
    """Return the probability that each coordinate of gradients (R, P) is sent in one look; (1, P) where it is the same
    for all.

    Where the largest of a group are sent, those of the candidate; else as many of a group as may be, whichever, of
    those that are large enough. Of a row that shows its zeros, as noise on what is sent alone leaves them, what is no
    zero was sent.
    """
    chosen, target = observation.carrying, observation.target
    assert chosen is not None
    groups = observation.model.layout.groups(chosen.grouping)
    parts = zip(candidate.detach().abs().split(groups, 1), chosen.counts, strict=True)
    sent = torch.cat([_of_group(sizes, count, chosen.choice == "largest", chosen.least) for sizes, count in parts], 1)
    shows_zeros = (target != 0).sum(1, keepdim=True) <= min(chosen.most, target.shape[1] - 1)
    return sent.where(~shows_zeros, 1.0) if bool(shows_zeros.any()) else sent


def chosen_alone(observation: Observation, candidate: Tensor) -> Tensor:
    """Gradients (R, P) with zeros for all but the largest of each group, where an update is clipped only after that."""
    chosen = observation.carrying
    if chosen is None or not chosen.clipped:
        return candidate
    parts = zip(candidate.split(observation.model.layout.groups(chosen.grouping), 1), chosen.counts, strict=True)
    return torch.cat([part.where(_largest(part.detach().abs(), count), 0.0) for part, count in parts], 1)


def _of_group(sizes: Tensor, count: int, largest: bool, least: float) -> Tensor:
    """Return the probability that each coordinate of a group is sent in one look, of which so many are. Their
    magnitudes are (R, n)."""
    if largest and 0 < count < sizes.shape[1]:
        return torch.where(_largest(sizes, count), 1 - _OTHERWISE, _OTHERWISE)
    if not least:
        return sizes.new_full((1, sizes.shape[1]), count / sizes.shape[1])
    enough = sizes > least
    share = (count / enough.sum(1, keepdim=True).clamp_min(1)).clamp_max(1 - _OTHERWISE)
    return torch.where(enough, share, _OTHERWISE * share)


def _largest(sizes: Tensor, count: int) -> Tensor:
    """Return which magnitudes (R, n) are the ``count`` largest of their row."""
    places = sizes.topk(count, dim=1).indices
    return torch.zeros_like(sizes, dtype=torch.bool).scatter(1, places, True)


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
        own, none = (
            negative_log_likelihood(observation, one, sharp=True) + _by_chance(observation, one)
            for one in (candidate, nothing)
        )
        return own - none
    # Nothing would have next to no noise: such numbers leave no digits for differences.
    return negative_log_likelihood(observation, candidate) - _with_best_levels(
        observation, observation.target, 2, FLOOR
    )


def _by_chance(observation: Observation, candidate: Tensor) -> Tensor | float:
    """-log of how likely chance rounds candidates (R, P) to what was read, (R,); 0 where none does."""
    coding = observation.coding
    if not isinstance(coding, ByChance):
        return 0.0
    unlikely = coding.unlikely(_unbounded(observation, candidate), observation.target, observation.model.layout.sizes)
    return unlikely.sum(1, dtype=torch.float64)


def negative_log_likelihood(
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
    own = explained(observation, candidate, lead)
    if observation.certainty is not None and noise is None:
        return _of_adaptive_step(observation, own, floor, sharp)
    if _is_gaussian(observation):
        return gaussian_distance(own, observation.target, deviation_of(observation, floor, sharp))
    residual = observation.target - own
    order = 1 if noise is not None and noise.law == "laplace" else 2
    if observation.level is not None:
        return _with_own_levels(observation, observation.level, candidate, residual, floor)
    if noise is not None and noise.deviation is None:
        return _with_best_levels(observation, residual, order, floor)
    if noise is not None and noise.law == "uniform":
        return _of_each(observation, residual, floor, corner, sharp).sum(1, dtype=torch.float64)
    scaled = standardised(observation, residual, floor, sharp)
    if order == 2:
        return lengths(scaled, order).square() / 2
    return math.sqrt(2) * lengths(_rounded_off(scaled, corner), order)


def _is_gaussian(observation: Observation) -> bool:
    """Return whether noise, if there is any, is Gaussian to an attacker, of a known level, and independent."""
    noise = observation.noise
    if noise is None:
        return observation.level is None
    known = noise.deviation is not None and observation.level is None
    return known and noise.law not in ("laplace", "uniform") and not is_correlated(observation)


def is_of_one_level(observation: Observation) -> bool:
    """Return whether noise, if there is any, is Gaussian to an attacker, independent, and known to be as large
    everywhere."""
    noise = observation.noise
    return _is_gaussian(observation) and (noise is None or not isinstance(noise.deviation, Tensor))


def standardised(observation: Observation, residual: Tensor, share: float = FLOOR, sharp: bool = False) -> Tensor:
    """Residuals (R, P) in units of the known noise, and of the error that is always allowed for; independent ones of
    rounds whose noise is correlated."""
    if not is_correlated(observation):
        return residual / deviation_of(observation, share, sharp)
    return whitened(observation.noise, residual) / white_variance(observation, share, sharp).sqrt().to(residual)


def is_correlated(observation: Observation) -> bool:
    """Return whether the noise of several rounds is correlated, as their defense says."""
    return observation.noise is not None and observation.noise.whitening is not None


def whitened(noise: Noise | None, values: Tensor, transposed: bool = False) -> Tensor:
    """Values (..., T * P) of T rounds with their rounds mixed so that noise is independent; as they are without."""
    if noise is None or noise.whitening is None:
        return values
    mix = noise.whitening.to(values)
    return ((mix.T if transposed else mix) @ values.unflatten(-1, (len(mix), -1))).flatten(-2)


def white_variance(
    observation: Observation, share: float = FLOOR, sharp: bool = False, left: Tensor | None = None
) -> Tensor:
    """Return the variance of noise and of the allowed error (R, T * P), or (R, 1), and of what is ``left`` (T * P,).
    Each round has its own, mixed as :func:`whitened` mixes rounds."""
    if not is_correlated(observation):
        own = deviation_of(observation, share, sharp).double().square()
        return own if left is None else own + left
    assert observation.noise is not None and observation.noise.whitening is not None
    mix, floor = observation.noise.whitening.double().square(), _floor(observation, share, sharp).double().square()
    more = floor.expand(-1, observation.target.shape[1]) + (0 if left is None else left)
    return 1 + (mix.to(more) @ more.unflatten(-1, (len(mix), -1))).flatten(-2)


def _of_adaptive_step(observation: Observation, candidate: Tensor, floor: float, sharp: bool) -> Tensor:
    """Return the negative log-likelihood (R,) of candidates for an adaptive step. Rounding leaves more of some of its
    coordinates than of others.

    Optimizers find a way down only where none counts for much more than others, see ``attacks/stages.py``.
    """
    exact = observation.certainty if sharp else DESCENDED.seen(observation).certainty
    assert exact is not None
    scaled = (observation.target - excused(candidate, observation)) * exact / _floor(observation, floor)
    return lengths(scaled, 2).square() / 2


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
        return gaussian_tail((residual.abs() - math.sqrt(3) * noise.deviation) / _floor(observation, floor, sharp))
    scaled = residual / deviation_of(observation, floor, sharp)
    return math.sqrt(2) * _rounded_off(scaled, corner).abs() if noise.law == "laplace" else scaled.square() / 2


def gaussian_tail(beyond: Tensor) -> Tensor:
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
    """Return whether gradients of candidates can be clipped just as those behind the observation were."""
    return observation.clipping is not None and observation.clipping.bound is not None


def explained(observation: Observation, candidate: Tensor, lead: bool = False) -> Tensor:
    """Return what of the observed gradients candidates (R, P) explain: zero where it left coordinates out; cut where it
    was; where clients have bounds of their own, which nobody knows, by the best non-negative scale of each clipping
    group; and written in fewer bits, where it was. ``lead``: see :func:`negative_log_likelihood`."""
    candidate, limit, coding = _unbounded(observation, candidate), observation.cut, observation.coding
    if limit is not None:
        bounded = candidate.clamp(-limit, limit)
        candidate = torch.where(_may_be(observation, bounded, limit), bounded, candidate) if lead else bounded
    if coding is None:
        return candidate
    return coding.explains(candidate, observation.target, observation.model.layout.sizes, lead)


def _may_be(observation: Observation, bounded: Tensor, limit: float) -> Tensor:
    """Return where (R, P) what was read may be a coordinate that was cut. The same sign is enough where the noise's
    level is open."""
    target, noise = observation.target, observation.noise
    alike = bounded * target > 0
    if noise is not None and noise.deviation is None:
        return alike
    width = 0.0 if noise is None or noise.deviation is None else _WIDTH.get(noise.law, _USUAL_WIDTH) * noise.deviation
    return ((target - bounded).abs() <= limit * _ROUNDING + width) | (alike & (target.abs() >= limit))


def _unbounded(observation: Observation, candidate: Tensor) -> Tensor:
    """Return what candidates (R, P) explain before coordinates are cut."""
    target, clipping = observation.target, observation.clipping
    if observation.sparse:
        candidate = observed_only(candidate, target)
    if clipping is not None and not knows_clip(observation):
        groups = observation.clipping_groups
        inner, own = group_sums(candidate * target, groups), group_sums(candidate.square(), groups)
        candidate = candidate * spread((inner / own.clamp_min(_TINY)).clamp_min(0), groups)
    return candidate


def deviation_of(observation: Observation, share: float = FLOOR, sharp: bool = False) -> Tensor:
    """Return the deviation (R, 1) or (R, P) of the known noise and of the error that is always allowed for."""
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
    """Return the root of the coordinates with no more noise, where deviations are of coordinates. Return ``root``
    elsewhere, and for those that are all read as 0, of which single precision says nothing."""
    noise, target = observation.noise, observation.target
    if noise is None or not isinstance(noise.deviation, Tensor):
        return root
    own = _roots_of_no_more_noise(target, noise.deviation.to(target), observation.sparse)
    return torch.where(own < _LEAST, root, own)


def _roots_of_no_more_noise(target: Tensor, deviations: Tensor, sparse: bool) -> Tensor:
    """For each coordinate (R, P) the root mean square of those whose noise is no stronger, left out ones apart: what
    has little noise, or none, must not vanish below the floor of what has much."""
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


# Whether the noise that a defense declares can be on what was read at all.

# The fourth moment of the noise by the square of its variance, where it is not a Gaussian's.
_KURTOSIS = {"laplace": 6.0, "uniform": 1.8}
_USUAL_KURTOSIS = 3.0
# A misfit is named where chance hardly makes it and it is worth a word: 5% of the variance, 2.5% of the deviation.
_STANDARD_ERRORS, _MATERIAL = 6.0, 0.05


def unread_level(observation: Observation) -> str | None:
    """Says where the level of the noise follows the private data, and so may tell of them, to who is not made to read
    it: of P coordinates it is read off to a share of 1 / sqrt(2P), however large it is. Also where no law is known of
    what the defense does, be it to images before their gradients."""
    noise = observation.noise
    if noise is None or not noise.follows:
        return None
    if noise.law == "unknown":
        return "no attack here has a model of all that the defense does"
    unread = noise.unread or observation.level is None
    reader = "no attack here reads all of it" if unread else "this attack is not made to read it, as levels is"
    return f"the level of the noise follows private data and may give them away, and {reader}"


def misfit(observation: Observation, candidate: Tensor, fitted: int = 0, best: bool = True) -> str | None:
    """Return why the noise that is declared cannot be on what was read, in words; None where it can, or none is
    declared.

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
    residual = observation.target - explained(observation, candidate)
    residual = standardised(observation, residual) if is_correlated(observation) else residual / deviation
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
        return _misfit_of_rounds(observation, residual) if best and is_correlated(observation) else None
    times = math.sqrt(ratio)
    return f"what was read carries about {times:.2g} times the noise that the defense declares"


def _misfit_of_rounds(observation: Observation, white: Tensor) -> str | None:
    """Return in words that whitened residuals (R, T * P) of T rounds are correlated; None where chance makes as
    much."""
    assert observation.noise is not None and observation.noise.whitening is not None
    rounds = white.double().unflatten(1, (len(observation.noise.whitening), -1))
    count = rounds.shape[0] * rounds.shape[2]
    found = torch.einsum("rtp,rsp->ts", rounds, rounds) / count
    largest = float((found - torch.eye(len(found)).to(found)).abs().max())
    if largest <= max(_MATERIAL, _STANDARD_ERRORS * math.sqrt(2 / count)):
        return None
    return f"the noise of rounds is correlated otherwise than the defense declares, by {largest:.2g}"


def _deviation(observation: Observation, candidate: Tensor) -> Tensor | None:
    """Return the deviation of the noise there would be on candidates (R, P); None where nobody can say."""
    if observation.level is None:
        known = observation.noise is not None and observation.noise.deviation is not None
        return deviation_of(observation) if known else None
    sizes = observation.model.layout.sizes
    return spread(observation.level.deviations(candidate, sizes), sizes).clamp_min(_TINY)
