"""Base and advanced composition of (epsilon, delta) releases, as the papers compute them.

Sources: Wei et al., "Securing Distributed SGD against Gradient Leakage Threats", section 7.7; Dwork, Rothblum, Vadhan
2010 (``drv``); Kairouz, Oh, Viswanath 2015, Theorem 3.5 (``kov``, ``optimal``). See docs/accounting.md.

Both charge each step with the classical Gaussian bound, e0 = sqrt(2 ln(1.25/delta)) / sigma, amplified by sampling.
The papers do not add the steps' deltas up; ``delta_total`` does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.privacy.accountant import ACCOUNTANTS, AdditiveAccountant, Array, choice
from harness.privacy.events import GaussianRelease, Ledger, MechanismRelease, plain_gaussian

StepEpsilon = Literal["rounded", "exact"]
Formula = Literal["drv", "kov", "optimal"]


def step_epsilons(
    releases: Sequence[GaussianRelease | MechanismRelease], delta: float, e0: StepEpsilon = "exact"
) -> Array:
    """Epsilon of one step of each release, after amplification: (number of releases,).

    ``rounded`` rounds the step's epsilon to three decimals, as the paper does (0.807 for sigma 6, delta 1e-5).
    """
    gaussian = plain_gaussian(releases)
    sigmas = np.array([release.sigma for release in gaussian])
    rates = np.array([release.q for release in gaussian])
    plain = math.sqrt(2 * math.log(1.25 / delta)) / sigmas
    if e0 == "rounded":
        plain = np.round(plain, 3)
    # log(1 + q (exp(e) - 1)), written so that a large e does not overflow.
    return plain + np.log(rates + (1 - rates) * np.exp(-plain))


@dataclass(frozen=True)
class _StepByStep(AdditiveAccountant):
    """What both share: the steps' epsilons, and an honest account of their deltas."""

    e0: StepEpsilon = "exact"

    def __post_init__(self) -> None:
        choice(self.e0, ("rounded", "exact"), "step epsilon (e0)")

    def notes(self, spent: Ledger, delta: float) -> tuple[str, ...]:
        smallest = min(release.sigma for release in plain_gaussian(spent.releases))
        step = math.sqrt(2 * math.log(1.25 / delta)) / smallest
        unproven = (f"nominal: the classical Gaussian bound needs a step epsilon below 1, here {step:.3g}",)
        rounded = ("nominal: step epsilons rounded to three decimals, as printed",) if self.e0 == "rounded" else ()
        return (*(unproven if step >= 1 else ()), *rounded, "deltas of the steps add up to delta_total")


@ACCOUNTANTS.register("base")
@dataclass(frozen=True)
class BaseComposition(_StepByStep):
    """Epsilons simply add up."""

    name = "base"

    @property
    def conversion(self) -> str:
        return "sum" if self.e0 == "exact" else "sum, e0 as printed"

    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        return step_epsilons(releases, delta, self.e0)[:, None]

    def converted(self, total: Array, delta: float) -> float:
        return float(total[0])

    def delta_total(self, spent: Ledger, delta: float) -> float:
        return min(1.0, delta * sum(release.q * release.count for release in spent.releases))


@ACCOUNTANTS.register("advanced")
@dataclass(frozen=True)
class AdvancedComposition(_StepByStep):
    """Epsilons add up like a random walk, at the price of another delta, here equal to each step's own."""

    name = "advanced"
    formula: Formula = "drv"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.formula, ("drv", "kov", "optimal"), "formula of advanced composition")

    @property
    def conversion(self) -> str:
        return self.formula if self.e0 == "exact" else f"{self.formula}, e0 as printed"

    def costs(self, releases: Sequence[GaussianRelease | MechanismRelease], delta: float) -> Array:
        """Columns: the squared epsilon, and the drift (the expected loss, or its bound)."""
        steps = step_epsilons(releases, delta, self.e0)
        with np.errstate(over="ignore"):
            drift = steps * (np.expm1(steps) if self.formula == "drv" else np.tanh(steps / 2))
        return np.stack([steps**2, drift], axis=1)

    def converted(self, total: Array, delta: float) -> float:
        squares, drift = (float(value) for value in total)
        # Only the last bound's slack grows with the epsilons themselves.
        slack = math.log(math.e + math.sqrt(squares) / delta) if self.formula == "optimal" else math.log(1 / delta)
        return math.sqrt(2 * squares * slack) + drift

    def delta_total(self, spent: Ledger, delta: float) -> float:
        return min(1.0, delta * (1 + sum(release.q * release.count for release in spent.releases)))
