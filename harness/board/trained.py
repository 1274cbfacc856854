"""Whether a training is of the federation that a cell describes."""

from collections.abc import Mapping
from typing import Any

from harness.base.building import build
from harness.defenses import DEFENSES
from harness.experiment import CellSettings
from harness.training import TrainSettings

_NAMES = (
    "dataset", "model", "defense", "clients", "clients_per_round", "rounds", "local_steps", "learning_rate",
)  # fmt: skip
# What an attacked round is played with, and what every epsilon of a board is of.
_PLAIN = {
    name: TrainSettings.model_fields[name].default
    for name in ("algorithm", "local_momentum", "server_learning_rate", "server_momentum", "delta")
}


def is_of(settings: CellSettings, training: Mapping[str, Any]) -> bool:
    """Whether settings of a training, which may come from anywhere, are of the same federation, under the same defense.

    Raises:
        UsageError: the defense cannot be built.
    """
    facts = (
        settings.dataset, settings.model, settings.defense, settings.clients, settings.clients_per_round,
        settings.rounds, settings.steps_per_round, settings.learning_rate,
    )  # fmt: skip
    arguments = training.get("defense_args")
    if facts != tuple(training.get(name) for name in _NAMES) or not isinstance(arguments, dict):
        return False
    # Absent is what it is by default; noise that is multiplied is a control's, which nothing is trained with.
    if any(training.get(name, plain) != plain for name, plain in _PLAIN.items()) or settings.noise_scale != 1:
        return False
    return build(DEFENSES, settings.defense, arguments) == settings.build_defense()
