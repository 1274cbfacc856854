"""S000, Figures 1 to 3 as tables: one local step against one local epoch per round, both for a claimed epsilon of 1."""

import math
from functools import partial
from typing import Any

from harness.frontier.request import Request
from harness.mechanisms import SkellamGrid
from harness.papers.chance import CHANCE_NOTE
from harness.papers.comparison import Comparison, number
from harness.papers.data import at_hand
from harness.papers.epsilons import DELTA, configurations, secagg_accountant
from harness.papers.ordering import AGREES, CHANCE, DIFFERS, NOT_AT_HAND
from harness.privacy.systems import DistributedNoise, Party
from harness.reproduction.secagg.runs import RUNS, Experiment, S000Runs, SeededRuns, find_federation
from harness.training import TrainSettings

# Standard errors of the difference that an epoch must stand above a step.
CLEAR = 2.0

EXPERIMENTS = {
    "images": Experiment("Fashion-MNIST", "fashion-mnist", "tempered_cnn", 5600, (20,)),
    "cifar10": Experiment("CIFAR-10", "cifar10", "frozen_linear", 4800, (10, 20, 40, 80, 160)),
    "income": Experiment("Income", "acs-income", "logistic", None, (10,)),
}
_FIGURES = {"images": 1, "cifar10": 2, "income": 3}


def s000_accuracy(figure: str, request: Request) -> Comparison:
    """Trains an experiment's configurations; without its data, the table says so."""
    experiment, rows, gaps = EXPERIMENTS[figure], [], []
    pairs, federation = experiment.pairs(request.quick), find_federation(experiment, request.data_root)
    runs = None if federation is None else S000Runs(request, experiment, federation)
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
        f"S000, Figure {_FIGURES[figure]}: one local step against one local epoch, {experiment.prefix}",
        found,
        rows,
        [
            *gaps,
            f"agrees: one epoch stands above one step by at least {CLEAR:g} standard errors (of the seeds, at least "
            "of the test part), as in the paper's figures; its numbers are in figures only",
            "claimed ε: by Theorem 4.6, at the paper's conventions (s000-accounting) and the sampling rate that ran",
            "valid ε, server: what is proven against the server, which sees sums. The theorem holds for one local "
            "step; for more (†) only each client's own noise is proven. valid ε, message: whoever sees one client's",
            "no noise: one run with the same clipping and hyper-parameters; best: of all measured rounds",
            CHANCE_NOTE,
        ],
        against="the paper's order",
    )


def _row(runs: S000Runs, name: str, made: SeededRuns, silent: SeededRuns, verdict: str) -> dict[str, Any]:
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


def _header(runs: S000Runs, line: str) -> list[str]:
    experiment, count = runs.experiment, len(runs.seeds)
    frozen = "features: frozen random filters instead of a ResNeXt-29 trained on CIFAR-100, 1,024 as there"
    scaled = (
        f"by --quick: {count} seed{'s' * (count > 1)} instead of {RUNS}; epochs with Gaussian noise, which at 32 bits "
        "costs the same (s000-accounting)" + ("; only the fewest rounds" if len(experiment.rounds) > 1 else "")
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


def _clients(runs: S000Runs) -> str:
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


s000_images, s000_cifar10, s000_income = (partial(s000_accuracy, name) for name in EXPERIMENTS)
