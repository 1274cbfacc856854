"""The papers' tables, ours beside theirs."""

from collections.abc import Callable
from functools import partial

from harness.frontier.request import Request
from harness.papers.clients import BayesianClients, GlobalDP
from harness.papers.comparison import Comparison
from harness.papers.costs import AdaptiveClipping, Times
from harness.papers.epsilons import AverageEpsilons, ScaffoldEpsilons, ScaffoldRounds, SumEpsilons
from harness.papers.fed_acdp import AfterAllRounds, AtEqualAccuracy, ByAccountant, UnderDecay
from harness.papers.grid import run_grid
from harness.papers.joint import JointLevels
from harness.papers.measures import Attacks, Orders
from harness.reproduction.fed_acdp.full_accuracy import full_accuracy
from harness.reproduction.judged.verdicts import judged_verdicts
from harness.reproduction.judged.withstand import judged_withstand
from harness.reproduction.running_statistics import batch_norm
from harness.reproduction.scaffold.accuracy import s002_accuracy
from harness.reproduction.scaffold.budgets import s002_sampling, s002_tradeoff_accuracy
from harness.reproduction.scaffold.gap import s002_gap
from harness.reproduction.secagg.accuracy import s000_cifar10, s000_images, s000_income
from harness.reproduction.secagg.leakage import secagg_leakage
from harness.reproduction.tampering.table import tampering

#: Who makes ours of the rows of a file in ``harness/papers/tables``.
MEASURES = {
    "attack": Attacks, "attack and accuracy": Attacks, "order of accuracy": Orders,
    "epsilon of DP-SCAFFOLD": ScaffoldEpsilons, "rounds of DP-SCAFFOLD": ScaffoldRounds,
    "epsilon of a secure sum": SumEpsilons, "epsilon of an average": AverageEpsilons,
    "epsilon and accuracy after all rounds": AfterAllRounds, "epsilon and accuracy at equal accuracy": AtEqualAccuracy,
    "epsilon and accuracy under decay": UnderDecay, "epsilon and accuracy by accountant": ByAccountant,
    "times": Times, "accuracy and times of adaptive clipping": AdaptiveClipping,
    "Bayesian DP of clients": BayesianClients, "joint Bayesian DP": JointLevels, "global DP": GlobalDP,
}  # fmt: skip


def _grid(name: str) -> Callable[[Request], Comparison]:
    return partial(run_grid, name, MEASURES)


TABLES: dict[str, Callable[[Request], Comparison]] = {
    "table1": _grid("table1"), "table3": _grid("table3"), "table4": _grid("table4"), "table5": _grid("table5"),
    "table6": _grid("table6"), "table7": _grid("table7"), "table8": _grid("table8"), "table9": _grid("table9"),
    "table10": _grid("table10"), "table11": _grid("table11"),
    "sweep-noise": _grid("sweep-noise"), "sweep-pruning": _grid("sweep-pruning"),
    "s000-accounting": _grid("secagg-accounting"), "s000-averaging": _grid("secagg-averaging"),
    "s000-images": s000_images, "s000-cifar10": s000_cifar10, "s000-income": s000_income,
    "secagg-leakage": secagg_leakage, "s002-accounting": _grid("dp-scaffold-accounting"),
    "s002-tradeoff": _grid("dp-scaffold-tradeoff"),
    "s002-gap": s002_gap, "s002-accuracy": s002_accuracy, "s002-tradeoff-accuracy": s002_tradeoff_accuracy,
    "s002-sampling": s002_sampling,
    **{f"s003-table{one}": _grid(f"bayesian-dp-table{one}") for one in range(1, 5)},
    "s001": _grid("global-dp"), "judged-verdicts": judged_verdicts, "judged-withstand": judged_withstand,
    "batch-norm": batch_norm, "tampering": tampering, "full-accuracy": full_accuracy,
}  # fmt: skip

#: Tables that are made by one process, and why.
UNDEALT = {
    "table9": "it compares times, which are those of one machine",
    **dict.fromkeys(("s000-accounting", "s000-averaging", "s002-accounting", "s002-tradeoff"), "it trains and attacks "
                    "nothing, and is made in minutes"),
    "full-accuracy": "each of its runs has a command of its own, listed in full-accuracy.txt",
}  # fmt: skip

__all__ = ["TABLES", "UNDEALT", "Comparison", "Request"]
