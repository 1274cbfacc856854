"""``evaluate`` and ``train`` as functions of keyword arguments: the settings of a run, validated as the commands do."""

from pathlib import Path
from typing import Any

from pydantic import JsonValue, StrictBool

from harness.base.building import require_known, typed
from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.datasets import data_root as find_data_root
from harness.evaluation import Run
from harness.evaluation import evaluate as evaluate_cells
from harness.experiment import CellSettings, check_adversary, expand, usual_prior
from harness.results import ResultDocument, RunFolder
from harness.results.atomic import claimed
from harness.training import TrainDocument, TrainFolder, TrainOptions, TrainSettings, fitted, train_settings
from harness.training import train as train_run


@typed
def evaluate(
    *, defense: str | list[str], attack: str | list[str] = "cpl", tap: str | list[str] = "T2.step",
    defense_args: dict[str, JsonValue] | None = None, attack_args: dict[str, JsonValue] | None = None,
    device: str = "auto", adversary: str | None = None, chunk: int = 128, out: str | Path = "runs",
    data_root: str | Path | None = None, resume: StrictBool = False, all_members: StrictBool = False, **settings: Any,
) -> ResultDocument:  # fmt: skip
    """Attacks clients that train under every one of the defenses, by every attack at every tap, and judges what leaks.

    Args:
        defense_args, attack_args: settings of every one of them; call it once for each that has settings of its own.
        adversary: ``honest`` refuses attacks that tamper with the model, ``tampering`` asks for one.
        all_members: run every member of a suite, also where an earlier one settled the place.
        settings: the fields of :class:`harness.experiment.CellSettings`: ``dataset``, ``model``, ``victims``, ...

    Returns:
        The document that ``harness evaluate --json`` prints, written to ``out`` too; without pictures.

    Raises:
        UsageError: unknown names or settings, values out of range, impossible combinations.
    """
    _refuse_chunk(chunk, 1)
    require_known(settings, CellSettings.model_fields)
    grid = {
        "defense": [(name, defense_args or {}) for name in _listed(defense)],
        "attack": [(name, attack_args or {}) for name in _listed(attack)],
        "tap": _listed(tap),
    }
    settings.setdefault("prior", usual_prior(_listed(attack)))
    cells = expand(grid, device=choose_device(device), **settings)
    check_adversary(adversary, cells)
    with claimed(Path(out)):
        folder = RunFolder(out) if resume else RunFolder(out).anew()
        return evaluate_cells(cells, Run(find_data_root(data_root), folder, chunk, resume, settles=not all_members))


@typed
def train(
    *, defense_args: dict[str, JsonValue] | None = None, device: str = "auto", chunk: int = 25,
    keep: tuple[int, ...] = (), out: str | Path = "training", data_root: str | Path | None = None,
    resume: StrictBool = False, **settings: Any,
) -> TrainDocument:  # fmt: skip
    """Trains a federation under a defense.

    Args:
        keep: rounds whose model is kept for attacks.
        settings: the fields of :class:`harness.training.TrainSettings`: ``defense``, ``dataset``, ``rounds``, ...

    Returns:
        The document that ``harness train --json`` prints, written to ``out`` too.

    Raises:
        UsageError: unknown names or settings, values out of range, impossible combinations.
    """
    _refuse_chunk(chunk, 2)
    require_known(settings, {*TrainSettings.model_fields, "keep"})
    root = find_data_root(data_root)
    chosen = fitted(train_settings(defense_args=defense_args or {}, device=choose_device(device), **settings), root)
    return train_run(chosen, root, TrainFolder(Path(out)), TrainOptions(chunk, keep=keep, resume=resume))


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _refuse_chunk(chunk: int, least: int) -> None:
    if chunk < least:
        raise UsageError(f"chunk must be at least {least}, got {chunk}")
