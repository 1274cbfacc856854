"""One example among several that were read together: the others are what public gradients vary by.

What was read is v + noise, where v is the mean of n gradients. If x is one of them, the others together are nearly
Gaussian, with the mean and the covariance of public gradients at the same weights, clipped in the same way: of P
coordinates, the span of m of them, and along everything else as much as each of them has that the others lack. What is
done to v without noise (a mask, a cut, a clip of the whole update) enters by the straight line that comes nearest to it
for Gaussian numbers (Bussgang 1952), what that leaves counts as noise.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from harness.attacks.candidates import dummy_gradient
from harness.attacks.covered_zeros import probability_sent
from harness.attacks.public_examples import drawn_of_class
from harness.attacks.residual import deviation_of, knows_clip
from harness.errors import UsageError
from harness.observation import Observation
from harness.vectors.layout import group_sums, spread

DRAWS = 320
FEWEST = 64
"""Public examples that a covariance of gradients is estimated from, at least."""
# As many numbers of public gradients are held at once: 512 MiB in double precision.
_HELD = 2**26
_TINY = 1e-30


def require_several(attack: str, observation: Observation) -> None:
    """That one example among several can be told at all.

    Raises:
        UsageError: the noise, the clip or public data are not known, or one example has no gradient of its own.
    """
    several = f"attack {attack!r} on {observation.examples} examples in one observation needs"
    noise, prior = observation.noise, observation.prior
    if prior is None:
        raise UsageError(f"{several} public data; use --prior auto, or --prior FILE.npz with data of your own")
    if prior.size < FEWEST:
        raise UsageError(
            f"{several} {FEWEST} public examples for the covariance of their gradients, not {prior.size}; use --prior "
            "with more data"
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
    if _draws(observation) < FEWEST:
        raise UsageError(
            f"{several} {FEWEST} public gradients of {observation.target.shape[1]} coordinates, which memory does not "
            "hold; use a smaller network"
        )


def _draws(observation: Observation) -> int:
    return min(DRAWS, _HELD // observation.target.shape[1])


def example_gradients(seen: Observation, images: Tensor, labels: Tensor, chunk: int = 128) -> Tensor:
    """Gradients (N, P), double, that images (N, ...) of classes (N,) alone would have at one row's weights, clipped as
    those of single examples are known to be."""
    clips = seen.clipping is not None and seen.clipping.unit == "example"
    alone, shape, parts = replace(seen, examples=1, update_model="avg", correction=None), seen.model.image_shape, []
    for part in torch.arange(len(images)).split(max(chunk, 2)):
        some = part.repeat(2) if len(part) == 1 else part  # one row takes other kernels than many
        made = dummy_gradient(
            alone.take(torch.zeros_like(some).to(seen.target.device)),
            images[some].to(seen.target).reshape(-1, 1, *shape),
            labels[some].to(seen.target.device)[:, None],
            clips,
            differentiable=False,
        )
        parts.append(made[: len(part)].detach())
    return torch.cat(parts).double()


@dataclass(frozen=True)
class Public:
    """Public gradients at one row's weights: (m, P), double, and their classes (m,)."""

    gradients: Tensor
    classes: Tensor

    @classmethod
    def at(cls, seen: Observation, chunk: int = 128) -> "Public":
        count, classes = max(2, _draws(seen) // seen.model.classes), seen.model.classes
        images = torch.cat([drawn_of_class(seen, label, count, "among") for label in range(classes)]).clamp(0, 1)
        labels = torch.arange(classes).repeat_interleave(count)
        return cls(example_gradients(seen, images, labels, chunk), labels.to(seen.target.device))

    @cached_property
    def means(self) -> Tensor:
        """(K, P) of each class."""
        return self.gradients.unflatten(0, (int(self.classes[-1]) + 1, -1)).mean(1)


class Others:
    """The Gaussian of what was read in one row, less what one example of a class would have contributed.

    Args:
        seen: of one row, known to be fit for it (:func:`require_several`).
        public: gradients at its weights.
        label: the class of that one example, which the labels of the others follow from where all are known.
    """

    def __init__(self, seen: Observation, public: Public, label: int) -> None:
        self._count, target = seen.examples, seen.target[0].double()
        mean, deviations = self._of_others(seen, public, label)
        mean_of_all = mean + public.means[label] / self._count if seen.labels is not None else (
            mean * self._count / (self._count - 1)
        )  # fmt: skip
        own = deviations.square().sum(0) * self._count / (self._count - 1)
        gain, expected, left = _passed(seen, mean_of_all, own)
        self._gain = gain
        # What was read, less all but that one example.
        self._rest = target - expected - gain * (mean - mean_of_all)
        variance = deviation_of(seen, sharp=True)[0].double().square() + left
        self._solve(deviations * gain, variance)

    def _of_others(self, seen: Observation, public: Public, label: int) -> tuple[Tensor, Tensor]:
        """The mean (P,) of what the others contribute, and rows (m, P) whose squares sum to its covariance."""
        count, gradients, classes = self._count, public.gradients, public.classes
        if seen.labels is None:
            mean = gradients.mean(0)
            self._same = torch.ones(len(classes), len(classes), dtype=torch.float64, device=classes.device)
            scale = math.sqrt((count - 1) / (len(classes) - 1)) / count
            return mean * (count - 1) / count, (gradients - mean) * scale
        present = seen.labels[0].bincount(minlength=len(public.means)).double()
        present[label] = (present[label] - 1).clamp_min(0)
        there = present[classes] > 0
        each = len(classes) // len(public.means)
        scale = (present[classes] / (each - 1)).sqrt() / count
        deviations = ((gradients - public.means[classes]) * scale[:, None])[there]
        self._same = (classes[there, None] == classes[there]).double()
        return (present @ public.means) / count, deviations

    def _solve(self, rows: Tensor, variance: Tensor) -> None:
        """Keeps what the inverse of rowsᵀ rows + diag(variance) is applied by (Woodbury)."""
        size = len(rows)
        scaled = rows / variance.sqrt()
        inner = scaled @ scaled.T
        scale = inner.diagonal().mean().clamp_min(_TINY)
        eye = torch.eye(size, dtype=torch.float64, device=rows.device)
        # Along what the others do not span each row has its residual on them: 1 over the inverse's diagonal.
        alone = 1 / torch.linalg.inv(inner + scale * (self._same + 1e-8 * eye)).diagonal()
        beyond = 1 + alone.sum() / rows.shape[1]
        self._deviation = (variance * beyond).sqrt()
        self._rows = scaled / beyond.sqrt()
        self._factor = torch.linalg.cholesky(inner / beyond + eye)

    def improbability(self, gradients: Tensor) -> Tensor:
        """Negative log-likelihood (C,), up to a constant, were one of these gradients (C, P) among those behind it."""
        whitened = (self._rest - self._gain * gradients / self._count) / self._deviation
        explained = torch.linalg.solve_triangular(self._factor, self._rows @ whitened.T, upper=False)
        return (whitened.square().sum(1) - explained.square().sum(0)) / 2

    def slope(self, gradient: Tensor) -> Tensor:
        """The derivative (P,) of the log-likelihood by the gradient (P,) of that example."""
        whitened = (self._rest - self._gain * gradient / self._count) / self._deviation
        inner = torch.cholesky_solve((self._rows @ whitened)[:, None], self._factor)[:, 0]
        return self._gain * (whitened - inner @ self._rows) / self._deviation / self._count


def _passed(seen: Observation, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What becomes of Gaussian numbers v (P,) before noise: gains, expected values, and variance that is no part of
    gain * v."""
    gain = _clip_factor(seen, mean, variance)
    mean, variance = gain * mean, gain.square() * variance
    inside, expected, power = _cut(seen.cut, mean, variance)
    share, squared = torch.ones_like(mean), torch.ones_like(mean)
    if seen.carrying is not None:
        looks = seen.carrying.looks if seen.carrying.choice == "chance" else 1
        typical = (mean.square() + variance).sqrt().to(seen.target)[None]
        share = probability_sent(seen, typical)[0].double().expand_as(mean)
        squared = share.square() + share * (1 - share) / looks
    elif seen.sparse:
        share = squared = (seen.target[0] != 0).double()
    left = squared * power - (share * expected).square() - (share * inside).square() * variance
    return gain * inside * share, share * expected, left.clamp_min(0)


def _clip_factor(seen: Observation, mean: Tensor, variance: Tensor) -> Tensor:
    """What the clip of a whole update multiplies each coordinate by (P,), at its usual length."""
    if seen.clipping is None or seen.clipping.unit != "update":
        return torch.ones_like(mean)
    assert seen.clipping.bound is not None
    bound = seen.clipping.bound / (1 if seen.update_model == "first" else seen.local_steps)
    groups = seen.clipping_groups
    lengths = group_sums((mean.square() + variance)[None], groups).sqrt().clamp_min(_TINY)
    return spread((bound / lengths).clamp_max(1), groups)[0]


def _cut(limit: float | None, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of normal numbers cut at a magnitude: the chance that one is not, the mean and the mean square afterwards."""
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
