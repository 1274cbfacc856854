"""DSSGD: each client sends few coordinates of its update, bounded, optionally by the sparse vector technique.

Sources: Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning" (selective SGD). Its noise is here in the form
of Lyu, Su and Li 2017, "Understanding the Sparse Vector Technique", algorithm 1: the same noise on coordinates, but
one noisy threshold per round, whose proof covers choosing by a threshold and sending the values.
See docs/defenses.md.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from harness.base.presence import FALSE_ALARMS, told_apart
from harness.base.ranges import Clip, Finite, Positive
from harness.base.vectors import Layout
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense
from harness.federation.operations import Operation, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Chosen, Noise
from harness.privacy import Limit, PureLimit, Statement

# Shares of epsilon: noise on the threshold, on the magnitudes compared with it, on the values sent.
_FOR_THRESHOLD, _FOR_MAGNITUDES, _FOR_VALUES = 4 / 9, 4 / 9, 1 / 9


@dataclass(frozen=True)
class SendFew(Operation):
    """Sends few bounded coordinates of each update; its settings are those of :class:`DSSGD`."""

    share: float
    threshold: float
    bound: float
    selection: Literal["random", "largest"]
    epsilon: float | None

    points = (Point.MESSAGE,)
    clips = noises = True

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        count = self._most_sent(rows.shape[-1])
        values = rows.clamp(-self.bound, self.bound)
        if self.selection == "largest":
            return values.where(_first(-rows.abs(), count), torch.zeros_like(values))
        eligible = self._above_threshold(values, count, context)
        # A random order, with those that may not be sent at its end.
        order = context.uniform("selection", values).where(eligible, torch.full_like(values, 2.0))
        chosen = _first(order, count) & eligible
        return self._noised(values, count, context).where(chosen, torch.zeros_like(values))

    def _most_sent(self, parameters: int) -> int:
        """c, coordinates of a client's round."""
        return math.ceil(self.share * parameters - 1e-9)

    def _above_threshold(self, values: Tensor, count: int, context: RoundContext) -> Tensor:
        """Return which coordinates (N, P) may be sent."""
        magnitudes = values.abs()
        if self.epsilon is None:
            return magnitudes > self.threshold
        noisy_threshold = self.threshold + self._scale(_FOR_THRESHOLD) * context.laplace("threshold", values[:, :1])
        noise = 2 * count * self._scale(_FOR_MAGNITUDES) * context.laplace("magnitudes", values)
        return magnitudes + noise > noisy_threshold

    def _noised(self, values: Tensor, count: int, context: RoundContext) -> Tensor:
        if self.epsilon is None:
            return values
        noisy = values + count * self._scale(_FOR_VALUES) * context.laplace("values", values)
        return noisy.clamp(-self.bound, self.bound)

    def _scale(self, budget: float) -> float:
        """Scale of the noise that hides one coordinate, which can change by 2 gamma, for a share of epsilon."""
        return 2 * self.bound / (budget * (self.epsilon or math.inf))

    @property
    def sparse(self) -> bool:
        return self.share < 1 or self.threshold >= 0

    def chosen(self, layout: Layout) -> Chosen | None:
        counts = (self._most_sent(layout.total),)
        if self.selection == "largest":
            return Chosen(counts, choice="largest")
        return Chosen(counts, choice="chance", least=max(self.threshold, 0.0))

    @property
    def cut(self) -> float | None:
        return self.bound if math.isfinite(self.bound) else None

    def noise(self, context: RoundContext) -> Noise | None:
        # Values are clamped after their noise, and noise chooses which of them are sent.
        return Noise("unknown", None) if self.epsilon is not None else None

    @property
    def only_adds(self) -> bool:
        chooses = self.selection == "random" and self.threshold >= 0
        return self.share == 1 and math.isinf(self.bound) and not chooses

    def limit(self, context: RoundContext) -> Limit | None:
        return None if self.epsilon is None else PureLimit(self.epsilon / context.noise_scale)

    def words(self) -> str:
        chosen = "the largest" if self.selection == "largest" else f"random ones above {self.threshold:g}"
        noise = "no noise"
        if self.epsilon is not None:
            noise = f"sparse vector noise (Laplace), epsilon={self.epsilon:g} per client and round"
        return f"{chosen}, at most the {self.share:g} share of coordinates, clamped to {self.bound:g} each; {noise}"

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        if self.epsilon is None:
            why = "which coordinates are sent depends on private data and no noise is added, so no epsilon exists"
            return states_nothing(why, "client")
        rounds, printed = facts.cohort.rounds, None
        if facts.parameters is not None:
            printed = self.epsilon / self._most_sent(facts.parameters)
        why = (
            f"sparse vector technique on bounded coordinates, a client in all {rounds} rounds; claimed is the epsilon "
            "of one coordinate in one round, which the paper prints: it adds up over all coordinates and rounds"
        )
        tags = {"third party": "client-DP central", "server": "client-LDP", "client": "client-DP central"}
        return [
            Statement(
                view=view, claimed_epsilon=printed, epsilon=self.epsilon * rounds, delta=0.0, unit="client",
                told_apart=told_apart(FALSE_ALARMS, epsilon=self.epsilon * rounds),
                adjacency="replace", sampler="none", conversion="pure epsilon, summed",
                schedule=f"epsilon={self.epsilon:g} per round", guarantee=tag, notes=why,
            )
            for view, tag in tags.items()
        ]  # fmt: skip


def _first(order: Tensor, count: int) -> Tensor:
    """Mask (N, P) of the ``count`` smallest entries of each row."""
    chosen = order.topk(count, dim=-1, largest=False).indices
    return torch.zeros_like(order, dtype=torch.bool).scatter(-1, chosen, True)


@DEFENSES.register("dssgd")
@validated_defense
class DSSGD(Defense):
    """Sends at most the share ``share`` (theta_u) of coordinates, clamped to [-``bound``, ``bound``] (gamma).

    ``selection``: ``random`` among those of magnitude above ``threshold`` (tau), or the ``largest`` whatever their
    size. ``epsilon`` is the budget of a client's round: with c coordinates to send, epsilon/c each, which is the
    number that the paper prints; None sends without noise.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    threshold: Finite = 1e-4
    bound: Clip = 1e-2
    selection: Literal["random", "largest"] = "random"
    epsilon: Positive | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "DSSGD":
        if self.threshold >= self.bound:
            raise ValueError(f"threshold={self.threshold:g} leaves nothing below bound={self.bound:g}; lower threshold")
        if self.epsilon is not None and self.selection == "largest":
            raise ValueError("the sparse vector noise selects by a threshold; use selection=random or drop epsilon")
        if self.epsilon is not None and math.isinf(self.bound):
            raise ValueError("an infinite bound leaves the noise without a scale; use a finite bound or drop epsilon")
        return self

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [SendFew(self.share, self.threshold, self.bound, self.selection, self.epsilon)]
