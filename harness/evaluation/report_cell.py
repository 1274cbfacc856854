"""Puts the numbers of a cell into the form of the result document."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from harness.defenses import PrivacyFacts
from harness.evaluation.scored import Scored
from harness.experiment import CellSettings
from harness.privacy import what_holds
from harness.results import (
    CellResult,
    ControlCheck,
    LabelInference,
    Lineup,
    MetricSummary,
    Outcomes,
    PrivacyStatement,
    RateSummary,
    VictimRecord,
)
from harness.scoring import Rate, Summary, Verdict

# What a victim's own record holds, where it can be had.
IMAGE_METRICS = ("rmse", "rmse_raw", "psnr", "ssim", "lpips", "continuous_rmse", "categorical_accuracy")

REPEATED = "epsilon counts one pass of training; seeing the same record {0} times costs {0} compositions"


HYPOTHETICAL = "of a whole training with clients and examples sampled as stated; one round was played here"
OTHER_DEFENSE = "of the run whose model is attacked, had it been trained under this defense"


def cell_result(
    scored: Scored, key: str, control: str | None, controls: Sequence[ControlCheck], verdict: Verdict
) -> CellResult:
    """The result of an evaluated cell or control."""
    scores = scored.scores
    metrics = {name: _summary(values, scores.victims) for name, values in scores.metrics.items()}
    metrics |= {name: MetricSummary(reason=reason) for name, reason in scores.missing.items()}
    lineup = scores.lineup
    return CellResult(
        **_common(scored.settings),
        privacy=_privacy(scored),
        key=key,
        role="control" if control else "cell",
        control=control,
        observation_id=scored.scene.observation.fingerprint(),
        metrics=metrics,
        asr={rule: _rate(Rate.of(success.reshape(scores.victims, -1))) for rule, success in scores.success.items()},
        confirmed=scores.confirmed,
        lineup=Lineup(
            rate=lineup.rate, mean_rank=lineup.mean_rank, p_value=lineup.p_value,
            reason=None if lineup.p_value is not None else "no victim has unused images of its class as decoys",
        ),
        label=LabelInference(**scores.label),
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


def _common(settings: CellSettings) -> dict[str, object]:
    defense = settings.build_defense()
    return {
        "dataset": settings.dataset,
        "model": settings.model,
        "defense": settings.defense,
        "defense_args": defense.parameters() | {"noise_scale": settings.noise_scale},
        "attack": settings.attack,
        "attack_args": settings.build_attack().parameters(),
        "surface": settings.surface,
        "tap": settings.tap,
        "seeds": list(settings.seeds),
        "victims": settings.victims * len(settings.seeds),
        "batch_size": settings.batch_size,
        "local_steps": settings.local_steps,
        "update_model": settings.update_model,
        "round": settings.round,
        "observations": settings.observations,
        "cohort": asdict(settings.cohort()),
        "units": defense.units(),
    }


def _privacy(scored: Scored) -> list[PrivacyStatement]:
    """The defense's statements for the whole training behind the attacked round, examples and clients sampled.

    That is the run whose model is attacked, or else a training as the settings describe it. An epsilon counts every
    release of that training once. Repeated looks come on top and cannot be counted as more rounds: a schedule would
    run on, and sampling would be credited to looks that all show the same record.
    """
    settings, model = scored.settings, scored.scene.observation.model
    defense, run = settings.build_defense(), settings.trained
    if run:
        hypothetical = None if defense == run.settings.build_defense() else OTHER_DEFENSE
        made = what_holds(defense.statements(run.facts(model.layout)), run.copies, model.uncovered)
    else:
        hypothetical = HYPOTHETICAL
        facts = PrivacyFacts(
            settings.cohort(), len(model.layout.sizes), rate=settings.rate, parameters=model.layout.total,
            own_state=settings.variates is not None,
        )  # fmt: skip
        made = what_holds(defense.statements(facts), uncovered=model.uncovered)
    if settings.noise_scale != 1:
        made = what_holds(made, uncovered=f"a control with {settings.noise_scale:g} times the noise")
    if hypothetical:
        made = [one if one.guarantee == "none" else replace(one, notes=f"{one.notes}; {hypothetical}") for one in made]
    rows = [statement.row() for statement in made]
    if settings.observations > 1:
        for row in rows:
            if row["epsilon"] is not None:
                row["notes"] += f"; {REPEATED.format(settings.observations)}"
    return [PrivacyStatement(**row) for row in rows]


def _summary(values: np.ndarray, victims: int) -> MetricSummary:
    summary = Summary.of(values.reshape(victims, -1))
    median = None if summary.mean is None else float(np.median(values))
    return MetricSummary(mean=summary.mean, std=summary.std, median=median, ci95=summary.ci95)


def _rate(rate: Rate) -> RateSummary:
    return RateSummary(rate=rate.rate, successes=rate.successes, n=rate.n, ci95=rate.ci95)


def victim_records(scored: Scored, key: str, control: str | None) -> list[VictimRecord]:
    """One record per attacked image."""
    settings, scores, truth = scored.settings, scored.scores, scored.scene.truth
    outcomes = scores.outcomes()
    images = truth.labels.shape[1]
    own_metrics = [name for name in IMAGE_METRICS if name in scores.metrics]
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
                    lineup_rank=float(scores.lineup.ranks[row, image]),
                    lineup_size=int(scores.lineup.sizes[row, image]), tau=float(scores.metrics["tau"][place]),
                    steps_taken=float(scores.steps[row]), gradient_evaluations=float(scores.evaluations[row]),
                    loss=float(scores.losses[row]), initial_loss=float(scores.first_losses[row]),
                    **{name: float(scores.metrics[name][place]) for name in own_metrics},
                )
            )  # fmt: skip
    return records
