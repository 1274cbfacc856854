"""The models a training run kept, as settings of the cells that attack them."""

from pathlib import Path
from typing import Any

from harness.base.building import build
from harness.base.errors import UsageError
from harness.defenses import DEFENSES, Defense
from harness.federation.variates_files import variates_file
from harness.own_sources import OWN_NAMES, own_sources
from harness.training.checkpoint import read_training
from harness.training.records import TrainDocument
from harness.training.settings import train_settings
from harness.training.trained_run import TrainedRun


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
        "clients_per_round": settings["clients_per_round"], "rounds": settings["rounds"],
        "steps_per_round": settings["local_steps"],
    }  # fmt: skip


def trained_run(folder: Path) -> TrainedRun:
    """Return what the statements about a training run depend on.

    Raises:
        UsageError: the run is of a version that did not count how many clients hold an example, or finished no round.
    """
    document = read_training(folder)
    if document.holders is None or document.copies is None:
        raise UsageError(
            f"the run in {str(folder)!r} is of an older version, which did not count the clients that hold one "
            "example; train it again"
        )
    if not document.rounds:
        raise UsageError(f"the run in {str(folder)!r} finished no round; train it with more rounds or a larger budget")
    if document.sources:
        _refuse_changed(document, folder)
    return TrainedRun(
        folder=str(folder), settings=train_settings(**document.settings), rounds=len(document.rounds),
        holders=document.holders, copies=document.copies,
    )  # fmt: skip


def kept_model(folder: Path, round_index: int) -> Path:
    """The file of the model after a number of rounds.

    Raises:
        UsageError: the run did not keep it; the message says which rounds it kept.
    """
    return folder / _name_of_model(folder, read_training(folder), round_index)


def kept_server_state(folder: Path, round_index: int, name: str, arguments: dict[str, Any]) -> Path | None:
    """The file of what the server remembered after a number of rounds; None where that changes nothing.

    It says nothing about another defense, or the same one under other settings, than the run was trained under.

    Raises:
        UsageError: it would change something, and the run is of a version that did not keep it.
    """
    document = read_training(folder)
    _name_of_model(folder, document, round_index)
    defense = build(DEFENSES, name, arguments)
    if not round_index or not defense.adapts() or defense != _trained_under(document):
        return None
    if document.server_state is None:
        raise UsageError(
            f"the run in {str(folder)!r} is of an older version, which did not keep the bound that {name} had reached "
            f"by round {round_index}; train it again with --keep-rounds {round_index}"
        )
    found = document.server_state.get(round_index)
    return None if found is None else folder / found


def kept_variates(folder: Path, round_index: int) -> Path | None:
    """The file of the control variates after a number of rounds of SCAFFOLD; None for other algorithms.

    Raises:
        UsageError: the run is of a version that did not keep them.
    """
    if not read_training(folder).settings.get("algorithm", "fedavg").startswith("scaffold"):
        return None
    path = folder / variates_file(round_index)
    if not path.is_file():
        raise UsageError(
            f"the run in {str(folder)!r} kept no control variates of round {round_index}; "
            f"train it again with --keep-rounds {round_index}"
        )
    return path


def _refuse_changed(document: TrainDocument, folder: Path) -> None:
    settings = document.settings
    now = own_sources(settings["model"] or "", settings["dataset"], (DEFENSES, settings["defense"]))
    for name, digest in now.items():
        if document.sources.get(name) != digest:
            raise UsageError(
                f"the {OWN_NAMES[name]} has changed since the run in {str(folder)!r} was trained; "
                "train it again, or put the file back"
            )


def _trained_under(document: TrainDocument) -> Defense:
    return build(DEFENSES, document.settings["defense"], document.settings["defense_args"])


def _name_of_model(folder: Path, document: TrainDocument, round_index: int) -> str:
    kept = document.weights
    if round_index not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise UsageError(
            f"the run in {str(folder)!r} kept no model of round {round_index} (kept: {known}); "
            f"train with --keep-rounds {round_index}"
        )
    return kept[round_index]
