"""Federated training: what a defense costs in accuracy, and what it has spent by then."""

from harness.results.training import RoundRecord, TrainDocument
from harness.training.checkpoint import (
    TrainFolder,
    kept_model,
    kept_server_state,
    kept_variates,
    read_training,
    trained_run,
    training_options,
)
from harness.training.loop import DivergedError, TrainOptions, fitted, train
from harness.training.rounds import Training
from harness.training.settings import TrainSettings, train_settings

__all__ = [
    "DivergedError",
    "RoundRecord",
    "TrainDocument",
    "TrainFolder",
    "TrainOptions",
    "TrainSettings",
    "Training",
    "fitted",
    "kept_model",
    "kept_server_state",
    "kept_variates",
    "read_training",
    "train",
    "train_settings",
    "trained_run",
    "training_options",
]
