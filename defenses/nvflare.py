"""NVFlare's privacy filters, by their own names and arguments.

Sources: nvflare 2.9.0, ``app_common/filters/percentile_privacy.py``, ``svt_privacy.py`` and ``exclude_vars.py``; 2.7.2
for ``SVTPrivacy`` before 2.8.0. What leaves a client is divided by ``steps``, the local steps that its trainer
reports (NUM_STEPS_CURRENT_ROUND), 1 where it reports none. Arrays without a dimension count, and pass as they are.
"""

import math
import re
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import Tensor

from harness.base.ranges import Count, Finite, NonNegative, Positive
from harness.base.vectors import Layout
from harness.claims.answers import Facts
from harness.claims.filters import FILTERS
from harness.defenses.claimed import of_filter
from harness.defenses.flower import but_scalars, scalars_kept
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import UNKNOWN, Operation
from harness.federation.privacy_facts import NEVER_SENT
from harness.federation.taps import Point
from harness.observation import Chosen, Noise
from harness.privacy import NoLimit


@dataclass(frozen=True)
class AbovePercentile(Operation):
    """Zeroes what lies below a percentile of all magnitudes, and cuts the others to +-``gamma`` times ``steps``."""

    percentile: float
    gamma: float
    steps: int

    points = (Point.MESSAGE,)
    clips = True

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        values = rows / self.steps
        cutoff = percentile(values.abs(), self.percentile)
        sent = values.where(values.abs() >= cutoff, 0.0).clamp(-self.gamma, self.gamma) * self.steps
        return scalars_kept(sent, rows, context)

    @property
    def sparse(self) -> bool:
        return self.percentile > 0

    def chosen(self, layout: Layout) -> Chosen:
        kept = layout.total - math.ceil(self.percentile / 100 * (layout.total - 1) - 1e-9)
        scalars = len(layout.scalars)
        return Chosen((min(kept + scalars, layout.total),), choice="unknown" if scalars else "largest")

    @property
    def cut(self) -> float:
        return self.gamma * self.steps

    def words(self) -> str:
        return (
            f"magnitudes below the {self.percentile:g}th percentile are zeroed, and the others cut to "
            f"{self.gamma:g} in each of {self.steps} steps"
        )


def percentile(sizes: Tensor, percent: float) -> Tensor:
    """The percentile of each row (N, P), between two values on the straight line, as numpy has it: (N, 1)."""
    place = percent / 100 * (sizes.shape[-1] - 1)
    low, high = math.floor(place), math.ceil(place)
    below, above = (sizes.kthvalue(one + 1, dim=-1, keepdim=True).values for one in (low, high))
    return below + (above - below) * (place - low)


@DEFENSES.register("nvflare:PercentilePrivacy")
@validated_defense
class PercentilePrivacy(Defense):
    """Shares what lies above the ``percentile`` of magnitudes, cut to +-``gamma`` a step: 10 shares the largest 90%.

    With a ``gamma`` of 0 or less, or a ``percentile`` outside 0 to 100, it sends everything, as the filter does.
    """

    percentile: Finite = 10.0
    gamma: Finite = 0.01
    steps: Count = 1

    def operations(self, cohort: Cohort) -> list[Operation]:
        if self.gamma <= 0 or not 0 <= self.percentile <= 100:
            return []
        cut = AbovePercentile(self.percentile, self.gamma, self.steps)
        return [cut, of_filter("nvflare:PercentilePrivacy", self, ("percentile", "gamma"), cut)]


@dataclass(frozen=True)
class SparseVector(Operation):
    """Sends a noisy choice of values, cut to +-``gamma`` a step, with Laplace noise; see :class:`SVTPrivacy`.

    Attributes:
        fraction, gamma, tau, replacing, steps: as there.
        epsilon, noise_var: of the choice, and of each value that is sent.
        early: whether values get their noise before they are cut, and the budgets of 2.7.
    """

    fraction: float
    epsilon: float
    noise_var: float
    gamma: float
    tau: float
    replacing: bool
    steps: int
    early: bool

    points = (Point.MESSAGE,)
    zeroes = True
    clips = noises = True

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        values, count = rows / self.steps, self._count(rows.shape[-1])
        accepted = self._accepted(values.clamp(-self.gamma, self.gamma).abs(), count, context)
        sent = torch.stack([
            self._drawn(own, count, order)
            for own, order in zip(accepted, context.uniform("selection", values), strict=True)
        ])  # fmt: skip
        noise = self._scale * context.laplace("values", values)
        noisy = (values + noise).clamp(-self.gamma, self.gamma) if self.early else (
            values.clamp(-self.gamma, self.gamma) + noise
        )  # fmt: skip
        return scalars_kept(noisy.where(sent, 0.0) * self.steps, rows, context)

    def _count(self, parameters: int) -> int:
        """c, values that are drawn of all."""
        return min(math.ceil(self.fraction * parameters), parameters)

    @property
    def _scale(self) -> float:
        """Scale of the noise on a value."""
        return 2 * self.gamma / self.noise_var

    def _accepted(self, sizes: Tensor, count: int, context: RoundContext) -> Tensor:
        """Return which values (N, P) pass the noisy threshold, in as many passes as it takes until there are ``count``.

        Without noise those that do not pass in the first never would; then the largest are taken. After many passes
        those that follow are drawn at once.
        """
        ratio = (2.0 * count) ** (2 / 3)
        if self.early:
            of_threshold, of_queries = 2 * self.gamma / self.epsilon, 4 * count * self.gamma / (self.epsilon * ratio)
        else:
            for_threshold = self.epsilon / (1 + ratio)
            of_threshold = self.gamma / for_threshold
            of_queries = 2 * count * self.gamma / (self.epsilon - for_threshold)
        threshold = self.tau + of_threshold * context.laplace("threshold", sizes[:, :1])
        accepted = sizes + of_queries * context.laplace("magnitudes", sizes) >= threshold
        for number in range(1, _MOST_PASSES):
            lacking = accepted.sum(1) < count
            if context.noise_scale == 0 or not lacking.any():
                break
            again = sizes + of_queries * context.laplace(f"magnitudes {number}", sizes) >= threshold
            accepted = accepted | (again & lacking[:, None])
        if context.noise_scale == 0:
            largest = sizes >= sizes.topk(count, dim=1).values[:, -1:] if count else torch.zeros_like(accepted)
            more = accepted | largest
        elif not (accepted.sum(1) < count).any():
            return accepted
        else:
            above = (threshold - sizes) / (of_queries * context.noise_scale)
            first = next_passes(above, context.uniform("more passes", sizes).double()).where(~accepted, -math.inf)
            more = up_to_pass(first, count)
        return accepted.where((accepted.sum(1) >= count)[:, None], more)

    def _drawn(self, accepted: Tensor, count: int, order: Tensor) -> Tensor:
        """``count`` draws of the accepted (P,), with or without replacement; which of them were drawn at all."""
        places = accepted.nonzero()[:, 0]
        if self.replacing:
            drawn = places[(order[:count] * len(places)).long().clamp_max(len(places) - 1)] if count else places[:0]
        else:
            drawn = places[order[places].argsort()[:count]]
        return torch.zeros_like(accepted).index_fill(0, drawn, True)

    def chosen(self, layout: Layout) -> Chosen:
        return Chosen((min(self._count(layout.total) + len(layout.scalars), layout.total),), choice="chance")

    @property
    def cut(self) -> float | None:
        return self.gamma * self.steps

    def noise(self, context: RoundContext) -> Noise | None:
        if self.early:
            return UNKNOWN
        return but_scalars(Noise("laplace", math.sqrt(2) * self._scale * self.steps), context)

    def words(self) -> str:
        order = "with Laplace noise and then cut" if self.early else "cut and then with Laplace noise"
        return (
            f"a noisy choice of {self.fraction:g} of all values (epsilon={self.epsilon:g}), {order} "
            f"(gamma={self.gamma:g}, noise_var={self.noise_var:g}); the others are zeroed"
        )


_MOST_PASSES = 1000  # that are made one by one


def next_passes(above: Tensor, uniform: Tensor) -> Tensor:
    """The logarithm of the time at which a value is accepted (N, P), in passes; the pass is that time, rounded up.

    Args:
        above: the threshold over each value (N, P), in units of the Laplace noise. uniform: of [0, 1), (N, P).
    """
    low, high = above.double().clamp_max(0.0), above.double().clamp_min(0.0)
    chance = torch.where(above > 0, -high - math.log(2), torch.log1p(-low.exp() / 2))  # its logarithm
    rate = torch.where(chance < -30, chance, (-torch.log1p(-chance.clamp_min(-30.0).exp())).log())
    return (-torch.log1p(-uniform)).clamp_min(1e-300).log() - rate


def up_to_pass(times: Tensor, count: int) -> Tensor:
    """Return which values (N, P) are accepted once there are ``count``: passes end whole. Times are logarithms."""
    last = times.kthvalue(count, dim=1, keepdim=True).values
    passes, end = times.clamp(max=30.0).exp().ceil(), last.clamp(max=30.0).exp().ceil()
    return (times <= last) | ((passes <= end) & (times < 30.0))


_VERSION = Annotated[str, Field(pattern=r"^\d{1,4}(\.\d{1,4}){1,3}$")]


@DEFENSES.register("nvflare:SVTPrivacy")
@validated_defense
class SVTPrivacy(Defense):
    """The sparse vector technique: ``fraction`` of all values is sent, cut to +-``gamma`` a step, with Laplace noise.

    ``epsilon`` pays for the choice by the threshold ``tau``, ``noise_var`` for each value. ``replace``: whether draws
    are with replacement. ``version``: before 2.8.0 values got their noise first and were cut after it.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    epsilon: Positive = 0.1
    noise_var: Positive = 0.1
    gamma: Positive = 1e-5
    tau: NonNegative = 1e-6
    replace: bool = True
    steps: Count = 1
    version: _VERSION = "2.9.0"

    def operations(self, cohort: Cohort) -> list[Operation]:
        early = Facts(version=self.version).older_than(FILTERS["nvflare:SVTPrivacy"].since)
        sent = SparseVector(
            self.fraction, self.epsilon, self.noise_var, self.gamma, self.tau, self.replace, self.steps, early
        )
        names = ("fraction", "epsilon", "noise_var", "gamma", "tau", "replace")
        return [sent, of_filter("nvflare:SVTPrivacy", self, names, sent, version=self.version)]


@dataclass(frozen=True)
class LeaveOut(Operation):
    """Leaves out tensors, which the server keeps as they were: those of some names, or that a pattern matches."""

    names: tuple[str, ...]
    pattern: str

    points = (Point.MESSAGE,)
    about = "updates"
    zeroes = True

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        parts = zip(rows.split(context.layout.sizes, dim=-1), self._left_out(context.layout), strict=True)
        return torch.cat([torch.zeros_like(part) if out else part for part, out in parts], dim=-1)

    def limit(self, context: RoundContext) -> NoLimit:
        return NoLimit(NEVER_SENT)

    def _left_out(self, layout: Layout) -> list[bool]:
        found = re.compile(self.pattern).search if self.pattern else lambda _: None
        return [name in self.names or found(name) is not None for name in layout.names]

    @property
    def only_adds(self) -> bool:
        return False

    def chosen(self, layout: Layout) -> Chosen:
        outs = zip(layout.sizes, self._left_out(layout), strict=True)
        return Chosen(tuple(0 if out else size for size, out in outs), "layer", "largest")

    def words(self) -> str:
        said = ", ".join(self.names) or f"that match {self.pattern!r}"
        return f"tensors {said} are left out"


@DEFENSES.register("nvflare:ExcludeVars")
@validated_defense
class ExcludeVars(Defense):
    """Leaves tensors out: ``exclude_vars`` is a list of exact names, or a text that is searched as a pattern.

    Names that there are not are passed over, and nothing excludes nothing, as the filter has it.
    """

    exclude_vars: str | tuple[str, ...] = ""

    @field_validator("exclude_vars")
    @classmethod
    def _is_a_pattern(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        try:
            re.compile(value if isinstance(value, str) else "")
        except re.error as mistake:
            raise ValueError(f"no regular expression ({mistake}); write for example ^fc") from None
        return value

    def operations(self, cohort: Cohort) -> list[Operation]:
        if not self.exclude_vars:
            return []
        listed = not isinstance(self.exclude_vars, str)
        out = LeaveOut(tuple(self.exclude_vars) if listed else (), "" if listed else str(self.exclude_vars))
        return [out, of_filter("nvflare:ExcludeVars", self, (), out)]
