"""The models a training run kept, as settings of the cells that attack them."""

from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.training.checkpoint import read_training


def training_options(folder: Path) -> dict[str, Any]:
    """Options of ``harness evaluate`` that continue a training run: its data, model, defense and federation.

    Raises:
        UsageError: there is no training run in the folder.
    """
    settings = read_training(folder).settings
    return {
        "dataset": [settings["dataset"]], "model": [settings["model"]] if settings["model"] else [],
        "defense": [settings["defense"]],
        "defense_arg": [f"{name}={value}" for name, value in settings["defense_args"].items()],
        "learning_rate": settings["learning_rate"], "clients": settings["clients"],
        "clients_per_round": settings["clients_per_round"], "rounds": settings["rounds"] + 1,
        "steps_per_round": settings["local_steps"],
    }  # fmt: skip


def kept_model(folder: Path, round_index: int) -> Path:
    """The file of the model after a number of rounds.

    Raises:
        UsageError: the run did not keep it; the message says which rounds it kept.
    """
    kept = read_training(folder).weights
    if round_index not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise UsageError(
            f"the run in {str(folder)!r} kept no model of round {round_index} (kept: {known}); "
            f"train with --keep-rounds {round_index}"
        )
    return folder / kept[round_index]
