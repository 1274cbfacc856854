"""One audit: a run with canaries under a defense, scored and judged."""

from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.audit.federation import AuditedFederation, ClientAudit, ExampleAudit, SumAudit
from harness.audit.planted import PlayedExamples, RealGradients, audit_lower_bound, cannot_refute, coins, make_canaries
from harness.audit.settings import AuditSettings, Unit
from harness.base.devices import compute_on
from harness.base.errors import UsageError
from harness.base.limits import forecast, require_memory, seconds_of
from harness.base.progress import progress
from harness.base.words import require_texts_for
from harness.datasets import Dataset, load_dataset, select_victims
from harness.defenses import Defense, PrivacyFacts
from harness.models import RowModel, words_of
from harness.privacy import Statement

# From scores to a bound: guesses about canaries, how many were right, and what that says of a claim.

# What an audit tests: a defense's own statement for the run that is audited.


@dataclass(frozen=True)
class Claim:
    """One statement to test.

    Attributes:
        unit: what a canary is.
        statement: of one view; its epsilon, if there is one, is what holds for the run as configured.
        claimed: the epsilon claimed by the paper's convention, or named by the auditor; None where nobody claims one.
        note: where ``claimed`` comes from, if not from the statement.
    """

    unit: Unit
    statement: Statement
    claimed: float | None
    note: str = ""

    def verdict(self, bound: float) -> str:
        """Return what a lower bound on epsilon says of it."""
        if self.statement.epsilon is not None and bound > self.statement.epsilon:
            return "violates its guarantee"
        if self.claimed is not None and bound > self.claimed:
            return "violates its claim"
        return "claims nothing" if self.statement.epsilon is None and self.claimed is None else "consistent"


def unit_of(defense: Defense, settings: AuditSettings) -> Unit:
    """Return what the defense says it protects; examples where it says nothing.

    Raises:
        UsageError: clients, whose number a setting for examples names too.
    """
    stated = [statement.unit for statement in defense.statements(settings.facts("example", 1))]
    if "client" not in stated:
        return "example"
    if settings.clients_per_round > 1:
        raise UsageError(
            f"{settings.defense} protects clients, of which every canary is one; drop --clients-per-round and set "
            "--canaries, --others and --sampling-rate"
        )
    return "client"


def claim_of(defense: Defense, settings: AuditSettings, unit: Unit, facts: PrivacyFacts) -> Claim:
    """The statement for the asked view, else for the strongest view that the statements are about.

    Example-level statements of other views follow from the server's, which sees every local step, or the sum of several
    clients where no more reaches it; without a secure sum it is third parties who see no more. What is claimed for
    clients without a guarantee is claimed of the published model.
    """
    stated = defense.statements(facts)
    statements = {statement.view: statement for statement in stated if statement.unit in (unit, None)}
    covers_server = "server" in statements and statements["server"].guarantee != "none"
    closest = "third party" if settings.sums and not defense.sums_securely else "server"
    view = settings.view or (closest if unit == "example" or covers_server else "third party")
    # A defense without any guarantee says so once, for all views.
    statement = statements.get(view) or replace(next(iter(statements.values())), view=view)
    if settings.claimed_epsilon is not None:
        return Claim(unit, statement, settings.claimed_epsilon, "claimed epsilon as named")
    if statement.claimed_epsilon is None and getattr(defense, "sigma", None) == 0:
        return _claim_with_noise(defense, unit, statement, facts)
    return Claim(unit, statement, statement.claimed_epsilon)


def _claim_with_noise(defense: Defense, unit: Unit, statement: Statement, facts: PrivacyFacts) -> Claim:
    """Noise switched off: what the same defense claims at the paper's sigma is what nobody may believe any more."""
    (default,) = (field.default for field in fields(defense) if field.name == "sigma")
    usual = replace(defense, sigma=getattr(default, "default", default))
    (claimed, *_) = (other.claimed_epsilon for other in usual.statements(facts))
    return Claim(unit, statement, claimed, f"claimed for {usual.statements(facts)[0].schedule}, run without noise")


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
    """Return how many of ``guesses`` are right. Half say *in* of the highest scores (m,), half *out* of the lowest.

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
    stated = min((one for one in (statement.epsilon, claim.claimed) if one is not None), default=None)
    design = settings.canaries, settings.guesses, settings.delta, settings.confidence
    powerless = None if stated is None else cannot_refute(stated, *design)
    return AuditResult(
        settings.defense, settings.defense_args, settings.noise_scale, settings.design, claim.unit, statement.view,
        _SIDES.get(statement.adjacency or "", _REMOVED), "none" if rate == 1 else "poisson", rate,
        settings.cohort(claim.unit).clients_per_round, settings.colluders, settings.rounds, settings.steps,
        settings.seed, settings.canaries, settings.guesses,
        correct, settings.delta, settings.confidence, bound, statement.epsilon, claim.claimed, statement.guarantee,
        claim.verdict(bound), "; ".join(filter(None, [powerless, claim.note, statement.notes])),
    )  # fmt: skip


def audit(settings: AuditSettings, data_root: Path, device: str = "cpu") -> AuditResult:
    """Trains one run with canaries, guesses which were in, and says what that proves.

    The canaries' coins, the sampling of units and all noise are keyed by the seed: equal settings give equal results.

    Args:
        device: ``cpu`` or a GPU (:func:`harness.base.devices.choose_device`).

    Raises:
        UsageError: the settings do not fit the model, the data or the defense.
    """
    defense, dataset = settings.build_defense(), _dataset(settings.dataset, data_root, settings.model)
    model = RowModel(settings.model, dataset.image_shape, dataset.num_classes)
    require_texts_for(settings.model, model.vocabulary, dataset.words)
    unit = unit_of(defense, settings)
    # Told first, since a mistake in the settings shows here before anything is played.
    facts = settings.facts(unit, len(model.layout.sizes), model.layout.total)
    claim = claim_of(defense, settings, unit, facts)
    if settings.sums and unit == "example":
        _require_memory(settings, model.layout.total)
    place = compute_on(device)
    model.to(place, torch.float32)
    steps = settings.rounds * settings.steps
    taken = seconds_of(steps, steps * (settings.canaries + settings.others), model.layout.total)
    forecast(taken, f"an audit of {settings.rounds} rounds of {settings.steps} steps")
    view, together = claim.statement.view, settings.design == "together"
    canaries = make_canaries(model.layout, settings.canaries, settings.seed, together).to(place)
    included = coins(settings.seed, settings.canaries).to(place)
    weights = model.initial_weights([(settings.seed, "audit")])[0].to(place)
    real = _real_gradients(model, dataset, settings, place) if together and settings.others else None
    apart = not together and (settings.sums if unit == "example" else view != "server")
    rounds = settings.rounds * (settings.canaries if apart else 1)
    with progress(f"auditing {settings.defense} by canaries {settings.design}", rounds, "rounds") as bar:
        federation = replace(_federation(settings, unit, model), on_round=lambda: bar.advance(1), device=place)
        if unit == "example":
            played = SumAudit if settings.sums else ExampleAudit
            scores = played(federation, PlayedExamples(settings, canaries, included, real), weights).scores()
        else:
            others = weights.new_zeros(0, model.layout.total)
            if real is not None:
                gradients = real(weights[None], torch.arange(settings.others, device=place)[None])[0]
                others = -settings.learning_rate * settings.steps * gradients
            scores = ClientAudit(federation, settings, canaries, included, others, settings.rate(unit), view).scores()
    return audit_result(settings, claim, scores.cpu(), included.cpu())


def _federation(settings: AuditSettings, unit: Unit, model: RowModel) -> AuditedFederation:
    return AuditedFederation(
        settings.build_defense(), settings.learning_rate, settings.cohort(unit), model.layout,
        f"audit {settings.seed}", settings.noise_scale,
    )  # fmt: skip


def _require_memory(settings: AuditSettings, parameters: int) -> None:
    """Require memory for the weights, update and message of every client, and for the gradient of every example in more
    than one form."""
    vectors = 6 * settings.clients_per_round + 3 * (settings.canaries + settings.others)
    fix = "lower --clients-per-round or --canaries, or take a smaller --model"
    require_memory(8.0 * vectors * parameters, "a round of summed clients", fix)


def _real_gradients(model: RowModel, dataset: Dataset, settings: AuditSettings, device: torch.device) -> RealGradients:
    if settings.others > len(dataset.labels):
        raise UsageError(f"{settings.dataset} has only {len(dataset.labels)} examples; lower --others")
    chosen = select_victims(dataset, settings.others, 1, settings.seed, distinct_labels=False)
    images, labels = chosen.images[:, 0].to(device), chosen.labels[:, 0].to(device)

    def gradients(weights: Tensor, places: Tensor) -> Tensor:
        return model.per_example_gradients(weights, images[places], labels[places])

    return gradients


@lru_cache(maxsize=4)
def _dataset(name: str, data_root: Path, model: str) -> Dataset:
    return load_dataset(name, data_root, words=words_of(model))
