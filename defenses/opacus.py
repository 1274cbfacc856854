"""Opacus on a client: per-example clipping and Gaussian noise on the sum of a Poisson-sampled batch.

Source: opacus 1.6.0, ``privacy_engine.py`` and ``optimizers/{optimizer,perlayeroptimizer}.py``. The sum is divided by
the expected size of a batch; the optimizer that follows is post-processing. Batches are drawn as the run says
(``--batch-sampling``), and the statement follows that.
"""

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import model_validator

from harness.base.errors import UsageError
from harness.base.ranges import Clip, Sigma
from harness.defenses.claimed import of_filter
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipExamples, GaussianNoise
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation, StepState

# Opacus divides by the norm and this much more, so that what it cuts is a little shorter than the bound.
_MORE = 1e-6


@dataclass(frozen=True)
class ClipAsOpacus(ClipExamples):
    """Scales each example's gradient by min(1, C / (norm + 1e-6)), as a whole or tensor by tensor.

    ``count``: of bounds, one for each tensor.
    """

    count: int = 1

    def on_step(self, state: StepState, context: RoundContext) -> None:
        norms = state.norms
        if self.grouping == "layer" and norms.shape[-1] != self.count:
            raise UsageError(
                f"max_grad_norm has {self.count} bounds for {norms.shape[-1]} tensors, which Opacus refuses; give one "
                "for each"
            )
        if self.grouping == "whole":
            norms = norms.square().sum(-1, keepdim=True).sqrt().expand_as(norms)
        state.scale((self.bound / (norms + _MORE)).clamp(max=1.0))


@DEFENSES.register("opacus:PrivacyEngine")
@validated_defense
class PrivacyEngine(Defense):
    """Clips each example's gradient to ``max_grad_norm`` and adds noise of ``noise_multiplier`` times it to the sum.

    ``clipping``: the gradient as a whole (``flat``), or with ``per_layer`` each tensor to one of a list of equal
    bounds, with noise by all of them together. ``accountant``, ``poisson_sampling`` and ``engine`` (``kept`` over the
    rounds, or one ``per-round``) change what is claimed, not what is done. Opacus has no default multiplier.
    """

    noise_multiplier: Sigma = 1.0
    max_grad_norm: Clip | tuple[Clip, ...] = 1.0
    clipping: Literal["flat", "per_layer"] = "flat"
    poisson_sampling: bool = True
    accountant: Literal["prv", "rdp", "gdp"] = "prv"
    engine: Literal["kept", "per-round"] = "kept"

    @model_validator(mode="after")
    def _bounds_fit(self) -> "PrivacyEngine":
        bounds = self._bounds
        if len(set(bounds)) != 1 or (self.clipping == "flat") == isinstance(self.max_grad_norm, tuple):
            raise ValueError(
                "max_grad_norm is one number for clipping=flat, and a list of one equal bound for each tensor for "
                "per_layer"
            )
        if math.isinf(bounds[0]) and self.noise_multiplier:
            raise ValueError("an infinite max_grad_norm leaves the noise without a scale; use a finite one")
        return self

    @property
    def _bounds(self) -> tuple[float, ...]:
        given = self.max_grad_norm
        return given if isinstance(given, tuple) else (given,)

    def operations(self, cohort: Cohort) -> list[Operation]:
        bounds = self._bounds
        clip = ClipAsOpacus(bounds[0], "whole" if self.clipping == "flat" else "layer", count=len(bounds))
        noise = GaussianNoise(self.noise_multiplier * math.sqrt(len(bounds)), of=clip)
        names = ("noise_multiplier", "max_grad_norm", "poisson_sampling", "clipping", "accountant", "engine")
        return [clip, noise, of_filter("opacus:PrivacyEngine", self, names, clip, noise.at)]
