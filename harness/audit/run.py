"""One audit: a run with canaries under a defense, scored and judged."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from harness.audit.canaries import PlayedExamples, RealGradients, coins, make_canaries
from harness.audit.federation import AuditedFederation, ClientAudit, ExampleAudit, SumAudit
from harness.audit.result import AuditResult, audit_result, claim_of, unit_of
from harness.audit.settings import AuditSettings, Unit
from harness.base.errors import UsageError
from harness.base.limits import forecast, require_memory, seconds_of
from harness.base.progress import progress
from harness.datasets import Dataset, load_dataset, select_victims
from harness.models import RowModel


def audit(settings: AuditSettings, data_root: Path) -> AuditResult:
    """Trains one run with canaries, guesses which were in, and says what that proves.

    The canaries' coins, the sampling of units and all noise are keyed by the seed: equal settings give equal results.

    Raises:
        UsageError: the settings do not fit the model, the data or the defense.
    """
    defense, dataset = settings.build_defense(), _dataset(settings.dataset, data_root)
    model = RowModel(settings.model, dataset.image_shape, dataset.num_classes)
    unit = unit_of(defense, settings)
    # Told first, since a mistake in the settings shows here before anything is played.
    facts = settings.facts(unit, len(model.layout.sizes), model.layout.total)
    claim = claim_of(defense, settings, unit, facts)
    if settings.sums:
        _require_memory(settings, model.layout.total)
    steps = settings.rounds * settings.steps
    taken = seconds_of(steps, steps * (settings.canaries + settings.others))
    forecast(taken, f"an audit of {settings.rounds} rounds of {settings.steps} steps")
    view, together = claim.statement.view, settings.design == "together"
    canaries = make_canaries(model.layout, settings.canaries, settings.seed, together)
    included = coins(settings.seed, settings.canaries)
    weights = model.initial_weights([(settings.seed, "audit")])[0]
    real = _real_gradients(model, dataset, settings) if together and settings.others else None
    apart = not together and (settings.sums if unit == "example" else view != "server")
    rounds = settings.rounds * (settings.canaries if apart else 1)
    with progress(f"auditing {settings.defense} by canaries {settings.design}", rounds, "rounds") as bar:
        federation = replace(_federation(settings, unit, model), on_round=lambda: bar.advance(1))
        if unit == "example":
            played = SumAudit if settings.sums else ExampleAudit
            scores = played(federation, PlayedExamples(settings, canaries, included, real), weights).scores()
        else:
            others = torch.zeros(0, model.layout.total)
            if real is not None:
                gradients = real(weights[None], torch.arange(settings.others)[None])[0]
                others = -settings.learning_rate * settings.steps * gradients
            scores = ClientAudit(federation, settings, canaries, included, others, settings.rate(unit), view).scores()
    return audit_result(settings, claim, scores, included)


def _federation(settings: AuditSettings, unit: Unit, model: RowModel) -> AuditedFederation:
    return AuditedFederation(
        settings.build_defense(), settings.learning_rate, settings.cohort(unit), model.layout,
        f"audit {settings.seed}", settings.noise_scale,
    )  # fmt: skip


def _require_memory(settings: AuditSettings, parameters: int) -> None:
    """Of every client its weights, update and message; of every example its gradient, in more than one form."""
    vectors = 6 * settings.clients_per_round + 3 * (settings.canaries + settings.others)
    mend = "lower --clients-per-round or --canaries, or take a smaller --model"
    require_memory(8.0 * vectors * parameters, "a round of summed clients", mend)


def _real_gradients(model: RowModel, dataset: Dataset, settings: AuditSettings) -> RealGradients:
    if settings.others > len(dataset.labels):
        raise UsageError(f"{settings.dataset} has only {len(dataset.labels)} examples; lower --others")
    chosen = select_victims(dataset, settings.others, 1, settings.seed, distinct_labels=False)
    images, labels = chosen.images[:, 0], chosen.labels[:, 0]

    def gradients(weights: Tensor, places: Tensor) -> Tensor:
        return model.per_example_gradients(weights, images[places], labels[places])

    return gradients


@lru_cache(maxsize=4)
def _dataset(name: str, data_root: Path) -> Dataset:
    return load_dataset(name, data_root)
