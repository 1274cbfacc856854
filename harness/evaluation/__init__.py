"""The main job: observe clients under a defense, attack, score, judge; cell by cell."""

from harness.evaluation.main_job import document_of, evaluate
from harness.evaluation.run import Run

__all__ = ["Run", "document_of", "evaluate"]
