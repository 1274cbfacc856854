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
from harness.papers.epsilons import most_rounds
from harness.papers.grid import Comparison, at_hand, grid, number
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, SeededRuns, orders
from harness.privacy.scaffold import Scaffold, scaffold_epsilon
from harness.results import cell_key
from harness.results.atomic import write_atomic
from harness.results.files import parse_json, read_stored
from harness.study.runner import Request, TrainedRuns
from harness.training import Training, TrainSettings, train_settings
from harness.training.chance import CHANCE_NOTE, chance_level
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
        """Return the experiment with the local steps that a method takes."""
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
    """Content of a file; its settings are those that name the file."""

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
        """Return lines that say how step sizes were chosen, and which ones."""
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
        with run.folder.locked(key):
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
        self.seeds = request.several_seeds(RUNS)

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
        """Return lines that say which runs there are, and how the step size was chosen."""
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
    """Return what a private method costs; None where nothing is private. Rounds that warm up are among the rounds."""
    algorithm, _, private = METHODS[method]
    if not private:
        return None
    here = federated.under(method)
    return Scaffold(
        here.sigma, here.users, here.records, here.steps, here.rounds, here.user_rate, here.data_rate,
        variates=algorithm.startswith("scaffold"),
    )  # fmt: skip


def affordable(federated: Federated, target: float) -> int:
    """T, the most rounds at which a third party's epsilon stays within a target by the paper's accounting."""
    run = accounted(METHOD, federated)
    assert run is not None  # a private method
    return most_rounds(run, target)


# --------------------------------------------------------------------------------------
# DP-SCAFFOLD's figures and trade-offs as tables: accuracy by algorithm and heterogeneity, and under a fixed budget.


QUICK_DATA = (SYNTHETIC[0], SYNTHETIC[-1])
# The other families' data.
IMAGES = {"FEMNIST": "emnist", "MNIST": "mnist"}
STEPS = (5, 10, 50, 100)
HEADLINE_STEPS = 50
FEW_ROUNDS = 100
NOTES = [
    "agrees: SCAFFOLD, cold and warm, stands above FedAvg and FedSGD of the same privacy, and they below it. "
    "The paper prints curves and this order, no numbers",
    "ε: towards a third party as the paper has it (a claim, see dp-scaffold-accounting), what is proven for it, and "
    "what is proven towards the server; rounds that warm up are among the T rounds",
]
# Shown at every number of local steps.
DRIFTING = ("FedAvg", "SCAFFOLD", "DP-FedAvg", "DP-SCAFFOLD")


def scaffold_accuracy(request: Request) -> Comparison:
    """Trains every algorithm at K = 50, and the two that differ most at other K on the most heterogeneous data."""
    runs, rows, gaps, missing = ScaffoldRuns(request), [], [], [] if request.quick else _missing(request)
    groups = _groups(request)
    pairs = [(method, federated) for federated, methods in groups for method in methods]
    found = {pair: runs.of(*pair) for pair in request.dealt(pairs, "row")}
    request.require_whole()
    for federated, methods in groups:
        made = {method: found[method, federated] for method in methods}
        rows += method_rows(federated, made)
        gaps.append(gap(federated, made))
    scale = f"by --quick: T={FEW_ROUNDS} rounds instead of {synthetic().rounds}; left out: logistic-1-1, other K, "
    scaled = (
        [scale + "FEMNIST, MNIST"]
        if request.quick
        else [at_hand(data, request.data_root)[1] for data in IMAGES.values()]
    )
    sigmas = ", ".join(f"{one.sigma:g} ({name})" for name, one in FAMILIES.items())
    return Comparison(
        "DP-SCAFFOLD, Figures 1 to 3: accuracy by algorithm, heterogeneity and local steps",
        [*runs.header(), f"l = s = 0.2, sigma {sigmas}", *scaled],
        rows + missing,
        [
            *gaps,
            *NOTES,
            "FedSGD takes one local step (the text), FedSGD one pass 1/s of them (the released code)",
            CHANCE_NOTE,
        ],
    )


def _groups(request: Request) -> list[tuple[Federated, list[str]]]:
    if request.quick:
        return [(synthetic(dataset=data, rounds=FEW_ROUNDS), list(METHODS)) for data in QUICK_DATA]
    everything = [synthetic(dataset=data) for data in SYNTHETIC]
    for family, data in _images(request).items():
        everything += [replace(FAMILIES[family], dataset=data, level=level) for level in SIMILARITIES if data]
    other = [synthetic(steps=steps) for steps in STEPS if steps != HEADLINE_STEPS]
    return [(one, list(METHODS)) for one in everything] + [(one, list(DRIFTING)) for one in other]


def _images(request: Request) -> dict[str, str | None]:
    """Data by family; a bundled sample is too small for so many users."""
    found = {family: at_hand(data, request.data_root)[0] for family, data in IMAGES.items()}
    return {family: None if data is None or data.endswith("-sample") else data for family, data in found.items()}


def _missing(request: Request) -> list[dict[str, Any]]:
    empty = dict.fromkeys(("paper's ε", "proven ε", "proven, server"), "-")
    return [
        {"data": family, "method": "all", "K": HEADLINE_STEPS, "T": FAMILIES[family].rounds, "accuracy": "-"}
        | empty
        | {"verdict": NOT_AT_HAND}
        for family, data in _images(request).items()
        if data is None
    ]


def method_rows(federated: Federated, made: dict[str, SeededRuns]) -> list[dict[str, Any]]:
    """A row for each method of a federation, with what it costs and its place in the order."""
    verdicts: dict[str, str] = {}
    for private in (False, True):
        group = {
            method: one.measured(federated.rounds) for method, one in made.items() if METHODS[method][2] == private
        }
        verdicts |= orders({method: float("SCAFFOLD" in method) for method in group}, group)
    return [
        {
            "data": federated.title, "method": method, "K": federated.under(method).steps, "T": federated.rounds,
            "accuracy": str(one), **_epsilons(method, federated), "verdict": verdicts[method],
        }
        for method, one in made.items()
    ]  # fmt: skip


def _epsilons(method: str, federated: Federated) -> dict[str, str]:
    run = accounted(method, federated)
    if run is None:
        return {"paper's ε": "-", "proven ε": "-", "proven, server": "-"}
    return {
        "paper's ε": number(scaffold_epsilon(run, "third party", "paper"), 2),
        "proven ε": number(scaffold_epsilon(run, "third party", "proven")),
        "proven, server": number(scaffold_epsilon(run, "server", "proven")),
    }


def gap(federated: Federated, made: dict[str, SeededRuns], prefixes: tuple[str, ...] = ("", "DP-")) -> str:
    """By how many points SCAFFOLD stands from FedAvg, without and with privacy, as one line."""

    def points(prefix: str) -> str:
        return f"{100 * (made[f'{prefix}SCAFFOLD'].mean - made[f'{prefix}FedAvg'].mean):+.1f}"

    stands = ", ".join(f"{prefix}SCAFFOLD stands {points(prefix)} from {prefix}FedAvg" for prefix in prefixes)
    return f"{federated.title}, K={federated.steps}, accuracy points: {stands}"


_OF_THE_GAP = ("DP-FedAvg", "DP-SCAFFOLD")


def scaffold_gap(request: Request) -> Comparison:
    """Trains the two methods of the gap, which two cores can at full scale; ``--quick``: one seed, fewer rounds."""
    federated = synthetic(rounds=FEW_ROUNDS) if request.quick else synthetic()
    runs = ScaffoldRuns(request)
    made = {method: runs.of(method, federated) for method in request.dealt(_OF_THE_GAP, "row")}
    request.require_whole()
    scaled = [f"by --quick: T={FEW_ROUNDS} rounds instead of {synthetic().rounds}"] if request.quick else []
    seeds = "; ".join(
        f"{method} {', '.join(f'{value or 0:.3f}' for value in one.values)}" for method, one in made.items()
    )
    return Comparison(
        f"{_OF_THE_GAP[1]} beside {_OF_THE_GAP[0]} on {federated.title}, K={federated.steps}, T={federated.rounds}",
        [*runs.header(), f"l = s = 0.2, sigma {federated.sigma:g}", *scaled],
        method_rows(federated, made),
        [gap(federated, made, ("DP-",)), f"seed by seed: {seeds}", *NOTES],
    )


METHOD, BASELINE = "DP-SCAFFOLD", "DP-FedAvg"
DATA = ("logistic-5-5", "logistic-0-0")
TARGET = 3.0
TRADE_OFF = grid("dp-scaffold-tradeoff")
TRADE_OFF_STEPS, USER_RATE = TRADE_OFF.facts["steps"], TRADE_OFF.facts["user_rate"]
SIGMAS = tuple(row["sigma"] for row in TRADE_OFF.printed() if row["target"] == TARGET)
QUICK_SIGMAS = SIGMAS[::2]

SAMPLING_TARGET = 5.0
USER_RATES, DATA_RATES, RATE_BESIDE = (0.05, 0.08, 0.1, 0.12), (0.05, 0.1, 0.2), 0.1
MOST_ROUNDS = 10_000

_BUDGET = "T: the most rounds within the budget, by the paper's accounting (a claim towards a third party, no bound)"


def scaffold_tradeoff_accuracy(request: Request) -> Comparison:
    """Tables 1 and 4: accuracy after the rounds that a budget of epsilon 3 allows."""
    runs = ScaffoldRuns(request)
    data, sigmas = (DATA[:1], QUICK_SIGMAS) if request.quick else (DATA, SIGMAS)
    places = [(name, sigma) for name in data for sigma in sigmas]
    rows = [_trade_off(runs, *place) for place in request.dealt(places, "row")]
    request.require_whole()
    scaled = [f"left out by --quick: {DATA[1]}, every other sigma"] if request.quick else []
    return Comparison(
        f"DP-SCAFFOLD, Tables 1 and 4: accuracy of {METHOD} within epsilon {TARGET:g} (rounds: accuracy)",
        [*runs.header(), f"{_BUDGET}; l = {USER_RATE:g}, s = 0.2", *scaled],
        rows,
        [
            "agrees: the best K is neither the smallest nor the largest. The paper's accuracies did not survive in our "
            "copy; this is what it says of them: too many local steps leave too few rounds, too few do not converge"
        ],
    )


def _trade_off(runs: ScaffoldRuns, data: str, sigma: float) -> dict[str, Any]:
    plain = synthetic(dataset=data, sigma=sigma, user_rate=USER_RATE)
    cells, found = {}, {}
    for steps in TRADE_OFF_STEPS:
        here = replace(plain, steps=steps)
        here = replace(here, rounds=affordable(here, TARGET))
        made = runs.of(METHOD, here)
        cells[f"K={steps}"], found[steps] = f"{here.rounds}: {made}", made.mean
    best = max(found, key=found.__getitem__)
    inside = best not in (TRADE_OFF_STEPS[0], TRADE_OFF_STEPS[-1])
    return {"data": data, "σ": sigma, **cells, "best K": best, "verdict": AGREES if inside else DIFFERS}


def scaffold_sampling(request: Request) -> Comparison:
    """Figures 9 and 10: accuracy at a fixed budget by the share of users, and of records, that a step samples."""
    runs, most = ScaffoldRuns(request), FEW_ROUNDS if request.quick else MOST_ROUNDS
    users = [_rates(runs, "l", synthetic(user_rate=rate), rate, most) for rate in request.dealt(USER_RATES, "row")]
    records = [
        _rates(runs, "s", synthetic(user_rate=RATE_BESIDE, data_rate=rate), rate, most)
        for rate in request.dealt(DATA_RATES, "other row")
    ]
    request.require_whole()
    scaled = [f"by --quick: at most {FEW_ROUNDS} rounds, so that small rates spend less"] if request.quick else []
    return Comparison(
        f"DP-SCAFFOLD, Figures 9 and 10: accuracy within epsilon {SAMPLING_TARGET:g} by sampling rate",
        [
            *runs.header(),
            f"{_BUDGET}; logistic-5-5, K=50, sigma {synthetic().sigma:g}; s = 0.2 where l varies, l = {RATE_BESIDE:g} "
            f"where s varies; the paper's own budget and rates did not survive in our copy",
            *scaled,
        ],
        [row for row, _ in users + records],
        [
            _best("l", users, min(USER_RATES), "smallest"),
            _best("s", records, max(DATA_RATES), "largest"),
            f"agrees: {METHOD} stands above {BASELINE}",
        ],
    )  # fmt: skip


def _rates(
    runs: ScaffoldRuns, name: str, federated: Federated, rate: float, most: int
) -> tuple[dict[str, Any], tuple[float, float]]:
    here = replace(federated, rounds=min(affordable(federated, SAMPLING_TARGET), most))
    private, baseline = runs.of(METHOD, here), runs.of(BASELINE, here)
    row = {
        "varied": name, "rate": rate, "T": here.rounds, METHOD: str(private), BASELINE: str(baseline),
        "gap, points": f"{100 * (private.mean - baseline.mean):+.1f}",
        "verdict": AGREES if private.mean > baseline.mean else DIFFERS,
    }  # fmt: skip
    return row, (rate, private.mean)


def _best(name: str, found: list[tuple[dict[str, Any], tuple[float, float]]], expected: float, word: str) -> str:
    rate, _ = max((point for _, point in found), key=lambda point: point[1])
    same = "as the paper finds" if rate == expected else f"where the paper finds the {word}"
    return f"{METHOD} is best with {name} = {rate:g}, {same}"
