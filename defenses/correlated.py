"""Noise that is correlated over the rounds (DP-FTRL): of a binary tree, of a banded matrix, and of a few buffers.

The noise of a round is x_t of C x = g with new g_t in each round, so that what is published of all rounds is one
Gaussian mechanism with the strategy C. Sources: Kairouz et al. 2021 (tree); Choquette-Choo et al. 2023 (banded);
McMahan et al. 2024 (BLT); TensorFlow Federated 63f73da4 and JAX Privacy 8967688c.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.base.ranges import Clip, Count, Sigma
from harness.claims.central import root_strategy
from harness.defenses.claimed import of_filter, settings
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipUpdate, GaussianNoise
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.memory import Remembered
from harness.federation.operations import Operation
from harness.federation.taps import Point


@dataclass(frozen=True)
class CorrelatedNoise(GaussianNoise):
    """The base: the server keeps ``count`` vectors ("buffers") and adds to the sum what follows from them."""

    points = (Point.AGGREGATE,)
    steady: ClassVar[bool] = False

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        buffers = context.server.get("buffers", total.new_zeros(self.count, len(total)))
        fresh = self.deviation(context) * context.server_gaussian(self.purpose, total)
        noise, context.server["buffers"] = self.next(buffers, fresh, context.round)
        return total + noise

    @property
    def count(self) -> int:
        """Return the number of vectors that are kept."""
        raise NotImplementedError

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        """The noise (P,) of a round, and the buffers (count, P) after it, of new independent noise (P,)."""
        raise NotImplementedError

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {"buffers": Remembered((self.count, None))}


@dataclass(frozen=True)
class TreeNoise(CorrelatedNoise):
    """The noise in the sum of the rounds so far is that of few nodes of a tree, which ends after ``leaves`` rounds."""

    leaves: int = 1

    @property
    def count(self) -> int:
        return self.leaves.bit_length()

    def next(self, buffers: Tensor, fresh: Tensor, round_index: int) -> tuple[Tensor, Tensor]:
        now = round_index % self.leaves + 1
        buffers = torch.zeros_like(buffers) if now == 1 else buffers.clone()
        # The node that this round completes; those below it end in it.
        full, before = (now & -now).bit_length() - 1, buffers.sum(0)
        buffers[:full] = 0
        buffers[full] = fresh
        return buffers.sum(0) - before, buffers

    def words(self) -> str:
        return f"noise of a tree over {self.leaves} rounds, std sigma*C of each node with sigma={self.level:g}"


@dataclass(frozen=True)
class ToeplitzNoise(CorrelatedNoise):
    """Of a banded Toeplitz matrix with first column ``column``; the buffers are the noises of the last rounds."""

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
class BufferedNoise(CorrelatedNoise):
    """Of the matrix whose first column is 1 and then the sum of scale decay^(t-1): a buffer for each pair."""

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
    """Clips updates to ``clip`` and adds noise of a binary tree, which ends after ``restart_frequency`` rounds."""

    noise_multiplier: Sigma = 1.0
    clip: Clip = 1.0
    restart_frequency: Count = 1024

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clip, "whole")
        noise = TreeNoise(self.noise_multiplier, of=clip, at=Point.AGGREGATE, leaves=self.restart_frequency)
        names = ("noise_multiplier", "clip", "restart_frequency")
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
        column = tuple(root_strategy(self.bands).tolist())
        noise = ToeplitzNoise(self.noise_multiplier, of=clip, at=Point.AGGREGATE, column=column)
        names = ("noise_multiplier", "clip", "bands", "min_separation")
        return [clip, noise, of_filter("jax_privacy:BandedToeplitz", self, names, clip, noise.at)]


Parts = Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1, max_length=16)]


@DEFENSES.register("jax_privacy:BLT")
@validated_defense
class BLT(Defense):
    """Clips updates to ``clip`` and adds noise that buffers with ``decays`` and ``scales`` correlate."""

    noise_multiplier: Sigma = 1.0
    clip: Clip = 1.0
    decays: Parts = (0.9,)
    scales: Parts = (0.1,)
    min_separation: Count = 1

    @model_validator(mode="after")
    def _pairs(self) -> "BLT":
        if len(self.decays) != len(self.scales) or sum(self.scales) > 1:
            raise ValueError("decays and scales are as many, and scales add up to 1 at most")
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        clip = ClipUpdate(self.clip, "whole")
        noise = BufferedNoise(
            self.noise_multiplier, of=clip, at=Point.AGGREGATE, decays=self.decays, scales=self.scales
        )
        names = ("noise_multiplier", "clip", "decays", "scales", "min_separation")
        return [clip, noise, of_filter("jax_privacy:BLT", self, names, clip, noise.at)]
