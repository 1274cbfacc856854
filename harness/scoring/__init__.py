"""Comparing reconstructions with the truth: matching, metrics, success rules, the lineup test and the verdict.

This is the only room of the harness that sees the truth. Tensors come in, plain numpy and numbers go out.
"""

from harness.scoring.labels import LabelResult, label_accuracy, label_summary
from harness.scoring.lineup import LineupResult, lineup_test, swap_control
from harness.scoring.lpips_metric import LpipsScorer
from harness.scoring.matching import match, pairwise_mse
from harness.scoring.metrics import image_metrics, ssim_unavailable
from harness.scoring.strongest import Attempt, Decision, strongest
from harness.scoring.success import Rate, Summary, clopper_pearson, image_strict, success_table, upper_bound
from harness.scoring.tables import TableScale, table_metrics, table_unavailable
from harness.scoring.verdict import Control, Verdict, judge, negative_control_failed

__all__ = [
    "Attempt",
    "Control",
    "Decision",
    "LabelResult",
    "LineupResult",
    "LpipsScorer",
    "Rate",
    "Summary",
    "TableScale",
    "Verdict",
    "clopper_pearson",
    "image_metrics",
    "image_strict",
    "judge",
    "label_accuracy",
    "label_summary",
    "lineup_test",
    "match",
    "negative_control_failed",
    "pairwise_mse",
    "ssim_unavailable",
    "strongest",
    "success_table",
    "swap_control",
    "table_metrics",
    "table_unavailable",
    "upper_bound",
]
