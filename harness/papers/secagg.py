"""Secure aggregation with local steps, Figures 1 to 3 as tables: one local step against one local epoch per round.

Both are for a claimed epsilon of 1, with the released hyper-parameters of every configuration. Source: Heikkilä et al.,
"On Using Secure Aggregation in Differentially Private Federated Learning with Multiple Local Steps", section 5 and
appendix A.6.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.datasets import load_dataset
from harness.datasets.partition import NATURAL
from harness.experiment import CellSettings, cell_settings
from harness.federation.taps import SURFACES
from harness.papers.epsilons import DELTA, configurations, secagg_accountant
from harness.papers.grid import Comparison, at_hand, number
from harness.papers.measured import AGREES, CHANCE, DIFFERS, NOT_AT_HAND
from harness.privacy.distributed_noise import DistributedNoise, Party
from harness.results import CellResult
from harness.secagg import SkellamGrid
from harness.study.runner import Request, TrainedRuns
from harness.training import TrainDocument, TrainSettings, train_settings
from harness.training.chance import CHANCE_NOTE, chance_level

RUNS = 5
_MEASUREMENTS = 20
_CHUNK = 2  # batches of hundreds of examples fill memory on their own
_SILENT = {"sigma": 0.0, "mode": "paper", "mechanism": "gaussian"}


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments.

    Attributes:
        prefix: of its configurations' names, which go on with the local steps and the rounds.
        examples: that every client trains on; None for natural clients.
        rounds: numbers of rounds; the first ones only for ``--quick``.
    """

    prefix: str
    data: str
    model: str
    examples: int | None = None
    rounds: tuple[int, ...] = ()

    def pairs(self, quick: bool) -> list[tuple[str, str]]:
        """Names of configurations with one local step and with one epoch, of the same rounds."""
        kept = self.rounds[:1] if quick else self.rounds
        ends = [f", T={rounds}" for rounds in kept] if len(self.rounds) > 1 else [""]
        return [(f"{self.prefix}, 1 step{end}", f"{self.prefix}, 1 epoch{end}") for end in ends]


@dataclass(frozen=True)
class SecureFederation:
    """Data to train on: clients with as many ``examples`` each, and how many examples are ``tested`` on."""

    dataset: str
    clients: int
    examples: int
    split: str
    origin: str
    tested: int


@dataclass(frozen=True)
class SeededRuns:
    """Runs that differ in their seed only; None for one that diverged."""

    documents: tuple[TrainDocument | None, ...]
    test_examples: int
    chance: float

    @property
    def accuracies(self) -> list[float]:
        """After the last round; a run that diverged counts as 0."""
        return [one.accuracy or 0.0 if one else 0.0 for one in self.documents]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracies)

    @property
    def error(self) -> float:
        """Standard error of the mean over the seeds, and at least that of the test part's size."""
        sampling = math.sqrt(self.mean * (1 - self.mean) / self.test_examples)
        return max(_standard_error(self.accuracies), sampling)

    @property
    def learned(self) -> bool:
        """Return whether the accuracy is more than needs no training."""
        return self.mean > self.chance

    def accuracy(self) -> str:
        """Mean ± standard error over the seeds, and what is wrong with it."""
        diverged = self.documents.count(None)
        note = f" ({diverged} diverged)" if diverged else ("" if self.learned else " chance")
        return _shown(self.accuracies) + note

    def best(self) -> str:
        """Return mean ± standard error of the accuracies in each run's best round, as the paper's Figure 2 has it."""
        return _shown(
            [max((r.accuracy or 0.0 for r in one.rounds), default=0.0) if one else 0.0 for one in self.documents]
        )

    def loss(self) -> str:
        """Cross-entropy after the last round; there is no mean where a run diverged."""
        found = [one.rounds[-1].loss if one else None for one in self.documents]
        return _shown([]) if None in found else _shown([value for value in found if value is not None])

    def epsilon(self, view: str) -> float | None:
        """Return what the runs' statement proves for a view."""
        stated = next((one.privacy for one in self.documents if one), [])
        return next((one.epsilon for one in stated if one.view == view), None)


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.fmean(values):.3f}" + (f" ± {_standard_error(values):.3f}" if len(values) > 1 else "")


def find_federation(experiment: Experiment, root: Path) -> SecureFederation | None:
    """Return what the data at hand allow; None where there are none."""
    name = at_hand(experiment.data, root)[0]
    if name is None:
        return None
    train, test = (load_dataset(name, root, part) for part in ("train", "test"))
    if experiment.examples is None:
        assert train.clients is not None  # such experiments take the data's own split
        counts = train.clients.bincount()
        return SecureFederation(name, len(counts), int(counts.min()), NATURAL, train.origin, len(test.labels))
    clients = configurations()[experiment.pairs(quick=True)[0][0]].clients
    examples = min(experiment.examples, len(train.labels) // clients)
    return SecureFederation(name, clients, examples, "iid", train.origin, len(test.labels))


class SecureRuns:
    """Trains what a table asks for, each run once."""

    def __init__(self, request: Request, experiment: Experiment, federation: SecureFederation) -> None:
        self.request, self.experiment, self.federation = request, experiment, federation
        self._trained = TrainedRuns(request, _CHUNK)
        self.seeds = request.several_seeds(RUNS)

    def of(self, name: str, noise: bool = True) -> SeededRuns:
        """A configuration's runs; without noise only the first seed's, as a control."""
        level = chance_level(self.federation.dataset, self.experiment.model, self.request.data_root)
        documents = tuple(self.train(*one) for one in self.every([name]) if one[2] == noise)
        return SeededRuns(documents, self.federation.tested, level)

    def every(self, names: Sequence[str]) -> list[tuple[str, int, bool]]:
        """All runs of some configurations: their names, seeds, and whether there is noise."""
        return [
            (name, seed, noise)
            for name in names
            for noise in (True, False)
            for seed in (self.seeds if noise else self.seeds[:1])
        ]

    def train(self, name: str, seed: int, noise: bool) -> TrainDocument | None:
        """One run; None where it diverged."""
        settings = self.settings(name, seed, noise)
        title = f"{name}{'' if noise else ' without noise'}, seed {seed}"
        return self._trained.document(title, settings, max(settings.rounds // _MEASUREMENTS, 1))

    def settings(self, name: str, seed: int, noise: bool = True) -> TrainSettings:
        """Training settings of a configuration on the data at hand; all clients' noise together is the paper's."""
        here, one = self.federation, configurations()[name]
        return train_settings(
            dataset=here.dataset, model=self.experiment.model, clients=here.clients, clients_per_round=here.clients,
            client_sampling="all", split=here.split, examples=here.examples, rounds=one.rounds, local_steps=one.steps,
            batch_size=max(round(one.rate * here.examples), 1), batch_sampling="poisson",
            learning_rate=one.learning_rate, local_momentum=one.momentum, server_learning_rate=one.server_rate,
            server_momentum=one.server_momentum,
            defense="secagg_ddp", defense_args=self._noise(name) if noise else {**self._noise(name), **_SILENT},
            delta=DELTA, seed=seed, device=self.request.device,
        )  # fmt: skip

    def _noise(self, name: str) -> dict[str, Any]:
        """Several local steps have momentum, which keeps their updates from being plain sums of integers."""
        one = configurations()[name]
        sigma = one.sigma * math.sqrt(one.clients)
        arguments = {"clip": one.clip, "sigma": sigma, "protocol": "sum", "rotation": False}
        if one.steps == 1:
            return arguments
        return arguments | {"mode": "paper", "mechanism": "gaussian" if self.request.quick else "skellam"}


# Standard errors of the difference that an epoch must stand above a step.
CLEAR = 2.0

EXPERIMENTS = {
    "images": Experiment("Fashion-MNIST", "fashion-mnist", "tempered_cnn", 5600, (20,)),
    "cifar10": Experiment("CIFAR-10", "cifar10", "frozen_linear", 4800, (10, 20, 40, 80, 160)),
    "income": Experiment("Income", "acs-income", "logistic", None, (10,)),
}
_FIGURES = {"images": 1, "cifar10": 2, "income": 3}


def secagg_accuracy(figure: str, request: Request) -> Comparison:
    """Trains an experiment's configurations; without its data, the table says so."""
    experiment, rows, gaps = EXPERIMENTS[figure], [], []
    pairs, federation = experiment.pairs(request.quick), find_federation(experiment, request.data_root)
    runs = None if federation is None else SecureRuns(request, experiment, federation)
    if runs is not None:
        for name, seed, noise in request.dealt(runs.every([name for pair in pairs for name in pair]), "run"):
            runs.train(name, seed, noise)
    request.require_whole()
    for step, epoch in pairs:
        if runs is None:
            rows += [_absent(configuration) for configuration in (step, epoch)]
            continue
        made = {configuration: runs.of(configuration) for configuration in (step, epoch)}
        silent = {configuration: runs.of(configuration, noise=False) for configuration in made}
        verdict = _verdict(made[step], made[epoch])
        rows += [_row(runs, name, repeats, silent[name], verdict) for name, repeats in made.items()]
        gaps.append(f"{_gap(step, made[step], made[epoch])}; without noise {_points(silent[step], silent[epoch]):+.1f}")
    line = at_hand(experiment.data, request.data_root)[1].replace("training split", "data")
    found = [line] if runs is None else _header(runs, line)
    return Comparison(
        f"SecAgg with local steps, Figure {_FIGURES[figure]}: one local step against one local epoch, "
        f"{experiment.prefix}",
        found,
        rows,
        [
            *gaps,
            f"agrees: one epoch stands above one step by at least {CLEAR:g} standard errors (of the seeds, at least "
            "of the test part), as in the paper's figures; its numbers are in figures only",
            "claimed ε: by Theorem 4.6, at the paper's conventions (secagg-accounting) and the sampling rate that ran",
            "valid ε, server: what is proven against the server, which sees sums. The theorem holds for one local "
            "step; for more (†) only each client's own noise is proven. valid ε, message: whoever sees one client's",
            "no noise: one run with the same clipping and hyper-parameters; best: of all measured rounds",
            CHANCE_NOTE,
        ],
        against="the paper's order",
    )


def _row(runs: SecureRuns, name: str, made: SeededRuns, silent: SeededRuns, verdict: str) -> dict[str, Any]:
    settings, several = runs.settings(name, runs.seeds[0]), "†" if configurations()[name].steps > 1 else ""
    return {
        "run": name, "N": settings.clients, "B": settings.batch_size, "L": settings.local_steps,
        "accuracy": made.accuracy(), "loss": made.loss(), "best": made.best(),
        "no noise": silent.accuracy(), "claimed ε": f"{number(_claimed(name, settings))}{several}",
        "valid ε, server": number(made.epsilon("server"), 2), "valid ε, message": number(made.epsilon("message"), 2),
        "verdict": verdict,
    }  # fmt: skip


def _absent(name: str) -> dict[str, Any]:
    one = configurations()[name]
    columns = ("accuracy", "loss", "best", "no noise", "claimed ε", "valid ε, server", "valid ε, message")
    return {
        "run": name,
        "N": one.clients,
        "B": "-",
        "L": one.steps,
        **dict.fromkeys(columns, "-"),
        "verdict": NOT_AT_HAND,
    }


def _claimed(name: str, settings: TrainSettings) -> float:
    """Epsilon by Theorem 4.6 for what ran, with the released script's accountant."""
    clip, clients = settings.defense_args["clip"], settings.clients
    own = settings.defense_args["sigma"] / math.sqrt(clients)
    parties = (Party(own * clip, clip, settings.local_steps, settings.batch_size / settings.client_examples),) * clients
    grid = SkellamGrid(configurations()[name].parameters, clip, own, clients)
    event = DistributedNoise(parties, settings.rounds, grid=grid).sum_event()
    return secagg_accountant().epsilon(event, DELTA).epsilon


def _verdict(step: SeededRuns, epoch: SeededRuns) -> str:
    if not epoch.learned:
        return CHANCE
    return AGREES if epoch.mean - step.mean >= CLEAR * _error(step, epoch) else DIFFERS


def _error(step: SeededRuns, epoch: SeededRuns) -> float:
    return math.hypot(step.error, epoch.error)


def _gap(name: str, step: SeededRuns, epoch: SeededRuns) -> str:
    experiment, points, error = name.replace(", 1 step", ""), _points(step, epoch), 100 * _error(step, epoch)
    return f"{experiment}: one epoch stands {points:+.1f} ± {error:.1f} accuracy points from one step"


def _points(step: SeededRuns, epoch: SeededRuns) -> float:
    return 100 * (epoch.mean - step.mean)


def _header(runs: SecureRuns, line: str) -> list[str]:
    experiment, count = runs.experiment, len(runs.seeds)
    frozen = "features: frozen random filters instead of a ResNeXt-29 trained on CIFAR-100, 1,024 as there"
    scaled = (
        f"by --quick: {count} seed{'s' * (count > 1)} instead of {RUNS}; epochs with Gaussian noise, which at 32 bits "
        "costs the same (secagg-accounting)" + ("; only the fewest rounds" if len(experiment.rounds) > 1 else "")
    )
    return [
        *([line] if experiment.examples else []), _clients(runs),
        *([frozen] if experiment.model == "frozen_linear" else []),
        "C, q, sigma, rounds, local and server learning rates and momenta: the released ones of each configuration; "
        "nothing is tuned. Local momentum begins at zero in every round",
        "Skellam noise in a ring of 32 bits: integers for one step, updates in fixed point for several; added without "
        "the protocol, which gives the same to the bit; steps divide by the expected batch (released code: the real)",
        f"mean ± standard error over seeds {list(runs.seeds)}",
        *([scaled] if runs.request.quick else []),
    ]  # fmt: skip


def _clients(runs: SecureRuns) -> str:
    here, experiment = runs.federation, runs.experiment
    if experiment.examples is not None:
        fewer = f" instead of {experiment.examples}, so noise weighs more" * (here.examples < experiment.examples)
        return (
            f"N={here.clients} clients with {here.examples} examples each{fewer}, i.i.d.; accuracy on the publishers' "
            "test part or what is held out for it (the paper: a fifth of every client's examples)"
        )
    paper = configurations()[experiment.pairs(quick=True)[0][0]].clients
    fewer = (
        f"; the noise is that of {paper}, so each adds more, and over so few records it weighs more than in the paper"
    )
    return (
        f"N={here.clients} natural clients (the paper: {paper}), each with as many examples as the smallest has, "
        f"{here.examples} (the paper: all){fewer * (here.clients < paper)}; {here.origin}"
    )


secagg_images, secagg_cifar10, secagg_income = (partial(secagg_accuracy, name) for name in EXPERIMENTS)


# --------------------------------------------------------------------------------------
# What a secure sum hides: attacks on one client's local step and message, and on the sum, which the server gets.
#
# Noise is that of SecAgg's configuration "Fashion-MNIST, 1 step" (epsilon 1 in 20 rounds, by the noise of 10 clients),
# a little, and none: then the aggregation protects alone.


CLIENTS = 10
VICTIMS, QUICK_VICTIMS = 60, 24  # fewer than 59 cannot show resilience, though they show leaks
WEAK = 0.002  # of one client; its images still come back
CONFIGURATION = "Fashion-MNIST, 1 step"

# Attack and most iterations, as in the nightly preset. The closed form reads one example at a time, never a sum.
ATTACKS = {"cpl": 60, "dlg": 60, "idlg": 60, "inverting_gradients": 300, "gradinversion": 300}
QUICK_ATTACKS = {"cpl": 15}
WORDS = {"leaks": "differs", "resilient": "agrees", "inconclusive": "undecided"}


def what_leaks(request: Request) -> Comparison:
    """Verdicts at all surfaces under ``secagg_ddp``; ``--quick`` runs one attack, shortly, on fewer victims."""
    dataset, line = at_hand("mnist", request.data_root)
    one = configurations()[CONFIGURATION]
    attacks = QUICK_ATTACKS if request.quick else ATTACKS
    count = request.count(VICTIMS, QUICK_VICTIMS)
    rows = [
        _leakage_row(
            request,
            {"dataset": dataset, "attack": attack, "attack_args": {"max_iterations": cap}, "victims": count},
            noise,
        )
        for (attack, cap), noise in request.dealt(itertools.product(attacks.items(), (one.sigma, WEAK, 0.0)), "row")
    ]
    request.require_whole()
    left_out = ["quick: cpl only, stopped after 15 iterations, and too few victims to show resilience"]
    return Comparison(
        f"SecAgg with distributed noise, {CLIENTS} clients: what leaks where",
        [
            f"{count} victims, batch 1, C=4, Skellam noise in a ring of 32 bits; at surface 0 a victim is a round of "
            f"{CLIENTS} clients, {count * CLIENTS} images in all, seeds {list(request.seeds)}",
            f"epsilon: {one.rounds} rounds of one step, each example in {one.rate:.2%} of them; most iterations: "
            f"{attacks}",
            line, *(left_out if request.quick else []),
        ],
        rows,
        [
            "leaks, resilient or inconclusive is the lineup verdict with its controls; behind it images, or at surface "
            "0 rounds of clients, that were reconstructed strictly",
            "agrees: surface 0 is resilient; undecided: no leak found there, nor resilience shown; differs: it leaks",
            "without noise (σ=0) only the aggregation hides a client",
            "ε of the sum: what is proven against the server; ε of a message: if it could read one client's alone",
        ],
        against="the claim that the sum leaks nothing",
    )  # fmt: skip


def _leakage_row(request: Request, common: dict[str, Any], noise: float) -> dict[str, Any]:
    cells = {
        surface: request.run.cell(_settings(request, common, noise, tap)).cell
        for surface, tap in sorted(SURFACES.items(), reverse=True)
    }
    privacy, lineup = {one.view: one.epsilon for one in cells[0].privacy}, cells[0].lineup
    return {
        "attack": common["attack"], "σ per client": f"{noise:g}",
        **{f"surface {surface}": _rates(cell) for surface, cell in cells.items()},
        "lineup p at 0": number(lineup.p_value if lineup else None, 4),
        "ε of the sum": _epsilon(privacy.get("server")), "ε of a message": _epsilon(privacy.get("message")),
        "verdict": WORDS[cells[0].verdict_alone],
    }  # fmt: skip


def _settings(request: Request, common: dict[str, Any], noise: float, tap: str) -> CellSettings:
    one = configurations()[CONFIGURATION]
    return cell_settings(
        **common, model="lenet", defense="secagg_ddp", defense_args={"sigma": noise * math.sqrt(CLIENTS)}, tap=tap,
        clients=CLIENTS, clients_per_round=CLIENTS, rounds=one.rounds, steps_per_round=one.steps,
        sampling_rate=one.rate, seeds=request.seeds, device=request.device,
    )  # fmt: skip


def _epsilon(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _rates(cell: CellResult) -> str:
    if cell.not_applicable_reason:
        return "not run"
    return f"{cell.verdict_alone} ({cell.outcomes.success}/{cell.victims})"
