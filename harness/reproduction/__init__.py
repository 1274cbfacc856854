"""The papers' tables, ours beside theirs."""

from harness.reproduction.client_level.clients import s003_table1, s003_table2, s003_table3
from harness.reproduction.client_level.global_dp import s001
from harness.reproduction.client_level.joint import s003_table4
from harness.reproduction.comparison import Comparison, Request
from harness.reproduction.fed_acdp.full_accuracy import full_accuracy
from harness.reproduction.fed_acdp.sweeps import sweep_noise, sweep_pruning
from harness.reproduction.fed_acdp.table1 import table1
from harness.reproduction.fed_acdp.table3 import table3
from harness.reproduction.fed_acdp.table4 import table4
from harness.reproduction.fed_acdp.table5 import table5
from harness.reproduction.fed_acdp.table6 import table6
from harness.reproduction.fed_acdp.table7 import table7
from harness.reproduction.fed_acdp.table8 import table8
from harness.reproduction.fed_acdp.table9 import table9
from harness.reproduction.fed_acdp.table10 import table10
from harness.reproduction.fed_acdp.table11 import table11
from harness.reproduction.judged.verdicts import judged_verdicts
from harness.reproduction.judged.withstand import judged_withstand
from harness.reproduction.running_statistics import batch_norm
from harness.reproduction.scaffold.accounting import s002_accounting, s002_tradeoff
from harness.reproduction.scaffold.accuracy import s002_accuracy
from harness.reproduction.scaffold.budgets import s002_sampling, s002_tradeoff_accuracy
from harness.reproduction.scaffold.gap import s002_gap
from harness.reproduction.secagg.accounting import s000_accounting, s000_averaging
from harness.reproduction.secagg.accuracy import s000_cifar10, s000_images, s000_income
from harness.reproduction.secagg.leakage import secagg_leakage
from harness.reproduction.tampering.table import tampering

TABLES = {
    "table1": table1, "table3": table3, "table4": table4, "table5": table5, "table6": table6, "table7": table7,
    "table8": table8, "table9": table9, "table10": table10, "table11": table11, "sweep-noise": sweep_noise,
    "sweep-pruning": sweep_pruning, "s000-accounting": s000_accounting, "s000-averaging": s000_averaging,
    "s000-images": s000_images, "s000-cifar10": s000_cifar10, "s000-income": s000_income,
    "secagg-leakage": secagg_leakage, "s002-accounting": s002_accounting, "s002-tradeoff": s002_tradeoff,
    "s002-gap": s002_gap, "s002-accuracy": s002_accuracy, "s002-tradeoff-accuracy": s002_tradeoff_accuracy,
    "s002-sampling": s002_sampling,
    "s003-table1": s003_table1, "s003-table2": s003_table2, "s003-table3": s003_table3, "s003-table4": s003_table4,
    "s001": s001, "judged-verdicts": judged_verdicts, "judged-withstand": judged_withstand,
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
