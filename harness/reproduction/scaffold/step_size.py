"""The step size of S002's algorithms, chosen by the paper's rule for every one of them alike.

Source: S002, appendix D.1: a grid of ten values, for each algorithm with and without privacy, on the data with the
lowest heterogeneity and training records only; kept for all other heterogeneity. The grid's values are not printed;
ours goes from 0.001 to 10. Where the paper cross-validates over five folds, one fold is used.
"""

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field

from harness.frontier.request import Request
from harness.progress import progress
from harness.reproduction.scaffold.methods import Federated
from harness.results import cell_key
from harness.storage.atomic import write_atomic
from harness.storage.stored import parse_json, read_stored
from harness.training import Training, TrainSettings
from harness.training.accuracy import accuracy_of

log = logging.getLogger(__name__)

GRID = tuple(round(10 ** (-3 + 4 * place / 9), 4) for place in range(10))
QUICK_GRID = GRID[3::2]
ROUNDS, QUICK_ROUNDS = 100, 20
FOLDS = 5
# Of no run that is reported.
SEED = 1_000_003
_LAST = 0.1
_CHUNK = 25


class _Measured(BaseModel):
    """What a file holds; its settings are those that name it."""

    accuracy: Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Chosen:
    """eta0 of a method, and what each value of the grid came to on the fold that was left out (0: diverged)."""

    first: float
    accuracies: dict[float, float]


class StepSizes:
    """Chooses each method's step size once; ``--resume`` reads what an earlier run chose."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.grid, self.rounds = (QUICK_GRID, QUICK_ROUNDS) if request.quick else (GRID, ROUNDS)
        self._chosen: dict[tuple[str, str], Chosen] = {}

    def of(self, method: str, federated: Federated) -> Chosen:
        """The grid's best value by accuracy on the fold left out, the smaller one of equals."""
        place = federated.family, method
        if place not in self._chosen:
            lowest, found = federated.least_heterogeneous(), {}
            with progress(f"choosing the step size of {method} on {lowest.title}", len(self.grid)) as bar:
                for first in self.grid:
                    found[first] = self._accuracy(self._settings(method, lowest, first))
                    bar.advance(1)
            self._chosen[place] = Chosen(max(found, key=lambda value: (found[value], -value)), found)
        return self._chosen[place]

    def header(self) -> list[str]:
        """How step sizes were chosen, and which ones."""
        scale = f"by --quick {len(QUICK_GRID)} values, {QUICK_ROUNDS} rounds; " if self.request.quick else ""
        chosen = ", ".join(f"{method} {one.first:g} ({family})" for (family, method), one in self._chosen.items())
        return [
            f"step size: eta0 / max(1, K s); eta0 of each algorithm is the best of {len(self.grid)} values from "
            f"{self.grid[0]:g} to {self.grid[-1]:g} on the data with the lowest heterogeneity (as in the paper), by "
            f"accuracy on training records left out, after {self.rounds} rounds of K=50, with a seed of its own; "
            f"{scale}the same rule for every algorithm, and nothing is chosen on the data of the result",
            f"eta0: {chosen}",
        ]

    def _settings(self, method: str, lowest: Federated, first: float) -> TrainSettings:
        kept = replace(lowest, rounds=self.rounds, records=lowest.records - lowest.records // FOLDS)
        made = kept.settings(method, first, SEED, self.request.device)
        # Rounds that warm up move nothing; every method gets as many that do.
        return made.model_copy(update={"rounds": self.rounds + made.warm_up_rounds})

    def _accuracy(self, settings: TrainSettings) -> float:
        run, key = self.request.run, cell_key({"step size": settings.model_dump(mode="json")})
        path = run.folder.path / "step-sizes" / f"{key}.json"
        with run.folder.alone_with(key):
            if run.resume and run.folder.is_of_this_run(path):
                return read_stored(path, _Measured, parse_json, "delete it").accuracy
            accuracy = held_out_accuracy(settings, self.request.data_root)
            document = {"settings": settings.model_dump(mode="json"), "accuracy": accuracy}
            write_atomic(path, json.dumps(document, indent=1).encode())
        return accuracy


def held_out_accuracy(settings: TrainSettings, data_root: Path) -> float:
    """Mean accuracy over the last tenth of the rounds on the training records that no client uses; 0 if it diverged."""
    run = Training(settings, data_root)
    used = torch.zeros(len(run.train.labels), dtype=torch.bool, device=run.data.device)
    used[run.data.flatten()] = True
    left_out = run.train.take((~used).nonzero()[:, 0])
    found = []
    for round_index in range(settings.rounds):
        run.play_round(round_index, _CHUNK)
        if not run.weights.isfinite().all():
            return 0.0
        if round_index + 1 > settings.rounds * (1 - _LAST):
            found.append(accuracy_of(run.model, run.weights, left_out)[0])
    return sum(found) / len(found)
