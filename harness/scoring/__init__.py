"""Comparing reconstructions with the truth: matching, metrics, success rules, the lineup test and the verdict.

No other folder of the harness sees the truth. Tensors come in, plain numpy and numbers go out.
"""

from harness.scoring import metrics, texts  # imported to register, in the order of documents
from harness.scoring.images import match, pairwise_mse
from harness.scoring.lineup import Ranking, identity_test, lineup_test, swap_control
from harness.scoring.metrics import METRICS, LpipsScorer, Metric, Pairs, TableScale, TextScale, measured
from harness.scoring.strongest import Attempt, strongest
from harness.scoring.success import (
    Strict,
    blind_strict,
    clopper_pearson,
    image_strict,
    label_accuracy,
    label_summary,
    rate_of,
    success_table,
    summary_of,
    upper_bound,
)
from harness.scoring.verdict import Verdict, judge, judge_identity, negative_control_failed, within_networks
