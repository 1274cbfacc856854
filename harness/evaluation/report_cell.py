"""Puts the numbers of a cell into the form of the result document."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.evaluation.promised import promised
from harness.evaluation.scored import Scored
from harness.experiment import CellSettings
from harness.results import CellResult, Control, Outcomes, Place, Summary, VictimRecord
from harness.scoring import METRICS, Verdict, rate_of, summary_of


def cell_result(
    scored: Scored, key: str, control: str | None, controls: Sequence[Control], verdict: Verdict
) -> CellResult:
    """The result of an evaluated cell or control."""
    scores = scored.scores
    metrics = {name: summary_of(values.reshape(scores.victims, -1)) for name, values in scores.metrics.items()}
    metrics |= {name: Summary(reason=reason) for name, reason in scores.missing.items()}
    return CellResult(
        **_common(scored.settings),
        privacy=promised(scored),
        key=key,
        role="control" if control else "cell",
        control=control,
        observation_id=scored.scene.observation.fingerprint(),
        metrics=metrics,
        asr={rule: rate_of(success.reshape(scores.victims, -1)) for rule, success in scores.success.items()},
        confirmed=scores.confirmed,
        lineup=scores.ranking.lineup,
        label=scores.label,
        verdict=verdict.verdict,
        verdict_reason=verdict.reason,
        controls=list(controls),
        outcomes=Outcomes(**Counter(scores.outcomes())),
        seconds=scored.seconds,
    )  # fmt: skip


def impossible_cell(settings: CellSettings, key: str, control: str | None, reason: str) -> CellResult:
    """The record of a cell whose combination of settings is impossible."""
    victims = settings.victims * len(settings.seeds)
    return CellResult(
        **_common(settings),
        key=key,
        role="control" if control else "cell",
        control=control,
        verdict_reason="not applicable",
        outcomes=Outcomes(not_applicable=victims),
        not_applicable_reason=reason,
    )


def _common(settings: CellSettings) -> dict[str, Any]:
    defense, own = settings.build_defense(), {*Place.model_fields, "attack"} & {*CellSettings.model_fields}
    return {name: getattr(settings, name) for name in own} | {
        "surface": settings.surface,
        "defense_args": defense.parameters() | {"noise_scale": settings.noise_scale},
        "attack_args": settings.build_attack().parameters(),
        "seeds": list(settings.seeds),
        "victims": settings.victims * len(settings.seeds),
        "cohort": asdict(settings.cohort()),
        "units": defense.units(),
    }


def victim_records(scored: Scored, key: str, control: str | None) -> list[VictimRecord]:
    """One record per attacked image."""
    settings, scores, truth = scored.settings, scored.scores, scored.scene.truth
    outcomes = scores.outcomes()
    images = truth.labels.shape[1]
    own_metrics = [name for name, metric in METRICS.items() if metric.in_victims and name in scores.metrics]
    records = []
    for row, (seed, victim) in enumerate(
        (seed, number) for seed in settings.seeds for number in range(settings.victims)
    ):
        for image in range(images):
            place = row * images + image
            records.append(
                VictimRecord(
                    cell=key, role="control" if control else "cell", dataset=settings.dataset,
                    defense=settings.defense, attack=settings.attack, tap=settings.tap, seed=seed, victim=victim,
                    image=image, dataset_index=int(truth.indices[row, image]), label=int(truth.labels[row, image]),
                    inferred_label=int(scores.labels_inferred[place]), outcome=outcomes[row],
                    lineup_rank=float(scores.ranking.ranks[row, image]),
                    lineup_size=int(scores.ranking.sizes[row, image]), tau=float(scores.metrics["tau"][place]),
                    steps_taken=float(scores.steps[row]), gradient_evaluations=float(scores.evaluations[row]),
                    loss=float(scores.losses[row]), initial_loss=float(scores.first_losses[row]),
                    **{name: float(scores.metrics[name][place]) for name in own_metrics},
                )
            )  # fmt: skip
    return records
