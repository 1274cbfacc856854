"""The main job: observe clients under a defense, attack, score, judge; cell by cell."""

from harness.evaluation.run import Run, document_of, evaluate

__all__ = ["Run", "document_of", "evaluate"]
