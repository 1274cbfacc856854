"""The papers' tables, ours beside theirs."""

from collections.abc import Callable
from functools import partial

from harness.papers.batch_norm import running_statistics
from harness.papers.clients import BayesianClients, GlobalDP, JointLevels
from harness.papers.dp_scaffold import scaffold_accuracy, scaffold_gap, scaffold_sampling, scaffold_tradeoff_accuracy
from harness.papers.epsilons import AverageEpsilons, ScaffoldEpsilons, ScaffoldRounds, SumEpsilons
from harness.papers.fed_acdp import AfterAllRounds, AtEqualAccuracy, ByAccountant, UnderDecay
from harness.papers.full_accuracy import full_scale
from harness.papers.grid import Comparison, run_grid
from harness.papers.judged import judged_verdicts, judged_withstand
from harness.papers.measures import AdaptiveClipping, Attacks, Orders, Times
from harness.papers.secagg import secagg_cifar10, secagg_images, secagg_income, what_leaks
from harness.papers.tampering import tampering_servers
from harness.study.runner import Request

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


#: Tables that are files of ``tables``, in the order of the papers.
GRIDS = (
    "table1", "table3", "table4", "table5", "table6", "table7", "table8", "table9", "table10", "table11", "sweep-noise",
    "sweep-pruning", "secagg-accounting", "secagg-averaging", "dp-scaffold-accounting", "dp-scaffold-tradeoff",
    "bayesian-dp-table1", "bayesian-dp-table2", "bayesian-dp-table3", "bayesian-dp-table4", "global-dp",
)  # fmt: skip
TABLES: dict[str, Callable[[Request], Comparison]] = {
    **{name: partial(run_grid, name, MEASURES) for name in GRIDS},
    "secagg-images": secagg_images, "secagg-cifar10": secagg_cifar10, "secagg-income": secagg_income,
    "secagg-leakage": what_leaks, "dp-scaffold-gap": scaffold_gap, "dp-scaffold-accuracy": scaffold_accuracy,
    "dp-scaffold-tradeoff-accuracy": scaffold_tradeoff_accuracy, "dp-scaffold-sampling": scaffold_sampling,
    "judged-verdicts": judged_verdicts, "judged-withstand": judged_withstand, "batch-norm": running_statistics,
    "tampering": tampering_servers, "full-accuracy": full_scale,
}  # fmt: skip
#: Names of versions up to 0.1.8.
RENAMED = {
    "s000-accounting": "secagg-accounting", "s000-averaging": "secagg-averaging", "s000-images": "secagg-images",
    "s000-cifar10": "secagg-cifar10", "s000-income": "secagg-income", "s001": "global-dp",
    "s002-accounting": "dp-scaffold-accounting", "s002-tradeoff": "dp-scaffold-tradeoff",
    "s002-gap": "dp-scaffold-gap", "s002-accuracy": "dp-scaffold-accuracy",
    "s002-tradeoff-accuracy": "dp-scaffold-tradeoff-accuracy", "s002-sampling": "dp-scaffold-sampling",
    "s003-table1": "bayesian-dp-table1", "s003-table2": "bayesian-dp-table2", "s003-table3": "bayesian-dp-table3",
    "s003-table4": "bayesian-dp-table4",
}  # fmt: skip

#: Tables that are made by one process, and why.
UNDEALT = {
    "table9": "it compares times, which are those of one machine",
    **dict.fromkeys(
        ("secagg-accounting", "secagg-averaging", "dp-scaffold-accounting", "dp-scaffold-tradeoff"),
        "it trains and attacks nothing, and is made in minutes",
    ),
}  # fmt: skip

__all__ = ["GRIDS", "RENAMED", "TABLES", "UNDEALT", "Comparison", "Request"]
