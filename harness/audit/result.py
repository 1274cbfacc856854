"""From scores to a bound: guesses about canaries, how many were right, and what that says of a claim."""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from harness.audit.claims import Claim
from harness.audit.settings import AuditSettings
from harness.base.errors import UsageError
from harness.privacy import audit_lower_bound

_REMOVED = "add/remove: a canary, or zero in its place"
_SIDES = {"replace": "replace: a canary, or a blank in its place, which adds its noise all the same"}
"""What a bound holds for, by the adjacency of the statement that it is compared with.

A canary that is out leaves its place empty, and the noise of its client is there either way. That removes an example,
or a client to whose sum somebody else adds the noise; where it is the client's own noise, it replaces the client by a
blank one, which replacing covers. Two sides of a replacement may be twice as far apart: a bound is the weaker for it,
and never too large.
"""


@dataclass(frozen=True)
class AuditResult:
    """One audit. ``lower_bound`` <= epsilon with the stated confidence, for that audit alone.

    ``epsilon`` is what the defense's statement proves for the run as configured, ``claimed_epsilon`` what the paper's
    convention claims for it; both None where there is none. ``clients_per_round`` and ``colluders`` are those of the
    federation that was played, ``adjacency`` what a canary's two sides are.
    """

    defense: str
    defense_args: dict[str, Any]
    noise_scale: float
    design: str
    unit: str
    view: str
    adjacency: str
    sampler: str
    sampling_rate: float
    clients_per_round: int
    colluders: int
    rounds: int
    steps: int
    seed: int
    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float
    lower_bound: float
    epsilon: float | None
    claimed_epsilon: float | None
    guarantee: str
    verdict: str
    notes: str

    def row(self) -> dict[str, Any]:
        """The result as plain values."""
        return asdict(self)


def guess(scores: Tensor, included: Tensor, guesses: int) -> int:
    """How many of ``guesses`` are right: half say *in* of the highest scores (m,), half *out* of the lowest.

    Raises:
        UsageError: a score is not a number, since training diverged.
    """
    if not scores.isfinite().all():
        raise UsageError("what the run released is not finite; lower --learning-rate, --steps or --rounds")
    order = scores.argsort(stable=True)
    half = guesses // 2
    lowest, highest = order[:half], order[len(order) - half :]
    return int((~included[lowest]).sum() + included[highest].sum())


def audit_result(settings: AuditSettings, claim: Claim, scores: Tensor, included: Tensor) -> AuditResult:
    """The bound that scores (m,) of canaries prove, and its verdict on the claim."""
    correct, half = guess(scores, included, settings.guesses), settings.guesses // 2
    bound = audit_lower_bound(settings.canaries, half, half, correct, settings.delta, settings.confidence)
    statement, rate = claim.statement, settings.rate(claim.unit)
    return AuditResult(
        settings.defense, settings.defense_args, settings.noise_scale, settings.design, claim.unit, statement.view,
        _SIDES.get(statement.adjacency or "", _REMOVED), "none" if rate == 1 else "poisson", rate,
        settings.cohort(claim.unit).clients_per_round, settings.colluders, settings.rounds, settings.steps,
        settings.seed, settings.canaries, settings.guesses,
        correct, settings.delta, settings.confidence, bound, statement.epsilon, claim.claimed, statement.guarantee,
        claim.verdict(bound), "; ".join(filter(None, [claim.note, statement.notes])),
    )  # fmt: skip
