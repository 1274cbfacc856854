"""Comparing reconstructions with the truth: matching, metrics, success rules, the lineup test and the verdict.

No other folder of the harness sees the truth. Tensors come in, plain numpy and numbers go out.
"""

from harness.scoring import metrics, texts  # noqa: F401  (imported to register, in the order of documents)
from harness.scoring.images import match, pairwise_mse
from harness.scoring.lineup import Ranking, identity_test, lineup_test, swap_control
from harness.scoring.metrics import METRICS, LpipsScorer, Metric, Pairs, TableScale, TextScale, measured
from harness.scoring.strongest import Attempt, Decision, strongest
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

__all__ = [
    "METRICS",
    "Attempt",
    "Decision",
    "LpipsScorer",
    "Metric",
    "Pairs",
    "Ranking",
    "Strict",
    "TableScale",
    "TextScale",
    "Verdict",
    "blind_strict",
    "clopper_pearson",
    "identity_test",
    "image_strict",
    "judge",
    "judge_identity",
    "label_accuracy",
    "label_summary",
    "lineup_test",
    "match",
    "measured",
    "negative_control_failed",
    "pairwise_mse",
    "rate_of",
    "strongest",
    "success_table",
    "summary_of",
    "swap_control",
    "upper_bound",
    "within_networks",
]
