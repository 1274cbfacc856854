"""Hands an attack that identifies the lineups' images of every class, and scores what it makes of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness.attacks import Identifier
from harness.base.devices import fitting, is_small, peak_of
from harness.base.progress import Progress, progress
from harness.base.randomness import derive_seed
from harness.evaluation.attacking import title_of
from harness.evaluation.observe import Scene
from harness.experiment import CellSettings
from harness.observation import Observation
from harness.results import Control, Identified, LabelInference, Lineup, Outcomes, Rate, Summary
from harness.results.schema import Outcome
from harness.scoring import METRICS, Ranking, Verdict, identity_test, judge_identity, summary_of
from harness.scoring.images import draws_of
from harness.scoring.lineup import MANY
from harness.scoring.lineup_pool import Answer, Question
from harness.scoring.verdict import identified_of

NOTHING = "the attack tells known examples apart and reconstructs none"
_GIVEN = "the candidates are of the truth's class"


@dataclass(frozen=True)
class IdentityScores:
    """All numbers of a cell of an attack that reconstructs nothing.

    ``evaluations``: (V,) gradients computed for each victim; ``doubt``: see :meth:`Identifier.doubt`;
    ``clusters``: see :class:`harness.evaluation.scores.Scores`; ``texts``: whether examples are texts, whose metrics
    then stand there without a value, so that a report calls them by their name.
    """

    ranking: Ranking
    swap_p: float | None
    evaluations: NDArray[np.float64]
    doubt: str | None
    clusters: int
    groups: np.ndarray | None = None
    texts: bool = False

    @property
    def identified(self) -> Identified:
        """Measure of how well truths are told among look-alikes."""
        return identified_of(self.ranking.first, self.ranking.sizes, self.ranking.lineup, self.clusters, self.groups)

    @property
    def lineups(self) -> Rate:
        """Images that are first in their lineups, of those that have one."""
        return self.ranking.firsts(self.clusters, self.groups)

    @property
    def succeeds(self) -> bool:
        """Return whether it identifies."""
        return self.identified.identifies

    @property
    def brings_back(self) -> bool:
        """Return False, since nothing is reconstructed."""
        return False

    def verdict(self, controls: Iterable[Control]) -> Verdict:
        """The cell's verdict under these controls."""
        return judge_identity(self.identified, self.doubt, controls)

    def outcomes(self) -> list[Outcome]:
        """One outcome per victim: whether any of its examples is first in its lineup."""
        return ["identified" if first else "failure" for first in np.any(self.ranking.first, axis=1).tolist()]

    def claims(self) -> dict[str, Any]:
        """Return what a cell's result says of them."""
        outcomes, kinds = self.outcomes(), ("anything", "texts") if self.texts else ("anything",)
        return {
            "metrics": {name: Summary(reason=NOTHING) for name, metric in METRICS.items() if metric.of in kinds}
            | {"gradient_evaluations": summary_of(*draws_of(self.evaluations, self.clusters, self.groups))},
            "asr": {"strict": Rate(reason=NOTHING)},
            "lineup": Lineup(reason=f"{NOTHING}; see identified"),
            "identified": self.identified,
            "label": LabelInference(reason=_GIVEN),
            "warnings": [] if self.doubt is None else [self.doubt],
            "outcomes": Outcomes(identified=outcomes.count("identified"), failure=outcomes.count("failure")),
        }

    def of_image(self, row: int, image: int) -> dict[str, Any]:
        """Return what the record of one image of a victim says of them."""
        return {
            "outcome": self.outcomes()[row],
            "lineup_rank": float(self.ranking.ranks[row, image]),
            "lineup_size": int(self.ranking.sizes[row, image]),
            "gradient_evaluations": float(self.evaluations[row]),
        }


def identify_scene(
    settings: CellSettings, attack: Identifier, scene: Scene, chunk: int, must_not_identify: bool = False
) -> IdentityScores:
    """Runs the attack on a scene and scores it.

    Args:
        settings: the cell.
        attack: it is handed images of one class at a time, truths and others in an order that says nothing.
        scene: the observation for the attack, the truth for the scorer.
        chunk: pairs of a row and a candidate compared together.
        must_not_identify: whether this is a negative control, whose p-value has to be resolved below 1e-4.
    """
    truth, images, labels = scene.truth, scene.dataset.images, scene.dataset.labels
    shown = sum(len(own.unique()) for own in truth.labels)  # a victim comes up once for each class among its examples
    with progress(title_of(settings), shown, "lineups") as bar:
        observation = scene.observation.known_to(attack.tier)
        pairs = _at_once(attack, observation, images, settings, chunk)
        lineups = _Lineups(attack, observation, images, len(truth.labels), settings.seeds[0], pairs, bar)
        tested = (lineups.compare, truth.indices, labels, settings.seeds[0])
        # Nothing but a p-value speaks of several examples: few permutations leave it above 1e-4.
        sharp = must_not_identify or observation.examples > 1
        ranking, swapped = identity_test(*tested, MANY) if sharp else identity_test(*tested)
    return IdentityScores(
        ranking,
        swapped and swapped.lineup.p_value,
        lineups.evaluations,
        scene.doubt or lineups.doubt(),
        settings.clusters,
        scene.groups,
        scene.dataset.words is not None,
    )


def _at_once(attack: Identifier, seen: Observation, images: Tensor, settings: CellSettings, chunk: int) -> int:
    """Return how many pairs of a row and a candidate to compare together: ``chunk``, or as many as fit into memory."""
    if is_small(chunk, seen.model.layout.total, images[0].numel(), settings.device):
        return chunk
    first = seen.take(torch.tensor([0], device=seen.target.device))
    pair = (first, images[None, :2], torch.zeros(1, dtype=torch.long), 2)
    if seen.examples > 1:
        attack.distances(*pair)  # what serves all candidates is worked out once and kept, and is none of a pair's
    each = peak_of(lambda: attack.distances(*pair)) / 2
    return fitting(chunk, each, f"{settings.attack} on {settings.model}, pairs", settings.device)


class _Lineups:
    """The attack's distances, class by class, and each row's most probable candidate of all."""

    def __init__(
        self, attack: Identifier, observation: Observation, images: Tensor, victims: int, seed: int, chunk: int,
        bar: Progress,
    ) -> None:  # fmt: skip
        self._bar = bar
        self._attack, self._observation, self._images = attack, observation, images
        self._each, self._seed, self._chunk = observation.rows // victims, seed, chunk
        self._least = torch.full((observation.rows,), torch.inf, dtype=torch.float64)
        self._chosen = torch.zeros(observation.rows, 2, dtype=torch.long)  # image and class
        self.evaluations = np.zeros(victims)

    def compare(self, questions: Sequence[Question]) -> Iterable[Answer]:
        """See :data:`harness.scoring.lineup_pool.Compare`. Nothing is accurate: nothing is reconstructed."""
        answer = self._victim_by_victim if self._observation.examples > 1 else self._class_by_class
        return ((found, np.zeros(found.shape, dtype=bool)) for found in answer(questions))

    def _class_by_class(self, questions: Sequence[Question]) -> Iterator[NDArray[np.float64]]:
        return (self._told(self._seen(question.victims), question) for question in questions)

    def _victim_by_victim(self, questions: Sequence[Question]) -> list[NDArray[np.float64]]:
        """Return the distances for each question, one victim at a time. The attack works out for each victim what
        serves all classes, and keeps it while ``seen`` is held."""
        found = [np.empty((len(question.victims), len(question.items))) for question in questions]
        for victim in sorted({victim for question in questions for victim in question.victims.tolist()}):
            seen = self._seen(alone := np.array([victim]))
            for question, distances in zip(questions, found, strict=True):
                if victim in question.victims:
                    distances[question.victims == victim] = self._told(seen, question._replace(victims=alone))
        return found

    def _rows(self, victims: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy((victims[:, None] * self._each + np.arange(self._each)).reshape(-1))

    def _seen(self, victims: NDArray[np.int64]) -> Observation:
        return self._observation.take(self._rows(victims).to(self._observation.target.device))

    def _told(self, seen: Observation, question: Question) -> NDArray[np.float64]:
        """Return how far each item (V, P) is from each victim, and keep the most probable candidate of all."""
        victims, items, label = question
        order = np.random.default_rng(derive_seed("candidates", self._seed, label)).permutation(len(items))
        chosen, rows = torch.from_numpy(items[order]), self._rows(victims)
        candidates = self._images[chosen].expand(len(rows), -1, *self._images.shape[1:])
        found = self._attack.distances(seen, candidates, torch.full((len(rows),), label), self._chunk)
        found = found.nan_to_num(nan=torch.inf, posinf=torch.inf)
        least, place = found.min(1)
        better = least < self._least[rows]
        self._least[rows] = torch.where(better, least, self._least[rows])
        best = torch.stack([chosen[place], torch.full_like(place, label)], 1)
        self._chosen[rows] = torch.where(better[:, None], best, self._chosen[rows])
        self.evaluations[victims] += self._each * len(items)
        distances = np.empty((len(victims), len(items)))
        # A victim whose examples were read one by one is as near as the nearest of them.
        distances[:, order] = found.reshape(len(victims), self._each, -1).amin(1).numpy()
        self._bar.advance(len(victims))
        return distances

    def doubt(self) -> str | None:
        """Return whether the most probable candidates contradict the noise that is believed in."""
        rows = self._least.isfinite().nonzero()[:, 0]
        if len(rows) <= len(self._least) / 2:
            return "to most victims no candidate could be compared: no distance is a finite number"
        if len(rows) < 2:
            return None
        seen = self._observation.take(rows.to(self._observation.target.device))
        image, label = self._chosen[rows].T
        return self._attack.doubt(seen, self._images[image], label)
