"""Whether a training is of the federation that a cell describes."""

from collections.abc import Mapping
from typing import Any

from harness.defenses import DEFENSES
from harness.experiment import CellSettings
from harness.extensions.building import build

_NAMES = (
    "dataset", "model", "defense", "clients", "clients_per_round", "rounds", "local_steps", "learning_rate",
)  # fmt: skip


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
    return build(DEFENSES, settings.defense, arguments) == settings.build_defense()
