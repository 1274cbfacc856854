"""Decay policies of the noise multiplier, Fed-αCDP[σ] (docs/defenses.md).

Two readings exist. ``eps``: the per-step epsilon follows the policy and sigma = sqrt(2 ln(1.25/delta)) / epsilon with
delta = 1e-5, which reproduces the rounds of the paper's Table VIII; it fixes sigma altogether. ``sigma``: the printed
formulas on sigma itself between ``sigma_start`` and ``sigma_end``.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

Policy = Literal["fixed", "linear", "staircase", "exponential", "cyclic"]
Space = Literal["eps", "sigma"]

_CLASSICAL_GAUSSIAN = math.sqrt(2 * math.log(1.25 / 1e-5))


@dataclass(frozen=True)
class NoiseSchedule:
    """The noise multiplier as a function of round and local step.

    ``cycles`` is gamma_4 of the printed cyclic formula; the cyclic policy always works in sigma space and is floored
    at ``sigma_end`` (the printed one falls to nearly zero noise).
    """

    policy: Policy
    space: Space
    sigma_start: float
    sigma_end: float
    rounds: int
    steps_per_round: int
    cycles: int = 4

    def sigma(self, round_index: int, step: int = 0) -> float:
        """The multiplier used in local step ``step`` (0-based) of round ``round_index`` (0-based)."""
        if self.policy == "fixed":
            return self.sigma_start
        if self.space == "eps" and self.policy != "cyclic":
            done = (round_index * self.steps_per_round + step) / (self.rounds * self.steps_per_round)
            return _CLASSICAL_GAUSSIAN / self._step_epsilon(done)
        return self._printed(round_index)

    def over(self, rounds: int, steps_per_round: int) -> "NoiseSchedule":
        """The same over other rounds."""
        return replace(self, rounds=rounds, steps_per_round=steps_per_round)

    def words(self) -> str:
        """The multiplier, or the policy that it follows."""
        if self.policy == "fixed":
            return f"sigma={self.sigma_start:g}"
        return f"sigma by policy {self.policy} ({'sigma' if self.policy == 'cyclic' else self.space} space)"

    def _step_epsilon(self, done: float) -> float:
        """Per-step epsilon after a share ``done`` in [0, 1) of all local steps."""
        if self.policy == "linear":
            return done + 0.30747
        if self.policy == "staircase":
            return 0.1 * math.floor(10 * done + 1e-9) + 0.35747
        return math.exp(1.664 * done - 1.1809)

    def _printed(self, round_index: int) -> float:
        start, end, last = self.sigma_start, self.sigma_end, max(self.rounds - 1, 1)
        if self.policy == "linear":
            return start * (1 - (1 - end / start) / last * round_index)
        if self.policy == "staircase":
            stair = max(self.rounds / 10, 1)
            return start * (1 - (1 - end / start) / 9 * math.floor(round_index / stair))
        if self.policy == "exponential":
            return start * math.exp(-math.log(start / end) / last * round_index)
        period = math.ceil(self.rounds / self.cycles)
        return end + (start - end) / 2 * (math.cos(math.pi * (round_index % period) / period) + 1)
