"""Compares a cell's reconstructions with the truth and judges it. Every victim is counted."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.attacks import Reconstruction, reconstructing
from harness.attacks.engine import REASONS
from harness.evaluation.attacking import AttackRecord
from harness.evaluation.identifying import IdentityScores
from harness.evaluation.measure import measure, strict_rule
from harness.evaluation.observe import Scene
from harness.evaluation.rounds_seen import of_places
from harness.experiment import CellSettings
from harness.results import Control, LabelInference, Outcomes, Rate, Summary
from harness.results.schema import Outcome, SuccessRule
from harness.scoring import (
    METRICS,
    LpipsScorer,
    Ranking,
    Verdict,
    judge,
    label_summary,
    lineup_test,
    match,
    rate_of,
    summary_of,
    swap_control,
)
from harness.scoring.images import best_first, draws_of, repeats_of
from harness.scoring.lineup import MANY
from harness.scoring.success import brings_back
from harness.scoring.texts import crowding

LPIPS_UNASKED = "not computed for controls"

_SUSPICIOUS = 0.01  # a p-value that more permutations are worth


_FAILED: dict[str, Outcome] = {
    "cap": "failure", "converged": "failure", "diverged": "diverged", "hopeless": "hopeless",
}  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """All numbers of one cell; arrays are per image, V victims times n images flattened, unless said.

    ``clusters``: independent groups of victims, in their order; intervals are over them. The verdict's bound is not:
    it speaks of the networks at hand, given which victims are independent.
    ``groups``: (V,) of victims who share images, each an independent draw; None where nobody does.
    ``repeats``: (V, n) places whose example an earlier place of the victim holds too, which do not count again.
    """

    metrics: dict[str, np.ndarray]
    missing: dict[str, str]
    success: Mapping[SuccessRule, np.ndarray]
    ranking: Ranking
    swap_p: float | None
    label: LabelInference
    labels_inferred: np.ndarray
    stop_reason: list[str]
    steps: np.ndarray
    evaluations: np.ndarray
    losses: np.ndarray
    first_losses: np.ndarray
    order: Tensor
    victims: int
    clusters: int
    doubt: str | None = None
    groups: np.ndarray | None = None
    repeats: np.ndarray | None = None

    @property
    def strict_victims(self) -> Rate:
        """Victims with any strictly reconstructed image; those who share images are one."""
        victims = np.any(self.success["strict"].reshape(self.victims, -1), axis=1, keepdims=True)
        return rate_of(draws_of(victims, self.victims, self.groups)[0].any(1))

    def _draws(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return draws_of(values.reshape(self.victims, -1), self.clusters, self.groups, self.repeats)

    @property
    def lineups(self) -> Rate:
        """Images that are first in their lineups, of those that have one."""
        return self.ranking.firsts(self.clusters, self.groups)

    @property
    def confirmed(self) -> int:
        """Images that are strict successes and rank first in their lineup."""
        return int((self.success["strict"] & self.ranking.first.reshape(-1)).sum())

    def verdict(self, controls: Iterable[Control]) -> Verdict:
        """The cell's verdict under these controls."""
        return judge(self.confirmed, self.strict_victims, self.ranking.lineup, controls, self.doubt)

    @property
    def succeeds(self) -> bool:
        """Return whether the attack leaks, whatever its controls say."""
        return self.verdict([]).verdict == "leaks"

    @property
    def brings_back(self) -> bool:
        """Return whether most images come back of victims who are too few for a verdict, so that the attack works
        there."""
        return brings_back(self.strict_victims, self.ranking.lineup.p_value)

    @property
    def stalled(self) -> np.ndarray:
        """(V,), whether an attack that failed on a victim took no third look at a gradient or never found better."""
        still = (self.evaluations < 3) | ~(self.losses < self.first_losses)
        return still & (np.array(self.outcomes()) != "success")

    def claims(self) -> dict[str, Any]:
        """Return what a cell's result says of them."""
        metrics = {name: summary_of(*self._draws(values)) for name, values in self.metrics.items()}
        metrics |= {name: Summary(reason=reason) for name, reason in self.missing.items()}
        return {
            "metrics": metrics,
            "asr": {rule: rate_of(*self._draws(success)) for rule, success in self.success.items()},
            "confirmed": self.confirmed,
            "warnings": [] if self.doubt is None else [self.doubt],
            "lineup": self.ranking.lineup,
            "label": self.label,
            "outcomes": Outcomes(**Counter(self.outcomes())),
        }

    def of_image(self, row: int, image: int) -> dict[str, Any]:
        """Return what the record of one image of a victim says of them."""
        place = row * self.ranking.ranks.shape[1] + image
        own = [name for name, metric in METRICS.items() if metric.in_victims and name in self.metrics]
        return {
            "inferred_label": int(self.labels_inferred[place]),
            "outcome": self.outcomes()[row],
            "lineup_rank": float(self.ranking.ranks[row, image]),
            "lineup_size": int(self.ranking.sizes[row, image]),
            "tau": float(self.metrics["tau"][place]),
            "steps_taken": float(self.steps[row]),
            "gradient_evaluations": float(self.evaluations[row]),
            "loss": float(self.losses[row]),
            "initial_loss": float(self.first_losses[row]),
            **{name: float(self.metrics[name][place]) for name in own},
        }

    def outcomes(self) -> list[Outcome]:
        """One outcome per victim: success by the strict rule, else why the attack ended."""
        any_strict = np.any(self.success["strict"].reshape(self.victims, -1), axis=1)
        return [
            "success" if strict else _FAILED[reason]
            for strict, reason in zip(any_strict, self.stop_reason, strict=True)
        ]


def score(
    settings: CellSettings, scene: Scene, record: AttackRecord, lpips: LpipsScorer | str, must_not_leak: bool = False
) -> Scores:
    """Scores one cell.

    Args:
        settings: the cell.
        scene: its truth.
        record: what the attack made.
        lpips: the LPIPS network, or the reason why there is none.
        must_not_leak: whether this is a negative control, whose lineup p-value has to be resolved below 1e-4.
    """
    made, truth, attack = record.reconstruction, scene.truth, reconstructing(settings.build_attack())
    victims = len(truth.labels)
    images = made.images.reshape(victims, -1, *scene.dataset.image_shape)
    labels = made.labels.reshape(victims, -1)
    indices = truth.indices.cpu().numpy()
    order = best_first(match(truth.images, images), truth.images, images, indices)
    rows = torch.arange(victims)[:, None]
    true_flat, made_flat = truth.images.flatten(0, 1), images[rows, order].flatten(0, 1)
    measured = measure(scene.dataset, true_flat, made_flat, lpips)
    seed = settings.seeds[0]
    groups = scene.groups
    truth_of = (truth.indices, scene.dataset.images, scene.dataset.labels, seed)
    rule = strict_rule(scene.dataset)
    ranking, swapped = lineup_test(images, *truth_of, strict=rule), swap_control(images, *truth_of)
    if must_not_leak and ranking.lineup.p_value is not None and ranking.lineup.p_value <= _SUSPICIOUS:
        ranking = lineup_test(images, *truth_of, permutations=MANY, strict=rule)
    per_victim = _per_victim(record, victims)
    metrics = measured.metrics | {
        "tau": record.tau.reshape(-1).double().numpy(),
        "gradient_evaluations": per_victim["evaluations"],
        "steps_taken": per_victim["steps"],
    }
    known = scene.observation.known_to(attack.tier)
    looks = record.looks or made
    metrics |= _own(attack.measures(known, looks.images, looks.labels), metrics, victims)
    metrics |= _own(scene.recovered.measures() if scene.recovered else {}, metrics, victims)
    if record.looks is not None:
        metrics |= _beside_one_round(scene, record.looks, measured.success["strict"].reshape(victims, -1))
    if scene.dataset.words is not None and "width" in metrics:
        width = metrics["width"]
        metrics |= crowding(truth.images.reshape(len(width), -1, *scene.dataset.image_shape), width)
    return Scores(
        metrics, measured.missing, measured.success, ranking, swapped and swapped.lineup.p_value,
        _labels_inferred(scene, labels, record.looks, seed),
        labels[rows, order].flatten().numpy(), per_victim["reasons"], per_victim["steps"], per_victim["evaluations"],
        per_victim["losses"], per_victim["first_losses"], order, victims, settings.clusters,
        scene.doubt or attack.doubt(known, looks.images, looks.labels), groups, repeats_of(indices),
    )  # fmt: skip


def _labels_inferred(scene: Scene, labels: Tensor, looks: Reconstruction | None, seed: int) -> LabelInference:
    """Return how well labels (V, n) are inferred. Where rounds were pooled, those of each round count, since a pool may
    lack some."""
    truth, groups = scene.truth.labels, scene.groups
    if looks is not None and scene.drawn is not None:
        rounds = scene.drawn.shape[1]
        truth = of_places(scene.truth, scene.drawn.flatten(1)).labels.reshape(looks.labels.shape)
        labels = looks.labels
        groups = (np.arange(len(scene.drawn)) if groups is None else groups).repeat(rounds)
    return label_summary(labels, truth, scene.dataset.labels, seed, groups=groups)


def _beside_one_round(scene: Scene, looks: Reconstruction, strict: np.ndarray) -> dict[str, np.ndarray]:
    """Shares of what each client holds (V,) that come back: in its best round alone, how much more in all, and what no
    round by itself brought back; and the share of a round's images that one look brings back."""
    assert scene.drawn is not None
    truth, made = scene.of_rows, looks.images
    order = match(truth, made)
    back = strict_rule(scene.dataset)(truth, made[torch.arange(len(made))[:, None], order]).cpu()
    back = back.reshape(scene.drawn.shape)
    # Who holds fewer examples than others has one of them in several places.
    counted = ~repeats_of(scene.truth.indices.cpu().numpy())
    strict, held = strict.astype(bool) & counted, counted.sum(1)
    best = back.sum(2).amax(1).double().numpy() / held
    ever = torch.zeros(strict.shape, dtype=torch.long).scatter_reduce_(
        1, scene.drawn.flatten(1), back.flatten(1).long(), "amax"
    )
    new = (strict & ~ever.bool().numpy()).sum(1) / held
    return {
        "best_round": best, "above_best_round": strict.sum(1) / held - best, "new_over_rounds": new,
        "round_by_itself": back.double().mean((1, 2)).numpy(),
    }  # fmt: skip


def _own(told: Mapping[str, Tensor], metrics: Mapping[str, np.ndarray], victims: int) -> dict[str, np.ndarray]:
    """Return an attack's own numbers, one or several per victim. Raises ValueError: they are no such numbers."""
    for name, values in told.items():
        if name in metrics or name in METRICS:
            raise ValueError(f"measure {name!r} is a metric already; give it another name")
        if values.ndim != 1 or len(values) % victims:
            raise ValueError(f"measure {name!r} has shape {tuple(values.shape)}, not one number per row")
    return {name: values.double().cpu().numpy() for name, values in told.items()}


def _per_victim(record: AttackRecord, victims: int) -> dict[str, Any]:
    """Bookkeeping per victim; a victim seen example by example is as stubborn as its worst example."""
    made = record.reconstruction

    def fold(values: Tensor, how: str) -> np.ndarray:
        grouped = values.double().reshape(victims, -1)
        return (grouped.sum(1) if how == "sum" else grouped.amax(1)).numpy()

    worst = fold(made.stop_reason, "max").astype(int)
    return {
        "reasons": [REASONS[code] for code in worst],
        "steps": fold(made.iterations, "max"),
        "evaluations": fold(made.evaluations, "sum"),
        "losses": fold(made.loss, "sum"),
        "first_losses": fold(made.initial_loss, "sum"),
    }


@dataclass(frozen=True)
class Scored:
    """Settings, the truth, what the attack made, and the numbers. ``seconds`` is wall-clock time.

    ``record`` is None where the attack reconstructs nothing.
    """

    settings: CellSettings
    scene: Scene
    record: AttackRecord | None
    scores: Scores | IdentityScores
    seconds: float
