"""Noise that is correlated over the rounds (DP-FTRL): of a binary tree, of a banded matrix, and of a few buffers.

The noise of a round is x_t of C x = g with new g_t in each round, so that what is published of all rounds is one
Gaussian mechanism with the strategy C. Sources: Kairouz et al. 2021 (tree); Choquette-Choo et al. 2023 (banded);
McMahan et al. 2024 (BLT); TensorFlow Federated 63f73da4, JAX Privacy 8967688c, and pfl 0.6.0,
``pfl/privacy/ftrl_mechanism.py``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from scipy.optimize import minimize
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.ranges import LISTED, Clip, Count, Delta, Positive, Sigma
from harness.claims.central import calibrated_noise, root_column
from harness.defenses.claimed import of_filter, settings
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipUpdate, GaussianNoise
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.memory import Remembered
from harness.federation.operations import Operation
from harness.federation.taps import Point
from harness.observation import Noise


@dataclass(frozen=True)
class CorrelatedNoise(GaussianNoise):
    """The base: the server keeps ``count`` vectors ("buffers") and adds to the sum what follows from them."""

    points = (Point.AGGREGATE,)
    steady: ClassVar[bool] = False

    replays = True

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        noise, buffers = torch.zeros_like(total), context.server.get("buffers")
        # Who comes in later draws the noise of the rounds before again.
        first = 0 if buffers is None else context.round
        buffers = total.new_zeros(self.count, len(total)) if buffers is None else buffers
        for number in range(first, context.round + 1):
            now = replace(context, round=number)
            fresh = self.deviation(now) * now.server_gaussian(self.purpose, total)
            noise, buffers = self.next(buffers, fresh, number)
        context.server["buffers"] = buffers
        return total + noise

    def noise(self, context: RoundContext) -> Noise | None:
        fresh = super().noise(context)
        if fresh is None or fresh.deviation is None:
            return fresh
        mixed = _mixture(self, context.round)
        length = math.hypot(*mixed)
        return replace(fresh.times(length), mixture=tuple(one / length for one in mixed))

    @property
    def count(self) -> int:
        """Return the number of vectors that are kept."""
        raise NotImplementedError

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        """The noise (P,) of a round, and the buffers (count, P) after it, of new independent noise (P,)."""
        raise NotImplementedError

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"buffers": Remembered((self.count, None))}


@lru_cache(maxsize=4096)
def _mixture(noise: CorrelatedNoise, round_index: int) -> tuple[float, ...]:
    """Return how much of the new noise of each round up to ``round_index`` (T,) is in the noise of that round."""
    made, buffers = torch.zeros(0), torch.zeros(noise.count, round_index + 1, dtype=torch.float64)
    for number, fresh in enumerate(torch.eye(round_index + 1, dtype=torch.float64)):
        made, buffers = noise.next(buffers, fresh, number)
    return tuple(made.tolist())


@dataclass(frozen=True)
class TreeNoise(CorrelatedNoise):
    """The noise in the sum of the rounds so far is that of few nodes of a tree, which ends after ``leaves`` rounds.

    ``efficient``: a node's noise is the best mean of its own and of what its two halves add up to, which is less noise
    and, since it follows from the noisy nodes, costs nothing (Honaker 2015, estimation from below).
    """

    leaves: int = 1
    efficient: bool = False

    @property
    def count(self) -> int:
        return self.leaves.bit_length()

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        now = round_index % self.leaves + 1
        buffers = torch.zeros_like(buffers) if now == 1 else buffers.clone()
        # The node that this round completes; those below it end in it.
        full, before = (now & -now).bit_length() - 1, buffers.sum(0)
        carried, spread, variance = torch.zeros_like(fresh), 1.0, 1.0
        for level in range(full if self.efficient else 0):
            mean = 1 / (1 + 1 / (2 * variance))  # the variance of the mean of both
            half = mean / (2 * variance)
            carried = half * (buffers[level] + carried)
            spread, variance = mean**2 + half**2 * spread, mean
        buffers[:full] = 0
        buffers[full] = carried + spread**0.5 * fresh  # all that is new in this round is released in one sum
        return buffers.sum(0) - before, buffers

    def words(self) -> str:
        return f"noise of a tree over {self.leaves} rounds, std sigma*C of each node with sigma={self.level:g}"


@dataclass(frozen=True)
class ToeplitzNoise(CorrelatedNoise):
    """Noise of a banded Toeplitz matrix with first column ``column``; the buffers are the noises of the last rounds."""

    column: tuple[float, ...] = (1.0,)

    @property
    def count(self) -> int:
        return max(len(self.column) - 1, 1)

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        weights = buffers.new_tensor([*self.column[1:], *([0.0] * (len(self.column) == 1))])
        noise = (fresh - weights @ buffers) / self.column[0]
        return noise, torch.cat([noise[None], buffers[:-1]])

    def words(self) -> str:
        return f"noise of a matrix with {len(self.column)} bands, std sigma*C before it with sigma={self.level:g}"


@dataclass(frozen=True)
class MatrixNoise(CorrelatedNoise):
    """Noise of the matrix of :func:`best_bands` over ``rounds``, which are all that it has; ``by_rows``: see there."""

    rounds: int = 1
    bands: int = 1
    by_rows: bool = False

    @property
    def count(self) -> int:
        return max(self.bands - 1, 1)

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        if round_index >= self.rounds:
            raise UsageError(
                f"num_iterations={self.rounds} has no noise for round {round_index + 1}; raise it to all rounds"
            )
        own, *others = best_bands(self.rounds, self.bands, self.by_rows)[round_index].tolist()
        buffers = torch.zeros_like(buffers) if round_index == 0 else buffers
        noise = (fresh - buffers.new_tensor(others) @ buffers[: len(others)]) / own
        return noise, torch.cat([noise[None], buffers[:-1]])

    def words(self) -> str:
        return f"noise of a matrix with {self.bands} bands, std sigma*C before it with sigma={self.level:.4g}"


@lru_cache(maxsize=8)
def best_bands(rounds: int, bands: int, by_rows: bool = False) -> Tensor:
    """Return entries C[t, t - k] (T, bands) of the lower triangular C whose inverse leaves least in all prefix sums.

    Its columns have length 1: the least of the sum of squares of A C^-1, A of ones (Choquette-Choo et al. 2023, eq. 6).
    ``by_rows``: the L of C^T C = L L^T, which pfl takes for it; then rows have that length, and the first column more.
    """
    bands = min(bands, rounds)
    place, band = torch.arange(rounds)[:, None], torch.arange(bands)
    inside = place + band < rounds

    def matrix(columns: Tensor) -> Tensor:
        scaled = torch.nn.functional.normalize(columns * inside, dim=1)
        rows, cells = (place + band)[inside], place.expand(-1, bands)[inside]
        return scaled.new_zeros(rounds, rounds).index_put((rows, cells), scaled[inside])

    def error(values: np.ndarray) -> tuple[float, np.ndarray]:
        columns = torch.from_numpy(values).reshape(rounds, bands).requires_grad_()
        with torch.enable_grad():
            ones = torch.ones(rounds, rounds, dtype=torch.float64).tril()
            loss = torch.linalg.solve_triangular(matrix(columns).T, ones.T, upper=True).square().sum() / rounds
            (slope,) = torch.autograd.grad(loss, columns)
        return float(loss.detach()), slope.flatten().numpy()

    first = np.tile(root_column(bands), rounds)
    found = minimize(error, first, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    made = matrix(torch.from_numpy(found.x).reshape(rounds, bands))
    made = torch.linalg.cholesky(made.T @ made) if by_rows else made
    return torch.stack([torch.cat([made.new_zeros(one), made.diagonal(-one)]) for one in range(bands)], 1)


@dataclass(frozen=True)
class BufferedNoise(CorrelatedNoise):
    """Noise of the matrix whose first column is 1 and then the sum of scale decay^(t-1): a buffer for each pair."""

    decays: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return len(self.decays)

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        decays, scales = buffers.new_tensor(self.decays)[:, None], buffers.new_tensor(self.scales)[:, None]
        noise = fresh - buffers.sum(0)
        return noise, decays * buffers + scales * noise

    def words(self) -> str:
        return f"noise of {len(self.decays)} buffers (BLT), std sigma*C before them with sigma={self.level:g}"


@DEFENSES.register("tff:tree_aggregation")
@validated_defense
class TreeAggregation(Defense):
    """Clips updates to ``l2_norm_clip`` and adds noise of a tree, a new one after ``restart_frequency`` rounds.

    ``use_efficient``: sums of rounds have the least noise that follows from the tree, as TensorFlow Federated has it.
    """

    noise_multiplier: Sigma = 1.0
    l2_norm_clip: Clip = 1.0
    restart_frequency: Count = 1024
    use_efficient: bool = True

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.l2_norm_clip, "whole")
        noise = TreeNoise(
            self.noise_multiplier, of=clip, at=Point.AGGREGATE, leaves=self.restart_frequency,
            efficient=self.use_efficient,
        )  # fmt: skip
        names = ("noise_multiplier", "l2_norm_clip", "restart_frequency", "use_efficient")
        more = settings(clients_per_round=cohort.clients_per_round)
        return [clip, noise, of_filter("tff:tree_aggregation", self, names, clip, noise.at, **more)]


@DEFENSES.register("jax_privacy:BandedToeplitz")
@validated_defense
class BandedToeplitz(Defense):
    """Clips updates to ``clip`` and adds noise of a matrix with ``bands`` of square-root coefficients.

    ``min_separation``: rounds between two of one client, which the server's sampling keeps.
    """

    noise_multiplier: Sigma = 1.0
    clip: Clip = 1.0
    bands: Annotated[int, Field(ge=1, le=1024)] = 8
    min_separation: Count = 1

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clip, "whole")
        column = tuple(root_column(self.bands))
        noise = ToeplitzNoise(self.noise_multiplier, of=clip, at=Point.AGGREGATE, column=column)
        names = ("noise_multiplier", "clip", "bands", "min_separation")
        return [clip, noise, of_filter("jax_privacy:BandedToeplitz", self, names, clip, noise.at)]


@DEFENSES.register("pfl:BandedMatrixFactorization")
@validated_defense
class BandedMatrixFactorization(Defense):
    """Clips updates to ``clipping_bound`` and adds noise of the best matrix with ``min_separation`` - 1 bands.

    The noise is calibrated to ``epsilon`` and ``delta`` as pfl's accountant does, for ``cohort_size`` of
    ``population`` users (None: those of the run), over ``num_iterations`` rounds. ``corrected``: columns of the matrix
    have length 1, as the paper demands, and not rows.
    """

    clipping_bound: Clip = 1.0
    num_iterations: Annotated[int, Field(ge=1, le=2048)] = 100
    min_separation: Annotated[int, Field(ge=2, le=1024)] = 48
    epsilon: Positive = 2.0
    delta: Delta = 1e-6
    cohort_size: Positive | None = None
    population: Positive | None = None
    corrected: bool = False

    def operations(self, cohort: Cohort) -> list[Operation]:
        rounds, size = self.num_iterations, self.cohort_size or cohort.clients_per_round
        population = self.population or cohort.clients
        if size > population:
            raise UsageError(f"cohort_size={size:g} is above the population {population:g}; lower it")
        times = -(-rounds // self.min_separation)
        clip = ClipUpdate(self.clipping_bound, "whole")
        noise = MatrixNoise(
            calibrated_noise(size / population, times, self.epsilon, self.delta), of=clip, at=Point.AGGREGATE,
            rounds=rounds, bands=self.min_separation - 1, by_rows=not self.corrected,
        )  # fmt: skip
        names = ("clipping_bound", "num_iterations", "min_separation", "epsilon", "delta", "corrected")
        more = settings(cohort_size=size, population=population)
        return [clip, noise, of_filter("pfl:BandedMatrixFactorization", self, names, clip, noise.at, **more)]


Parts = Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1, max_length=16), LISTED]


@DEFENSES.register("jax_privacy:BufferedToeplitz")
@validated_defense
class BufferedToeplitz(Defense):
    """Clips updates to ``clip`` and adds noise that buffers correlate (BLT), by ``buf_decay`` and ``output_scale``."""

    noise_multiplier: Sigma = 1.0
    clip: Clip = 1.0
    buf_decay: Parts = (0.9,)
    output_scale: Parts = (0.1,)
    min_separation: Count = 1

    @model_validator(mode="after")
    def _pairs(self) -> "BufferedToeplitz":
        if len(self.buf_decay) != len(self.output_scale) or sum(self.output_scale) > 1:
            raise ValueError("buf_decay and output_scale are as many, and output_scale adds up to 1 at most")
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clip, "whole")
        noise = BufferedNoise(
            self.noise_multiplier, of=clip, at=Point.AGGREGATE, decays=self.buf_decay, scales=self.output_scale
        )
        names = ("noise_multiplier", "clip", "buf_decay", "output_scale", "min_separation")
        return [
            clip,
            noise,
            of_filter("jax_privacy:BufferedToeplitz", self, names, clip, noise.at, **settings(max_participations=None)),
        ]
