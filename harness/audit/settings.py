"""The validated settings of one audit, and the federation it plays."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.base.building import Arguments, build, require_known, typed
from harness.base.errors import UsageError
from harness.base.limits import require_steps, require_time
from harness.base.ranges import LEAST, LEAST_SHARE, MOST
from harness.datasets import default_model
from harness.defenses import DEFENSES, Cohort, Defense, PrivacyFacts
from harness.privacy.accountant import asked_delta

Unit = Literal["example", "client"]

DESIGNS: dict[str, str] = {
    "together": "all canaries in one batch (one round) with real examples; each is scored along its own direction",
    "alone": "each canary is the only example of its client (its round); it is scored along its own direction",
    "norm": "as alone, but scored by the norm of the release; it finds noise that depends on the data",
}

_MOST_GUESSES = 600
_SUMMED, _MOST_CLIENTS = 10, 10_000


@dataclass(frozen=True)
class AuditSettings:
    """Everything that determines the numbers of one audit.

    Attributes:
        design: how canaries are placed and looked for, one of ``DESIGNS``.
        canaries: m; each is in with probability one half, or zero takes its place.
        others: real examples (real clients) beside the canaries, where they are together.
        clients_per_round: K, who share the canaries among examples, 1 to 10,000. More than one are looked at by the
            sum of their updates, except in the view ``message``.
        colluders: clients of a summed round who tell the auditor what they send, 0 and more; by default as many as the
            defense withstands, and more plant a flaw: their noise no longer counts.
        dropouts: clients of a summed round who leave before they send anything: as many as the defense withstands.
        guesses: r, half of them that a canary is in, half that one is out; chosen before looking.
        rounds, steps: T rounds of L local steps.
        sampling_rate: share of the units in a step (example) or round (client), by Poisson sampling below 1.
        noise_scale: multiplies every noise draw; other than 1 it plants a flaw that the statements do not know of.
        view: ``server``, ``third party`` or, of clients behind a secure sum, ``message``; None for the strongest one
            that the defense's statements cover.
        claimed_epsilon: tested instead of the claim of the defense's statement.
    """

    defense: str = "fed_cdp"
    defense_args: Arguments = field(default_factory=dict)
    dataset: str = "mnist-sample"
    model: str = "lenet"
    design: str = "together"
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
    clients_per_round: int = 1
    colluders: int = 0
    dropouts: int = 0

    def build_defense(self) -> Defense:
        """The defense with its hyper-parameters."""
        return build(DEFENSES, self.defense, self.defense_args)

    def cohort(self, unit: Unit) -> Cohort:
        """The federation that is played, and that the epsilon is computed for."""
        units = 1 if self.design != "together" else self.canaries + self.others
        if unit == "example":
            # Looked for in its client's own steps, a canary alone is the one example of a client; all take part.
            clients = self.canaries if self.design != "together" and not self.sums else self.clients_per_round
            each = math.ceil(units / self.holders)
            return Cohort(clients, clients, self.rounds, self.steps, max(1, round(self.sampling_rate * each)))
        if self.design != "together":
            return Cohort(round(1 / self.sampling_rate), 1, self.rounds, self.steps)
        return Cohort(units, max(1, round(self.sampling_rate * units)), self.rounds, self.steps)

    @property
    def sums(self) -> bool:
        """Return whether canaries among examples are looked for in the sum of a round's clients, of one also."""
        return self.view == "third party" or (self.clients_per_round > 1 and self.view != "message")

    @property
    def holders(self) -> int:
        """Clients of a round that have examples."""
        return self.clients_per_round - self.colluders - self.dropouts

    def rate(self, unit: Unit) -> float:
        """The share of units in a step or round that is played: for clients, the nearest that whole numbers allow."""
        cohort = self.cohort(unit)
        return self.sampling_rate if unit == "example" else cohort.clients_per_round / cohort.clients

    def facts(self, unit: Unit, tensors: int, parameters: int | None = None) -> PrivacyFacts:
        """Return what the defense's statements depend on: the very sampler, clients and steps that are played."""
        sampler = "none" if self.rate(unit) == 1 else "poisson"
        # Whose examples are canaries takes part in every round.
        clients = "none" if unit == "example" else sampler
        return PrivacyFacts(self.cohort(unit), tensors, clients, sampler, self.sampling_rate, self.delta, parameters)


def audit_settings(**values: Any) -> AuditSettings:
    """Validated settings; names are resolved, values of None get their defaults.

    ``clients_per_round`` is 10 by default where the defense hides messages in a secure sum, else 1.

    Raises:
        UsageError: an unknown name, or a number out of its range; one line with the fix.
    """
    require_known(values, AuditSettings.__annotations__)
    values = {name: value for name, value in values.items() if value is not None}
    given = typed(AuditSettings)(**values)
    values = {name: getattr(given, name) for name in values}
    values["defense"] = DEFENSES.resolve(values.get("defense", "fed_cdp"))
    if values.get("model") is None:
        values["model"] = default_model(values.get("dataset", AuditSettings.dataset))
    if values.get("guesses") is None:
        values["guesses"] = 2 * min(values.get("canaries", AuditSettings.canaries) // 10, _MOST_GUESSES // 2)
    defense = build(DEFENSES, values["defense"], values.get("defense_args", {}))
    settings = AuditSettings(**{**values, **_clients_of_a_sum(defense, values)})
    _check_counts(settings)
    _check_shares(settings)
    _check_clients(settings, defense)
    return settings


def _clients_of_a_sum(defense: Defense, values: dict[str, Any]) -> dict[str, int]:
    """Return how many clients a round has, and how many of them collude or leave, where the values do not name it."""
    clients, colluders = values.get("clients_per_round"), values.get("colluders")
    clients = (_SUMMED if defense.sums_securely else 1) if clients is None else clients
    summed = clients > 1 and values.get("view") != "message"
    withstood = {name: getattr(defense, name, 0) if summed else 0 for name in ("colluders", "dropouts")}
    return {
        "clients_per_round": clients, "dropouts": withstood["dropouts"],
        "colluders": withstood["colluders"] if colluders is None else colluders,
    }  # fmt: skip


def _check_clients(settings: AuditSettings, defense: Defense) -> None:
    clients, name = settings.clients_per_round, settings.defense
    if not 1 <= clients <= _MOST_CLIENTS:
        raise UsageError(f"--clients-per-round must be 1 to {_MOST_CLIENTS}, got {clients}")
    if defense.sums_securely and clients < 2:
        raise UsageError(f"{name} sums what several clients send; take --clients-per-round 2 or more")
    if not defense.sums_securely and clients > 1 and settings.view == "server":
        raise UsageError(
            f"the server sees the message of each client under {name}; drop --clients-per-round or add "
            "--view 'third party'"
        )
    if settings.view == "message" and not defense.sums_securely:
        raise UsageError(f"under {name} a message is what the server sees; choose --view server")
    if settings.colluders < 0 or (settings.colluders and not settings.sums):
        raise UsageError(
            f"{settings.colluders} colluders: they are clients of a sum; choose 0 and more, or raise "
            "--clients-per-round"
        )
    if settings.holders < 1:
        raise UsageError(
            f"{settings.colluders} colluders and {settings.dropouts} dropouts leave none of {clients} clients to have "
            "canaries; raise --clients-per-round"
        )


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
    require_steps(settings.rounds, settings.steps)
    taken = settings.rounds * settings.steps * (settings.canaries + settings.others)
    require_time(taken, "lower --rounds, --steps, --canaries or --others")


def _check_shares(settings: AuditSettings) -> None:
    if not LEAST_SHARE <= settings.sampling_rate <= 1:
        raise UsageError(f"--sampling-rate must lie in (0, 1], got {settings.sampling_rate:g}; 1 takes all every time")
    asked_delta(settings.delta)
    if not 0 < settings.confidence < 1:
        raise UsageError(f"--confidence must lie in (0, 1), got {settings.confidence:g}; choose for example 0.95")
    if settings.view not in (None, "server", "third party", "message"):
        raise UsageError(f"an audit has no view {settings.view!r}; choose server or 'third party', or message")
    for name in ("noise_scale", "claimed_epsilon"):
        value = getattr(settings, name)
        if value is not None and not (value == 0 or LEAST <= value <= MOST):
            raise UsageError(f"--{name.replace('_', '-')} must be 0, or {LEAST:g} to {MOST:g}, got {value:g}")
    if not LEAST <= settings.learning_rate <= MOST:
        raise UsageError(f"--learning-rate must be above 0, from {LEAST:g} to {MOST:g}, got {settings.learning_rate:g}")
