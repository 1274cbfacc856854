"""The validated settings of one audit, and the federation it plays."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.building import build
from harness.datasets import default_model
from harness.defenses import DEFENSES, Cohort, Defense, PrivacyFacts
from harness.errors import UsageError

Design = Literal["together", "alone", "norm"]
Unit = Literal["example", "client"]

DESIGNS: dict[str, str] = {
    "together": "all canaries in one batch (one round), beside real ones; each is looked for in its own direction",
    "alone": "each canary is all that its client (its round) has; looked for in its own direction",
    "norm": "as alone, but looked for by the norm of what is released: finds noise that follows the data",
}

_MOST_GUESSES = 600


@dataclass(frozen=True)
class AuditSettings:
    """Everything that determines the numbers of one audit.

    Attributes:
        design: how canaries are placed and looked for, one of ``DESIGNS``.
        canaries: m; each is in with probability one half, or zero takes its place.
        others: real examples (real clients) beside the canaries, where they are together.
        guesses: r, half of them that a canary is in, half that one is out; chosen before looking.
        rounds, steps: T rounds of L local steps.
        sampling_rate: share of the units in a step (example) or round (client), by Poisson sampling below 1.
        noise_scale: multiplies every noise draw; other than 1 it plants a flaw that the statements do not know of.
        view: ``server`` or ``third party``; None for the strongest one that the defense's statements cover.
        claimed_epsilon: tested instead of the claim of the defense's statement.
    """

    defense: str = "fed_cdp"
    defense_args: dict[str, Any] = field(default_factory=dict)
    dataset: str = "mnist-sample"
    model: str = "lenet"
    design: Design = "together"
    canaries: int = 1000
    others: int = 32
    guesses: int = 200
    rounds: int = 1
    steps: int = 10
    sampling_rate: float = 1.0
    learning_rate: float = 0.05
    delta: float = 1e-5
    confidence: float = 0.95
    seed: int = 0
    noise_scale: float = 1.0
    view: str | None = None
    claimed_epsilon: float | None = None

    def build_defense(self) -> Defense:
        """The defense with its hyper-parameters."""
        return build(DEFENSES, self.defense, self.defense_args)

    def cohort(self, unit: Unit) -> Cohort:
        """The federation that is played, and that the epsilon is computed for."""
        units = 1 if self.design != "together" else self.canaries + self.others
        if unit == "example":
            # Alone, every canary is the one example of a client, and all clients take part.
            clients = 1 if self.design == "together" else self.canaries
            return Cohort(clients, clients, self.rounds, self.steps, max(1, round(self.sampling_rate * units)))
        if self.design != "together":
            return Cohort(round(1 / self.sampling_rate), 1, self.rounds, self.steps)
        return Cohort(units, max(1, round(self.sampling_rate * units)), self.rounds, self.steps)

    def rate(self, unit: Unit) -> float:
        """The share of units in a step or round that is played: for clients, the nearest that whole numbers allow."""
        cohort = self.cohort(unit)
        return self.sampling_rate if unit == "example" else cohort.clients_per_round / cohort.clients

    def facts(self, unit: Unit, tensors: int) -> PrivacyFacts:
        """What the defense's statements depend on: the very sampler and steps that are played."""
        sampler = "none" if self.rate(unit) == 1 else "poisson"
        return PrivacyFacts(self.cohort(unit), tensors, sampler, sampler, self.sampling_rate, self.delta)


def audit_settings(**values: Any) -> AuditSettings:
    """Validated settings; names are resolved, ``model`` and ``guesses`` of None get their defaults.

    Raises:
        UsageError: an unknown name, or a number out of its range; one line with the mend.
    """
    values["defense"] = DEFENSES.resolve(values.get("defense", "fed_cdp"))
    if values.get("model") is None:
        values["model"] = default_model(values.get("dataset", AuditSettings.dataset))
    if values.get("guesses") is None:
        values["guesses"] = 2 * min(values.get("canaries", AuditSettings.canaries) // 10, _MOST_GUESSES // 2)
    settings = AuditSettings(**values)
    _check_counts(settings)
    _check_shares(settings)
    settings.build_defense()
    return settings


def _check_counts(settings: AuditSettings) -> None:
    if settings.design not in DESIGNS:
        raise UsageError(f"unknown canary {settings.design!r}; choose {', '.join(DESIGNS)}")
    if settings.canaries < 20:
        raise UsageError(f"{settings.canaries} canaries can prove nothing; take at least 20, better 1000")
    if settings.guesses < 2 or settings.guesses % 2 or settings.guesses > settings.canaries:
        raise UsageError(
            f"--guesses must be an even number from 2 to the {settings.canaries} canaries, got {settings.guesses}"
        )
    for name, least in (("others", 0), ("rounds", 1), ("steps", 1), ("seed", 0)):
        if getattr(settings, name) < least:
            raise UsageError(f"--{name} must be at least {least}, got {getattr(settings, name)}")


def _check_shares(settings: AuditSettings) -> None:
    if not 0 < settings.sampling_rate <= 1:
        raise UsageError(f"--sampling-rate must lie in (0, 1], got {settings.sampling_rate:g}; 1 takes all every time")
    if not 0 < settings.delta < 1:
        raise UsageError(f"--delta must lie in (0, 1), got {settings.delta:g}; choose for example 1e-5")
    if not 0 < settings.confidence < 1:
        raise UsageError(f"--confidence must lie in (0, 1), got {settings.confidence:g}; choose for example 0.95")
    if settings.view not in (None, "server", "third party"):
        raise UsageError(f"an audit has no view {settings.view!r}; choose server or 'third party'")
    for name in ("noise_scale", "claimed_epsilon"):
        value = getattr(settings, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"--{name.replace('_', '-')} must be a finite number of at least 0, got {value:g}")
    if not (math.isfinite(settings.learning_rate) and settings.learning_rate > 0):
        raise UsageError(f"--learning-rate must be above 0, got {settings.learning_rate:g}")
