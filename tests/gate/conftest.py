"""Synthetic cells, whose victims are drawn and not attacked; and, for the slow tests, real runs of the gate preset."""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.cli.evaluate import cells_from, merge
from harness.evaluation import Run, evaluate
from harness.experiment import CellSettings, cell_settings
from harness.gate import GateCell, Victim
from harness.gate.cells import merged
from harness.results import Control, RunFolder

SETTINGS = {
    "dataset": "digits", "model": "mlp", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step", "batch_size": 1,
    "noise_scale": 1.0, "defense.sigma": 1.0, "defense.clip": 4.0,
}  # fmt: skip

Made = Callable[..., GateCell]
Command = Callable[..., tuple[int, str, str]]


def synthetic_cell(leak: float = 0.0, victims: int = 32, draw: int = 0, first: int = 0, **settings: Any) -> GateCell:
    """Victims of whom a share ``leak`` is reconstructed, the others at chance.

    Args:
        leak: chance of each victim to be reconstructed.
        victims: how many.
        draw: key of the random numbers; the same draw gives the same victims.
        first: number of the first victim; others than the baseline's are not paired.
        **settings: changes of the settings.
    """
    random = np.random.default_rng(draw)
    open_to = random.random(victims) < leak
    ranks = np.where(open_to, 0.0, random.random(victims)).round(4)
    rmses = np.where(open_to, np.exp(random.normal(-5, 1, victims)), np.exp(random.normal(-0.5, 0.2, victims)))
    made = {
        str(first + v): Victim(float(ranks[v]), float(f"{rmses[v]:.4g}"), float(open_to[v])) for v in range(victims)
    }
    return GateCell(SETTINGS | settings, made)


@pytest.fixture(scope="session")
def cell() -> Made:
    """The function above: test modules cannot import it from here."""
    return synthetic_cell


class GateRun(Run):
    """A run without the hundredfold noise: the gate does not read that control, and it costs the most."""

    def _high_noise(self, settings: CellSettings) -> Control:
        return Control(name="noise_x100", held=True, detail="left out")


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two defenses on 24 victims, with few iterations."""
    folder = tmp_path_factory.mktemp("small") / "run"
    cells = [
        cell_settings(
            dataset="digits", model="mlp", victims=24, defense=defense, attack_args={"max_iterations": 3},
            defense_args=arguments,
        )
        for defense, arguments in (("none", {}), ("noise", {"amount": 0.02, "applies_to": "gradient"}))
    ]  # fmt: skip
    evaluate(cells, GateRun(Path("no data root"), RunFolder(folder)))
    return folder


def gate_settings() -> list[CellSettings]:
    """The cells of the preset."""
    return [cell for options in merge({}, "gate", None) for cell in cells_from(options, "cpu")]


def play(settings: Iterable[CellSettings], folder: Path, known: Path | None = None) -> list[GateCell]:
    """Run cells with the controls that the gate reads; ``known`` holds attacks on observations that did not change."""
    if known is not None:
        shutil.copytree(known / "reconstructions", folder / "reconstructions")
    run = GateRun(Path("no data root"), RunFolder(folder), resume=known is not None)
    for one in settings:
        run.cell(one)
    return merged(one for one in run.done.values() if not one.is_impossible)


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The gate preset's run that all slow tests are held to: its ``settings``, ``cells``, ``folder``; and ``play``."""
    folder, settings = tmp_path_factory.mktemp("gate"), gate_settings()
    return SimpleNamespace(settings=settings, cells=play(settings, folder), folder=folder, play=play)
