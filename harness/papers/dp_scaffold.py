"""The algorithms of DP-SCAFFOLD's paper as training settings, their step sizes, and their accuracies.

A local step's length is eta0 / max(1, K s): K local steps on a share s of a user's records are K s passes over them.
eta0 is chosen by the paper's rule for every algorithm alike. Source: Noble, Bellet, Dieuleveut, appendix D.1: a grid of
ten values, for each algorithm with and without privacy, on the data with the lowest heterogeneity and training records
only; kept for all other heterogeneity. The grid's values are not printed; ours goes from 0.001 to 10. Where the paper
cross-validates over five folds, one fold is used.
"""

import json
import logging
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field

from harness.base.progress import progress
from harness.papers.grid import grid
from harness.papers.measured import SeededRuns
from harness.privacy import steps_within
from harness.privacy.events import Event
from harness.privacy.scaffold import Mode, Scaffold, scaffold_accountant, scaffold_event
from harness.results import cell_key
from harness.results.atomic import write_atomic
from harness.results.files import parse_json, read_stored
from harness.study.runner import Request, TrainedRuns
from harness.training import Training, TrainSettings, train_settings
from harness.training.chance import chance_level
from harness.training.loop import accuracy_of

CLIP = 1.0

# Algorithm, local steps (None: as the experiment says; 0: one pass over the records), and whether steps are private.
METHODS: dict[str, tuple[str, int | None, bool]] = {
    f"{prefix}{name}": (algorithm, steps, bool(prefix))
    for prefix in ("", "DP-")
    for name, (algorithm, steps) in {
        "FedAvg": ("fedavg", None),
        "FedSGD": ("fedsgd", 1),
        "FedSGD one pass": ("fedavg", 0),
        "SCAFFOLD": ("scaffold", None),
        "SCAFFOLD-warm": ("scaffold-warm", None),
    }.items()
}


LOWEST = "logistic-0-0"
SYNTHETIC = ("logistic-0-0", "logistic-1-1", "logistic-5-5")
SIMILARITIES = (0.0, 0.1, 1.0)


@dataclass(frozen=True)
class Federated:
    """One of the paper's experiments.

    Attributes:
        family: synthetic, FEMNIST or MNIST. level: share of uniform labels of the last two (their similarity).
        steps, rounds: K local steps, T rounds (those that warm up included).
        user_rate, data_rate: l and s.
        sigma: noise multiplier of the private algorithms.
        records: training records that each user has.
    """

    family: str
    dataset: str
    sigma: float
    users: int
    records: int
    model: str = "logistic"
    split: str = "natural"
    level: float = 0.0
    steps: int = 50
    rounds: int = 400
    user_rate: float = 0.2
    data_rate: float = 0.2

    @property
    def title(self) -> str:
        """Data and heterogeneity."""
        return self.dataset if self.split == "natural" else f"{self.family}, {self.level:.0%} similar"

    def least_heterogeneous(self) -> "Federated":
        """The experiment's data with the lowest heterogeneity, at the paper's settings of most of its figures."""
        plain = replace(FAMILIES[self.family], dataset=self.dataset)
        return replace(plain, dataset=LOWEST) if self.split == "natural" else replace(plain, level=max(SIMILARITIES))

    def under(self, method: str) -> "Federated":
        """The same with the local steps that a method takes."""
        steps = METHODS[method][1]
        return self if steps is None else replace(self, steps=steps or round(1 / self.data_rate))

    def learning_rate(self, first: float) -> float:
        """A local step's length from eta0."""
        return first / max(1, round(self.steps * self.data_rate))

    def settings(self, method: str, first: float, seed: int, device: str = "cpu") -> TrainSettings:
        """A method's training settings with eta0 = ``first``."""
        algorithm, _, private = METHODS[method]
        here = self.under(method)
        return train_settings(
            dataset=here.dataset, model=here.model, algorithm=algorithm, clients=here.users,
            clients_per_round=round(here.user_rate * here.users), rounds=here.rounds, local_steps=here.steps,
            batch_size=round(here.data_rate * here.records), examples=here.records, split=here.split, level=here.level,
            batch_sampling="without-replacement", learning_rate=here.learning_rate(first),
            defense="dp_local" if private else "none",
            defense_args={"clip": CLIP, "sigma": here.sigma} if private else {},
            delta=1 / (here.users * here.records), seed=seed, device=device,
        )  # fmt: skip


def _facts(family: str) -> dict[str, Any]:
    users, records, sigma = grid("dp-scaffold-accounting").facts["data"][family]
    return {"family": family, "users": users, "records": records, "sigma": sigma}


FAMILIES: dict[str, Federated] = {
    "synthetic": Federated(**_facts("synthetic"), dataset=SYNTHETIC[-1]),
    "FEMNIST": Federated(**_facts("FEMNIST"), dataset="emnist", model="unit_logistic", split="similarity"),
    "MNIST": Federated(**_facts("MNIST"), dataset="mnist", model="pca_mlp", split="similarity", rounds=100),
}


def synthetic(**changes: Any) -> Federated:
    """The synthetic data's experiment, most heterogeneous unless said otherwise, with some settings changed."""
    return replace(FAMILIES["synthetic"], **changes)


log = logging.getLogger(__name__)

GRID = tuple(round(10 ** (-3 + 4 * place / 9), 4) for place in range(10))
QUICK_GRID = GRID[3::2]
ROUNDS, QUICK_ROUNDS = 100, 20
FOLDS = 5
# Runs of a cell; the share of the last rounds that counts; measurements of a run.
RUNS, LAST, _MEASUREMENTS = 3, 0.1, 100
# Of no run that is reported.
SEED = 1_000_003
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
        if round_index + 1 > settings.rounds * (1 - LAST):
            found.append(accuracy_of(run.model, run.weights, left_out)[0])
    return sum(found) / len(found)


class ScaffoldRuns:
    """Trains what a table asks for, with the step size chosen for its method."""

    def __init__(self, request: Request) -> None:
        self.request, self.sizes, self._trained = request, StepSizes(request), TrainedRuns(request)
        first = request.seeds[0]
        several = tuple(range(first, first + RUNS)) if len(request.seeds) == 1 and not request.quick else request.seeds
        self.seeds = several

    def of(self, method: str, federated: Federated) -> SeededRuns:
        """A method's accuracies in a federation."""
        first = self.sizes.of(method, federated).first
        values = tuple(self._value(method, federated, first, seed) for seed in self.seeds)
        return SeededRuns(values, chance_level(federated.dataset, federated.model, self.request.data_root))

    def _value(self, method: str, federated: Federated, first: float, seed: int) -> float | None:
        settings = federated.settings(method, first, seed, self.request.device)
        title = f"{method} on {federated.title}, seed {seed}"
        curve = self._trained.curve(title, settings, max(settings.rounds // _MEASUREMENTS, 1))
        last = [accuracy for number, accuracy in curve.items() if number > settings.rounds * (1 - LAST)]
        return statistics.fmean(last) if last else None

    def header(self) -> list[str]:
        """Which runs, and how the step size was chosen."""
        runs = f"{len(self.seeds)} runs, seeds {list(self.seeds)}"
        scale = f"; by --quick {len(self.seeds)} instead of {RUNS}" if self.request.quick else ""
        return [
            "synthetic: M=100 users of 4,000 training and 1,000 test records of unit length, logistic regression",
            "private: whole gradients of records clipped to C=1 (the paper's C is the batch's median norm, which no "
            "epsilon covers), noise std 2 sigma C / B on their mean",
            "features standardised over all users (the paper does not say over what): chosen after user by user had "
            "left even a model of all records at 15%",
            f"accuracy: mean over the last tenth of the rounds on all users' test records; mean ± deviation of {runs}"
            + scale,
            *self.sizes.header(),
        ]


def accounted(method: str, federated: Federated) -> Scaffold | None:
    """What a private method costs; None where nothing is private. Rounds that warm up are among the rounds."""
    algorithm, _, private = METHODS[method]
    if not private:
        return None
    here = federated.under(method)
    return Scaffold(
        here.sigma, here.users, here.records, here.steps, here.rounds, here.user_rate, here.data_rate,
        variates=algorithm.startswith("scaffold"),
    )  # fmt: skip


def affordable(federated: Federated, target: float, mode: Mode = "paper") -> int:
    """T, the most rounds at which a third party's epsilon stays within a target."""

    def event(rounds: int) -> Event:
        return scaffold_event(
            Scaffold(
                federated.sigma, federated.users, federated.records, federated.steps, rounds, federated.user_rate,
                federated.data_rate,
            ),
            "third party", mode,
        )  # fmt: skip

    delta = 1 / (federated.users * federated.records)
    return steps_within(scaffold_accountant(mode), event, target, delta, "filter").rounds
