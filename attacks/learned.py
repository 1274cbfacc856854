"""Learned: a linear inverse, fitted to public examples that pass through the same defense at the same weights.

It plays the round itself, so it needs to be told nothing of clipping, masks, bounds or noise: whatever the defense
does to what is read, it does to the public examples too. That takes victims who share weights.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.base.errors import UsageError
from harness.observation import Observation, Simulation, Tier

# The linear estimator of least mean square error, from examples of what it is to be estimated from.
#
# With images x and gradients g of N pairs, x^ = mu_x + K_xg (K_gg + lambda I)^-1 (g - mu_g): all covariances are
# between pairs, so that the matrix to be inverted is N by N however many coordinates a gradient has. It is the
# posterior mean where x is Gaussian with these pairs' moments and g is linear in x with independent noise of variance
# lambda / N (Kay, "Fundamentals of Statistical Signal Processing: Estimation Theory", 1993, section 12.3).

GRID = tuple(10 ** (-half / 2) for half in range(-4, 15))
"""What is tried as lambda, by the largest eigenvalue of K_gg."""


@dataclass(frozen=True)
class LinearInverse:
    """An estimator of images (D,) from gradients (P,).

    Attributes:
        middle: (P,), mean gradient. gradients: (N, P), less their mean.
        mean: (D,), mean image. weights: (N, D) float64, of each pair. penalty: lambda.
    """

    middle: Tensor
    gradients: Tensor
    mean: Tensor
    weights: Tensor
    penalty: float

    def of(self, gradient: Tensor) -> Tensor:
        """The image (D,) that is estimated from one gradient (P,)."""
        alike = self.gradients @ (gradient - self.middle)
        return self.mean + (alike.double() @ self.weights).to(self.mean)


def fit_inverse(images: Tensor, gradients: Tensor, read: Tensor | None = None) -> LinearInverse:
    """The estimator whose lambda leaves the least error when each pair is estimated from all others.

    Args:
        images: (N, D). gradients: (N, P), of the same pairs, as free of noise as they can be had.
        read: (N, P), what is read of the same pairs where that differs: the estimator meets such, noise and all.
    """
    spectrum = _Spectrum.of(images, gradients, gradients if read is None else read)
    errors = [spectrum.error(penalty) for penalty in spectrum.penalties()]
    return inverse(images, gradients, spectrum.penalties()[errors.index(min(errors))])


def inverse(images: Tensor, gradients: Tensor, penalty: float) -> LinearInverse:
    """The estimator from N pairs of images (N, D) and gradients (N, P) with lambda = ``penalty`` > 0."""
    mean, middle = images.mean(0), gradients.mean(0)
    apart = gradients - middle
    kernel = _centred(apart @ apart.T)
    ridge = kernel + penalty * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    weights = torch.linalg.solve(ridge, (images - mean).double())
    return LinearInverse(middle, apart, mean, weights, penalty)


@dataclass(frozen=True)
class _Spectrum:
    """K_gg = U diag(values) U^T, and all that depends on no lambda. ``kernel``: K between what is read and pairs."""

    values: Tensor
    vectors: Tensor
    images: Tensor
    kernel: Tensor

    @staticmethod
    def of(images: Tensor, gradients: Tensor, read: Tensor) -> "_Spectrum":
        middle = gradients.mean(0)
        apart = gradients - middle
        own = _centred(apart @ apart.T)
        values, vectors = torch.linalg.eigh(own)
        across = ((read - middle) @ apart.T).double()
        across = across - across.mean(1, keepdim=True)  # the rows of ``apart`` add up to zero, but for rounding
        return _Spectrum(
            values.clamp_min(0.0), vectors, vectors.T @ (images - images.mean(0)).double(), across @ vectors
        )

    def penalties(self) -> list[float]:
        largest = max(float(self.values.max()), 1e-30)
        return [share * largest for share in GRID]

    def error(self, penalty: float) -> float:
        """Mean squared error of estimating every pair from what is read of it by the others, in closed form.

        The estimator solves [K + lambda I, 1; 1^T, 0] [a; b] = [x; 0]. With M the upper left block of the inverse of
        that matrix, leaving pair i out changes a by -M[:, i] a_i / M_ii and b by -a_i / (N M_ii).
        """
        count = len(self.values)
        shrunk = self.vectors / (self.values + penalty)
        weights = shrunk @ self.images
        own = (shrunk * self.vectors).sum(1) - 1 / (count * penalty)
        leverage = (self.kernel * shrunk).sum(1) + 1 / count
        estimated = (self.kernel / (self.values + penalty)) @ self.images - (leverage / own)[:, None] * weights
        return float((estimated - self.vectors @ self.images).square().mean())


def _centred(kernel: Tensor) -> Tensor:
    """(N, N) in double precision with rows and columns that add up to zero, which rounding spoils."""
    kernel = kernel.double()
    kernel = kernel - kernel.mean(0)
    return kernel - kernel.mean(1, keepdim=True)


FLOATS = 2 * 10**8
"""The most numbers of simulated gradients that are held."""
FEWEST = 20


@ATTACKS.register("learned")
@validated_attack
class Learned(ClosedForm):
    """The linear estimator of least mean square error; images of a batch in the order of their labels.

    ``simulations``: at most so many public observations. They are learned from without noise where the defense can be
    played without; lambda is chosen by what is left of noisy ones.
    """

    simulations: Annotated[int, Field(ge=FEWEST, le=5000)] = 2000
    tier: ClassVar[Tier] = "informed"
    uses_labels: ClassVar[bool] = False

    def solved(self, observation: Observation) -> Tensor:
        """The estimates (R, n*D).

        Raises:
            UsageError: public examples cannot be run through the round, or too few of them fit into memory.
        """
        if observation.simulation is None:
            raise UsageError(
                "attack 'learned' runs public examples through the round of victims who share weights; use "
                "--shared-weights and --prior auto (rounds with control variates cannot be played so)"
            )
        networks, which = observation.weights.unique(dim=0, return_inverse=True)
        inverses = [_fit(self._task(observation, weights)) for weights in networks]
        # One at a time: products of several rows take kernels that differ by how many there are.
        made = [inverses[number].of(row) for number, row in zip(which.tolist(), observation.target, strict=True)]
        return torch.stack(made)

    def effort(self, observation: Observation) -> int:
        return self._count(observation) if observation.simulation else 0

    def _task(self, observation: Observation, weights: Tensor) -> "_Task":
        assert observation.simulation is not None
        bits = hashlib.sha256(weights.detach().cpu().numpy().tobytes()).digest()
        return _Task(observation.simulation, bits, self._count(observation), observation.noise is not None, weights)

    def _count(self, observation: Observation) -> int:
        assert observation.simulation is not None
        fitting = FLOATS // observation.target.shape[1]
        count = min(self.simulations, fitting, observation.simulation.count)
        if count < FEWEST:
            raise UsageError(
                f"attack 'learned' has room for {fitting} simulated gradients of this network and needs {FEWEST}; use "
                "a smaller --model, or another attack"
            )
        return count


@dataclass(frozen=True)
class _Task:
    """Task that an inverse is fitted to: public examples under some weights (P,), which ``bits`` stand for."""

    simulation: Simulation
    bits: bytes
    count: int
    noisy: bool
    weights: Tensor = field(compare=False)


@lru_cache(maxsize=2)
def _fit(task: _Task) -> LinearInverse:
    quiet = task.simulation.play(task.weights, task.count, quiet=True)
    order = quiet.labels.sort(dim=1, stable=True).indices
    images = quiet.images[torch.arange(len(order), device=order.device)[:, None], order].flatten(1)
    read = task.simulation.play(task.weights, task.count, quiet=False).gradients if task.noisy else None
    return fit_inverse(images, quiet.gradients, read)
