"""Puts the numbers of a cell into the form of the result document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.datasets.prior import Prior
from harness.evaluation.fitness import flags_of
from harness.evaluation.promised import promised
from harness.evaluation.scored import Scored
from harness.evaluation.theorem import bound_of
from harness.experiment import CellSettings
from harness.results import CellResult, Control, Outcomes, Place, PublicData, VictimRecord
from harness.scoring import Verdict, within_networks


def cell_result(
    scored: Scored, key: str, control: str | None, controls: Sequence[Control], verdict: Verdict
) -> CellResult:
    """The result of an evaluated cell or control."""
    noise, batches = scored.scene.observation.noise, scored.scene.observation.batches
    return CellResult(
        **_common(scored.settings, scored.scene.observation.prior)
        | {"batch_norm": batches and ("hidden" if batches.statistics is None else "sent")},
        **scored.scores.claims(),
        privacy=promised(scored),
        key=key,
        role="control" if control else "cell",
        control=control,
        observation_id=scored.scene.observation.known_to("plain").fingerprint(),
        noise=noise and noise.law,
        verdict=verdict.verdict,
        verdict_reason=_reason(scored.settings, verdict),
        controls=list(controls),
        flags=[] if control else flags_of(scored, controls),
        bound=bound_of(scored),
        detectable=scored.scene.detectable,
        seconds=scored.seconds,
    )


def _reason(settings: CellSettings, verdict: Verdict) -> str:
    if not settings.shared_weights:
        return verdict.reason
    return within_networks(verdict.reason, verdict.verdict, len(settings.seeds))


def impossible_cell(
    settings: CellSettings, key: str, control: str | None, reason: str, prior: Prior | None
) -> CellResult:
    """The record of a cell whose combination of settings is impossible."""
    victims = settings.victims * len(settings.seeds)
    return CellResult(
        **_common(settings, prior),
        key=key,
        role="control" if control else "cell",
        control=control,
        verdict_reason="not applicable",
        outcomes=Outcomes(not_applicable=victims),
        not_applicable_reason=reason,
    )


def _common(settings: CellSettings, prior: Prior | None) -> dict[str, Any]:
    attack = settings.build_attack()
    defense, own = settings.build_defense(), {*Place.model_fields, "attack"} & {*CellSettings.model_fields}
    return {name: getattr(settings, name) for name in own} | {
        "surface": settings.surface,
        "defense_args": defense.parameters() | {"noise_scale": settings.noise_scale},
        "attack_args": attack.parameters(),
        "tier": attack.tier,
        "suite": settings.suite,
        "labels": settings.labels,
        "several": attack.several,
        "examples": settings.examples,
        "seeds": list(settings.seeds),
        "victims": settings.victims * len(settings.seeds),
        "prior": prior and PublicData(name=prior.name, size=prior.size),
        "cohort": asdict(settings.cohort()),
        "units": defense.units(),
    }


def victim_records(scored: Scored, key: str, control: str | None) -> list[VictimRecord]:
    """One record per attacked image."""
    settings, truth = scored.settings, scored.scene.truth
    everyone = ((seed, number) for seed in settings.seeds for number in range(settings.victims))
    return [
        VictimRecord(
            cell=key, role="control" if control else "cell", dataset=settings.dataset, defense=settings.defense,
            attack=settings.attack, tap=settings.tap, seed=seed, victim=victim, image=image,
            dataset_index=int(truth.indices[row, image]), label=int(truth.labels[row, image]),
            **scored.scores.of_image(row, image),
        )
        for row, (seed, victim) in enumerate(everyone)
        for image in range(truth.labels.shape[1])
    ]  # fmt: skip
