"""Gradient pruning: each client's update loses its smallest coordinates, optionally sent later (error feedback).

Sources: Zhu et al. 2019, "Deep Leakage from Gradients", section 5.2; the residual is that of Lin et al. 2018, "Deep
Gradient Compression". See docs/defenses.md.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.context import RoundContext
from harness.federation.defense import Defense
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.remembered import Remembered
from harness.federation.taps import TAPS_AFTER_SENDING, Hook, Tap
from harness.observation import Chosen
from harness.privacy import Statement, make_statement
from harness.vectors.layout import Grouping, Layout


@DEFENSES.register("pruning")
@validated_defense
class Pruning(Defense):
    """Zeroes the share ``threshold`` of coordinates with the smallest magnitude, and all that tie with them.

    ``mode``: the share is taken of the whole vector (``global``) or of every parameter tensor (``layer``).
    ``error_feedback``: the client keeps what it did not send and adds it to its next update.
    """

    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.7
    mode: Literal["global", "layer"] = "global"
    error_feedback: bool = False

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        if self.error_feedback:
            update = update + context.client.get("residual", 0.0)
        groups = context.layout.groups(self._grouping)
        sent = torch.cat([_pruned(part, self.threshold) for part in update.split(groups, dim=-1)], dim=-1)
        if self.error_feedback:
            context.client["residual"] = update - sent
        return sent

    def clients_remember(self) -> Mapping[str, Remembered]:
        return {"residual": Remembered((None,))} if self.error_feedback else {}

    def sparse_at(self, tap: Tap) -> bool:
        return self.threshold > 0 and tap in TAPS_AFTER_SENDING

    def chosen_at(self, tap: Tap, layout: Layout) -> Chosen | None:
        if tap not in TAPS_AFTER_SENDING:
            return None
        counts = tuple(size - _lost(size, self.threshold) for size in layout.groups(self._grouping))
        # Of what was kept from earlier rounds nobody knows what it adds.
        return Chosen(counts, self._grouping, "unknown" if self.error_feedback else "largest")

    @property
    def _grouping(self) -> Grouping:
        return "layer" if self.mode == "layer" else "whole"

    def only_adds(self, hook: Hook) -> bool:
        return not self.acts_at(hook) or self.threshold == 0

    def units(self) -> str:
        of = "the whole vector" if self.mode == "global" else "each parameter tensor"
        kept = "kept for the next round" if self.error_feedback else "lost"
        return (
            f"applies to updates: the {self.threshold:.4g} share of {of} with the smallest magnitude is zeroed and "
            f"{kept}; no noise"
        )

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        why = "which coordinates are left out depends on private data and no noise is added, so no epsilon exists"
        return [make_statement("server", "none", why, unit="client")]


def _pruned(vectors: Tensor, share: float) -> Tensor:
    """Vectors (N, P) without the floor(share * P) coordinates of smallest magnitude and those equal to them.

    The released code zeroes one coordinate more, even at a share of 0.
    """
    count = _lost(vectors.shape[-1], share)
    if count == 0:
        return vectors
    magnitudes = vectors.abs()
    largest_lost = magnitudes.kthvalue(count, dim=-1, keepdim=True).values
    return vectors.where(magnitudes > largest_lost, torch.zeros_like(vectors))


def _lost(size: int, share: float) -> int:
    """How many coordinates of a group go at least."""
    return int(share * size + 1e-9)
