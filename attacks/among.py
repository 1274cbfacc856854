"""One example among several that were read together: the others are what public gradients vary by.

What was read is v + noise, where v is the mean of n gradients. If x is one of them, the others together are nearly
Gaussian, with the mean and the covariance of public gradients at the same weights, clipped in the same way: of P
coordinates, the span of m of them, and along everything else as much as each of them has that the others lack. What is
done to v without noise (a mask, a cut, a clip of the whole update) enters by the straight line that comes nearest to it
for Gaussian numbers (Bussgang 1952), what that leaves counts as noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from harness.attacks.candidates import drawn_of_class, dummy_gradient
from harness.attacks.labels import round_to_total
from harness.attacks.residual import knows_clip, probability_sent, white_variance, whitened
from harness.base.coding import ByChance, normal_signs
from harness.base.errors import UsageError
from harness.base.vectors import group_sums, spread
from harness.observation import Observation

DRAWS = 320
FEWEST = 64
"""Public examples that a covariance of gradients is estimated from, at least."""
# As many numbers of gradients are held at once: 512 MiB in double precision.
_HELD = 2**26
# Public gradients of each class by which the coordinates of a large network are chosen.
_PILOTS = 2
_TINY = 1e-30


def require_several(attack: str, observation: Observation, narrow: bool = False) -> None:
    """That one example among several can be told at all.

    Args:
        attack: its name.
        observation: what was read.
        narrow: whether a part of the coordinates serves it, see :attr:`Public.kept`.

    Raises:
        UsageError: the noise, the clip or public data are not known, or one example has no gradient of its own.
    """
    several = f"attack {attack!r} on {observation.examples} examples in one observation needs"
    noise, prior = observation.noise, observation.prior
    if prior is None:
        raise UsageError(f"{several} public data; use --prior auto, or --prior FILE.npz with data of your own")
    if observation.certainty is not None:
        other = "--attack spear or cpl" if observation.model.vocabulary is None else "--optimizer sgd"
        raise UsageError(
            f"{several} gradients that add up, which a step of {observation.optimizer.text} does not leave; use "
            f"{other}, or --batch-size 1"
        )
    if prior.size < FEWEST:
        raise UsageError(
            f"{several} {FEWEST} public examples for the covariance of their gradients, not {prior.size}; use --prior "
            "with more data"
        )
    if observation.disguises:
        raise UsageError(
            f"{several} images that are not transformed before their gradients: it undoes that of one image alone; use "
            "--batch-size 1 and one local step"
        )
    if noise is not None and noise.law == "unknown" and noise.unread:
        raise UsageError(
            f"{several} a model of all that the defense does, which no attack here has; use --batch-size 1 and one "
            "local step"
        )
    if noise is not None and (noise.deviation is None or noise.unread):
        raise UsageError(
            f"{several} noise of a known level, and this level follows private data or is published by nobody; use "
            "--batch-size 1 and one local step"
        )
    if observation.clipping is not None and not knows_clip(observation):
        raise UsageError(f"{several} a clip that all clients share; use --batch-size 1 and one local step")
    if observation.batches is not None:
        raise UsageError(
            f"{several} a gradient of each example, which BatchNorm mixes; use a network without it, or --batch-size 1"
        )
    if _draws(observation) < FEWEST and not (narrow and _can_be_narrowed(observation)):
        raise UsageError(
            f"{several} {FEWEST} public gradients of {observation.target.shape[1]} coordinates, which memory does not "
            "hold; use a smaller network"
        )


def _draws(observation: Observation) -> int:
    return min(DRAWS, _HELD // observation.target.shape[1])


def _can_be_narrowed(seen: Observation) -> bool:
    """Return whether what was read of some coordinates depends on these alone, and memory holds a few whole
    gradients."""
    alone = seen.carrying is None and seen.coding is None and (seen.noise is None or seen.noise.whitening is None)
    whole = seen.clipping is not None and seen.clipping.unit == "update"
    return alone and not whole and at_once(seen) >= _PILOTS


def at_once(seen: Observation) -> int:
    """Return how many whole gradients to hold at once."""
    return _HELD // seen.target.shape[1]


def example_gradients(
    seen: Observation, images: Tensor, labels: Tensor, chunk: int = 128, differentiable: bool = False
) -> Tensor:
    """Gradients (N, P), double, that images (N, ...) of classes (N,) alone would have at one row's weights, clipped as
    those of single examples are known to be."""
    clips = seen.clipping is not None and seen.clipping.unit == "example"
    alone = replace(seen, examples=1, update_model="avg", reading=None, correction=None)
    shape, parts = seen.model.image_shape, []
    for part in torch.arange(len(images)).split(max(chunk, 2)):
        some = part.repeat(2) if len(part) == 1 else part  # one row takes other kernels than many
        made = dummy_gradient(
            alone.take(torch.zeros_like(some).to(seen.target.device)),
            images[some].to(seen.target).reshape(-1, 1, *shape),
            labels[some].to(seen.target.device)[:, None],
            clips,
            differentiable,
        )
        parts.append(made[: len(part)] if differentiable else made[: len(part)].detach())
    together, coding = torch.cat(parts).double(), seen.coding
    return coding.of(together, seen.model.layout.sizes) if coding is not None and coding.linear else together


@dataclass(frozen=True)
class Public:
    """Public gradients at one row's weights.

    Attributes:
        gradients: (m, P), double, or (m, S). classes: (m,), theirs.
        kept: (S,), the coordinates that count where memory does not hold enough gradients of all of them; else None.
            What a part of what was read tells is no more than all of it tells, and as certain.
    """

    gradients: Tensor
    classes: Tensor
    kept: Tensor | None = None

    @classmethod
    def at(cls, seen: Observation, chunk: int = 128) -> "Public":
        classes, few = seen.model.classes, _draws(seen) < FEWEST
        count = max(2, (FEWEST if few else _draws(seen)) // classes)
        images = torch.cat([drawn_of_class(seen, label, count, "among") for label in range(classes)]).clamp(0, 1)
        labels = torch.arange(classes).repeat_interleave(count)
        own = labels.to(seen.target.device)
        if not few:
            return cls(example_gradients(seen, images, labels, chunk), own)
        kept = _most_telling(seen, images.unflatten(0, (classes, -1))[:, :_PILOTS].flatten(0, 1), labels)
        empty = cls(torch.zeros(0), own, kept)
        return replace(empty, gradients=torch.cat(list(empty.made(seen, images, labels, chunk))))

    def made(self, seen: Observation, images: Tensor, labels: Tensor, chunk: int) -> Iterator[Tensor]:
        """:func:`example_gradients` of the coordinates that count, part by part."""
        count = len(images) if self.kept is None else max(2, at_once(seen))
        for part in torch.arange(len(images)).split(count):
            whole = example_gradients(seen, images[part], labels[part], min(chunk, max(2, count)))
            yield whole if self.kept is None else whole[:, self.kept]

    def part_of(self, seen: Observation) -> Observation:
        """Return what was read of the coordinates that count. Its network's layout is that of all."""
        if self.kept is None:
            return seen
        noise = seen.noise
        if noise is not None and isinstance(noise.deviation, Tensor):
            noise = replace(noise, deviation=noise.deviation.to(seen.target.device)[self.kept])
        return replace(seen, target=seen.target[:, self.kept], noise=noise)

    @cached_property
    def means(self) -> Tensor:
        """(K, P) of each class."""
        return self.gradients.unflatten(0, (int(self.classes[-1]) + 1, -1)).mean(1)


def _most_telling(seen: Observation, images: Tensor, labels: Tensor) -> Tensor:
    """Coordinates (S,): those of the tensors that differ most, of examples (m, ...), over the noise; of the last one,
    the first."""
    count = len(images) // seen.model.classes
    own = labels.unflatten(0, (seen.model.classes, -1))[:, :count].flatten()
    total, squares = torch.zeros(seen.target.shape[1]).to(seen.target).double(), torch.zeros(1)
    for part in torch.arange(len(images)).split(max(2, at_once(seen))):
        made = example_gradients(seen, images[part], own[part], len(part))
        total, squares = total + made.sum(0), squares.to(total) + made.square().sum(0)
    known = None if seen.noise is None else seen.noise.deviation
    deviation = torch.as_tensor(1.0 if known is None else known)
    told = (squares / len(images) - (total / len(images)).square()) / deviation.to(total).square().clamp_min(_TINY)
    tensors = torch.arange(len(told), device=told.device).split(seen.model.layout.sizes)
    best = sorted(tensors, key=lambda one: -float(told[one].mean().nan_to_num(0.0)))
    return torch.cat(best)[: _HELD // (2 * FEWEST)].sort().values


# Of one row, as long as somebody holds its observation: what serves all classes that are asked for.
_PUBLIC: WeakKeyDictionary[Observation, Public] = WeakKeyDictionary()
_OTHERS: WeakKeyDictionary[Observation, "Others"] = WeakKeyDictionary()


def public_at(seen: Observation, chunk: int = 128) -> Public:
    """:meth:`Public.at`, computed once for one observation."""
    if seen not in _PUBLIC:
        _PUBLIC[seen] = Public.at(seen, chunk)
    return _PUBLIC[seen]


def others_at(seen: Observation, label: int, chunk: int = 128) -> "Others":
    """:class:`Others`, computed once for one observation where no labels are known: then no class makes a difference.

    Args:
        seen, label: see there.
        chunk: public examples whose gradients are computed together.
    """
    if seen.labels is not None:
        return Others(seen, public_at(seen, chunk), label)
    if seen not in _OTHERS:
        _OTHERS[seen] = Others(seen, public_at(seen, chunk), label)
    return _OTHERS[seen]


class _Spread:
    """A covariance rowsᵀ rows + diag(variance) whose inverse is at hand (Woodbury).

    Args:
        rows: (m, P). variance: (P,).
        same: (m, m), 1 for rows that were centred together.
    """

    def __init__(self, rows: Tensor, variance: Tensor, same: Tensor) -> None:
        # What is no number is left to the residuals, which no decomposition has to take.
        rows, variance = rows.nan_to_num(0.0, 0.0, 0.0), variance.nan_to_num(1.0, 1.0)
        scaled = rows / variance.sqrt()
        inner = scaled @ scaled.T
        eye = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        scale = inner.diagonal().mean().clamp_min(_TINY)
        # Along what the others do not span each row has its residual on them: 1 over the inverse's diagonal.
        alone = 1 / torch.linalg.inv(inner + scale * (same + 1e-8 * eye)).diagonal()
        beyond = 1 + alone.sum() / rows.shape[1]
        self._deviation = (variance * beyond).sqrt()
        self._rows = scaled / beyond.sqrt()
        self._factor = torch.linalg.cholesky(inner / beyond + eye)

    def lengths(self, residuals: Tensor) -> Tensor:
        """(C,) rᵀ A⁻¹ r of residuals r (C, P)."""
        whitened = residuals / self._deviation
        explained = torch.linalg.solve_triangular(self._factor, self._rows @ whitened.T, upper=False)
        return whitened.square().sum(1) - explained.square().sum(0)

    def solved(self, residuals: Tensor) -> Tensor:
        """A⁻¹ r (C, P) of residuals r (C, P)."""
        whitened = residuals / self._deviation
        inner = torch.cholesky_solve(self._rows @ whitened.T, self._factor)
        return (whitened - inner.T @ self._rows) / self._deviation


class Others:
    """The Gaussian of what was read in one row, less what one example of a class would have contributed.

    Args:
        seen: of one row, known to be fit for it (:func:`require_several`).
        public: gradients at its weights.
        label: the class of that one example, which the labels of the others follow from where all are known.
    """

    def __init__(self, seen: Observation, public: Public, label: int) -> None:
        seen = public.part_of(seen)
        self._count, known = seen.unknowns, seen.labels is not None
        mean, rows, same = _known(seen, public, label) if known else _unknown(seen, public)
        whole = mean + public.means[label] / self._count if known else mean * self._count / (self._count - 1)
        variance = rows.square().sum(0) * self._count / (self._count - 1)
        self._gain, expected, left = _passed(seen, whole, variance)
        # What was read, less all but that one example.
        self._rest = seen.target[0].double() - expected - self._gain * (mean - whole)
        self._noise, self._spread = (
            seen.noise,
            _Spread(whitened(seen.noise, rows * self._gain), _noise(seen, left), same),
        )

    def _residual(self, gradients: Tensor) -> Tensor:
        return whitened(self._noise, self._rest - self._gain * gradients / self._count)

    def improbability(self, gradients: Tensor) -> Tensor:
        """Negative log-likelihood (C,), up to a constant, were one of these gradients (C, P) among those behind it."""
        return self._spread.lengths(self._residual(gradients)) / 2

    def slope(self, gradients: Tensor) -> Tensor:
        """The derivatives (C, P) of the log-likelihood by the gradients (C, P) of that example."""
        solved = whitened(self._noise, self._spread.solved(self._residual(gradients)), transposed=True)
        return self._gain * solved / self._count


def _unknown(seen: Observation, public: Public) -> tuple[Tensor, Tensor, Tensor]:
    """Return three parts for all examples but one: the mean (P,) of what they contribute, rows (m, P) whose squares sum
    to its covariance, and which rows (m, m) were centred together."""
    count, gradients = seen.unknowns, public.gradients
    mean, scale = gradients.mean(0), math.sqrt((count - 1) / (len(gradients) - 1)) / count
    return mean * (count - 1) / count, (gradients - mean) * scale, gradients.new_ones(len(gradients), len(gradients))


def _known(seen: Observation, public: Public, label: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three parts of :func:`_unknown` where the classes of the examples are known, for all but one of
    ``label``."""
    assert seen.labels is not None
    count, classes = seen.unknowns, public.classes
    present = seen.labels[0].bincount(minlength=len(public.means)).double() * count / seen.examples
    present[label] = (present[label] - 1).clamp_min(0)
    there = present[classes] > 0
    scale = (present[classes] / (len(classes) // len(public.means) - 1)).sqrt() / count
    rows = ((public.gradients - public.means[classes]) * scale[:, None])[there]
    return present @ public.means / count, rows, (classes[there, None] == classes[there]).double()


def likely_labels(seen: Observation, public: Public) -> Tensor:
    """The most probable classes (n,) of one row's examples, sorted, by the whole of what was read.

    How many there are of each class is taken for Gaussian, with the mean and the covariance of n draws of equal chance.
    """
    count, means = seen.unknowns, public.means
    classes, each = len(means), len(public.classes) // len(means)
    mean, variance = means.mean(0), public.gradients.var(0) / count
    gain, expected, left = _passed(seen, mean, variance)
    rows = (public.gradients - means[public.classes]) * (gain / math.sqrt(classes * (each - 1) * count))
    same = (public.classes[:, None] == public.classes).double()
    covariance = _Spread(whitened(seen.noise, rows), _noise(seen, left), same)
    effects = whitened(seen.noise, gain * (means - mean) / count)
    solved = covariance.solved(effects)
    evidence = solved @ whitened(seen.noise, seen.target[0].double() - expected)
    eye = torch.eye(classes, dtype=means.dtype, device=means.device)
    prior = (eye - 1 / classes) * count / classes
    counts = count / classes + prior @ torch.linalg.solve(eye + solved @ effects.T @ prior, evidence)
    return round_to_total(counts, count)


def _noise(seen: Observation, left: Tensor) -> Tensor:
    """The variance (P,) of the known noise, of the error that is always allowed for, and of what is ``left`` (P,)."""
    return white_variance(seen, sharp=True, left=left)[0]


def _passed(seen: Observation, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what becomes of Gaussian numbers v (P,) before noise: gains, expected values, and variance that is no part
    of gain * v."""
    gain = _clip_factor(seen, mean, variance)
    mean, variance = gain * mean, gain.square() * variance
    inside, expected, power = _cut(seen.cut, mean, variance)
    if seen.coding is not None and seen.coding.signs:
        inside, expected, power = _signed(seen, mean, variance)
    share, squared = torch.ones_like(mean), torch.ones_like(mean)
    if seen.carrying is not None:
        looks = seen.carrying.looks if seen.carrying.choice == "chance" else 1
        typical = (mean.square() + variance).sqrt().to(seen.target)[None]
        share = probability_sent(seen, typical)[0].double().expand_as(mean)
        squared = share.square() + share * (1 - share) / looks
    elif seen.sparse:
        share = squared = (seen.target[0] != 0).double()
    left = squared * power - (share * expected).square() - (share * inside).square() * variance
    if isinstance(seen.coding, ByChance):
        left = left + _of_chance(seen, seen.coding, (mean.square() + variance).sqrt())
    return gain * inside * share, share * expected, left.clamp_min(0)


def _signed(seen: Observation, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three parts of :func:`_cut` for numbers of which only the signs were sent."""
    assert seen.coding is not None
    typical, coding = (mean.square() + 2 / math.pi * variance).sqrt(), seen.coding
    sizes = torch.cat([coding.size(part).expand_as(part) for part in typical.split(seen.model.layout.sizes)])
    return normal_signs(mean, variance, sizes, math.copysign(1.0, coding.unit))


def _of_chance(seen: Observation, coding: ByChance, typical: Tensor) -> Tensor:
    """The variance (P,) that rounding by chance adds to numbers of a typical magnitude: beyond a step, of all places
    between two multiples alike."""
    step = coding.largest(seen.target, seen.model.layout.sizes)[0].double() / coding.steps
    return torch.where(typical < step, typical * (step - typical), step.square() / 6)


def _clip_factor(seen: Observation, mean: Tensor, variance: Tensor) -> Tensor:
    """Return what the clip of a whole update multiplies each coordinate by (P,), at its usual length."""
    if seen.clipping is None or seen.clipping.unit != "update":
        return torch.ones_like(mean)
    assert seen.clipping.bound is not None
    bound = seen.clipping.bound / (1 if seen.update_model == "first" else seen.local_steps)
    groups = seen.clipping_groups
    lengths = group_sums((mean.square() + variance)[None], groups).sqrt().clamp_min(_TINY)
    return spread((bound / lengths).clamp_max(1), groups)[0]


def _cut(limit: float | None, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three parts for normal numbers that are cut at a magnitude: the chance that one is not cut, the mean and
    the mean square afterwards."""
    if limit is None:
        return torch.ones_like(mean), mean, mean.square() + variance
    width = variance.sqrt().clamp_min(_TINY)
    low, high = (-limit - mean) / width, (limit - mean) / width
    below, above = torch.special.ndtr(low), torch.special.ndtr(-high)
    inside = (1 - below - above).clamp_min(0)
    at_low, at_high = ((-edge.square() / 2).exp() / math.sqrt(math.tau) for edge in (low, high))
    expected = limit * (above - below) + mean * inside + width * (at_low - at_high)
    partial = (mean.square() + variance) * inside + width * ((mean - limit) * at_low - (mean + limit) * at_high)
    return inside, expected, limit**2 * (above + below) + partial
