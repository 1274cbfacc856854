"""``evaluate`` and ``train`` as functions of keyword arguments: the settings of a run, validated as the commands do."""

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pydantic import JsonValue, StrictBool
from torch import nn

from harness.base.building import require_known, typed
from harness.base.devices import choose_device
from harness.base.errors import UsageError
from harness.base.registry import given
from harness.datasets import data_root as find_data_root
from harness.evaluation import Run
from harness.evaluation import evaluate as evaluate_cells
from harness.experiment import CellSettings, check_adversary, expand, usual_prior
from harness.given import Given, outputs_of
from harness.reports.html.outcome import Kept, Outcome, read_outcome
from harness.results import NoFolder, RunFolder
from harness.results.atomic import claimed
from harness.training import TrainDocument, TrainFolder, TrainOptions, TrainSettings, fitted, train_settings
from harness.training import train as train_run

_ALONE = threading.RLock()


@typed
def evaluate(
    *, defense: Any, attack: Any = "cpl", tap: str | list[str] = "T2.step", data: Any = None, model: Any = None,
    defense_args: dict[str, JsonValue] | None = None, attack_args: dict[str, JsonValue] | None = None,
    device: str = "auto", adversary: str | None = None, chunk: int = 128, out: str | Path | None = None,
    data_root: str | Path | None = None, resume: StrictBool = False, all_members: StrictBool = False, **settings: Any,
) -> Outcome:  # fmt: skip
    """Attacks clients that train under every one of the defenses, by every attack at every tap, and judges what leaks.

    Calls from several threads wait for each other. A module is copied: its weights, mode and hooks stay as they are.

    Args:
        defense, attack: a name, a class or an instance, or a list of such; ``attack="auto"`` is the latest suite. A
            defense may be an object of a framework: Flower's ``LocalDpMod`` and strategies of fixed clipping, the
            optimizer of Opacus, NVFlare's ``PercentilePrivacy``.
        data: a name, (images, labels), a ``DataLoader`` or a ``Dataset``; another word for ``dataset``. Images are
            (N, C, H, W), (N, H, W, C) or (N, H, W), float in [0, 1] or uint8; labels are (N,) from 0.
        model: a name, a ``torch.nn.Module``, whose weights all victims then share, or a function
            (image_shape, classes) -> module.
        defense_args, attack_args: settings of every one of them; call it once for each that has settings of its own.
        adversary: ``honest`` refuses attacks that tamper with the model, ``tampering`` asks for one.
        out: folder for the files of the run; None writes nothing.
        resume: go on with an earlier run in ``out``; not with a module, defense or attack of one's own, whose code may
            have changed.
        all_members: run every member of a suite, also where an earlier one settled the place.
        settings: the fields of :class:`harness.experiment.CellSettings`: ``dataset``, ``model``, ``victims``, ...

    Returns:
        The results: an object with the document that ``harness evaluate --json`` prints as its ``document``.

    Raises:
        UsageError: unknown names or settings, objects of another kind, values out of range, impossible combinations.
    """
    _refuse_chunk(chunk, 1)
    require_known(settings, CellSettings.model_fields)
    if resume and out is None:
        raise UsageError("resume goes on with the files of a folder; name it with out")
    own = Given()
    grid = {
        "defense": [own.defense(one, defense_args or {}) for one in _listed(defense)],
        "attack": [own.attack(one, attack_args or {}) for one in _listed(attack)],
        "tap": _listed(tap),
    }
    settings |= _named(own, data, model, settings)
    if resume and (unsure := next((kind for kind, _ in own.entries if kind != "dataset"), None)):
        # Their names say which weights and settings they have, and nothing of the code behind them.
        raise UsageError(f"resume cannot tell whether the code of a given {unsure} changed; leave resume out")
    with _ALONE, given(own.entries):
        settings.setdefault("prior", usual_prior([name for name, _ in grid["attack"]]))
        cells = expand(grid, device=choose_device(device), **settings)
        check_adversary(adversary, cells)
        kept = Kept()
        with claimed(Path(out)) if out is not None else nullcontext():
            folder = RunFolder(out) if out is not None else NoFolder()
            run = Run(
                find_data_root(data_root), folder if resume else folder.anew(), chunk, resume, kept.draw,
                settles=not all_members,
            )  # fmt: skip
            document = evaluate_cells(cells, run)
    return kept.outcome(document, run.done.values(), out)


def _named(own: Given, data: Any, model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that stand for the data and the network."""
    if data is not None and "dataset" in settings:
        raise UsageError("data and dataset are one thing; give one of them")
    data = settings.get("dataset") if data is None else data
    found: dict[str, Any] = {}
    if data is not None:
        found["dataset"] = own.data(data, outputs_of(model, data))
    if model is not None:
        found["model"] = own.model(model)
    if isinstance(model, nn.Module):
        found["shared_weights"] = True
    return found


def load(folder: str | Path) -> Outcome:
    """Read the results of a run from its folder.

    Raises:
        UsageError: there are none, they cannot be read, or a verdict is not that of its victims.
    """
    return read_outcome(Path(folder))


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


def _listed(named: Any) -> list[Any]:
    return list(named) if isinstance(named, list | tuple) else [named]


def _refuse_chunk(chunk: int, least: int) -> None:
    if chunk < least:
        raise UsageError(f"chunk must be at least {least}, got {chunk}")
