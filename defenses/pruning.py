"""Gradient pruning: each client's update loses its smallest coordinates, optionally sent later (error feedback).

Sources: Zhu et al. 2019, "Deep Leakage from Gradients", section 5.2; the residual is that of Lin et al. 2018, "Deep
Gradient Compression". See docs/defenses.md.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import KeepLargest
from harness.federation.context import Cohort
from harness.federation.defense import Defense
from harness.federation.operations import Operation


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

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [KeepLargest(self.threshold, "layer" if self.mode == "layer" else "whole", self.error_feedback)]
