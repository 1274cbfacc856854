"""Accuracies of S002's experiments: the mean over the last tenth of the rounds, of several runs."""

import statistics

from harness.frontier.request import Request
from harness.frontier.trained import TrainedRuns
from harness.papers.chance import chance_level
from harness.papers.measured import SeededRuns
from harness.privacy import steps_within
from harness.privacy.events import Event
from harness.privacy.systems import Scaffold, scaffold_accountant, scaffold_event
from harness.privacy.systems.scaffold import Mode
from harness.reproduction.scaffold.methods import METHODS, Federated
from harness.reproduction.scaffold.step_size import StepSizes

RUNS = 3
LAST = 0.1
_MEASUREMENTS = 100


class S002Runs:
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
