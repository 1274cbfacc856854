"""Small runs on the 8x8 digits, for the tests of whole runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.attacks import Reconstruction
from harness.attacks.engine import run_attack
from harness.evaluation import Run, attacking, derived, evaluate, scores
from harness.experiment import CellSettings, cell_settings
from harness.observation import Observation
from harness.results import CellResult, ResultDocument, RunFolder, StoredCell

NO_DATA = Path("no data root")
CAP = 2


def cell(**values: Any) -> CellSettings:
    common = {"dataset": "digits", "model": "mlp", "victims": 5, "attack_args": {"max_iterations": CAP}}
    return cell_settings(**{**common, **values})


def play(
    cells: list[CellSettings],
    folder: Path,
    resume: bool = False,
    chunk: int = 64,
    on_cell: Callable[[CellResult], None] | None = None,
) -> ResultDocument:
    run = Run(NO_DATA, RunFolder(folder), chunk=chunk, resume=resume, on_cell=on_cell)
    return evaluate(cells, run)


def alone(settings: CellSettings, folder: Path, chunk: int = 64) -> StoredCell:
    """One cell without controls of its own, as a control is."""
    return Run(NO_DATA, RunFolder(folder), chunk=chunk).cell(settings, "positive")


def numbers(document: ResultDocument) -> dict[str, Any]:
    """Everything a run claims but the time it took and where."""
    whole = document.model_dump(exclude={"environment"})
    for made in whole["cells"]:
        del made["seconds"]
    return whole


def victims(folder: Path) -> list[str]:
    return (folder / "victims.jsonl").read_text().splitlines()


CELLS = [cell(), cell(defense="fed_sdp", defense_args={"noise_at": "client"}, tap="T1.out")]


@pytest.fixture(scope="session")
def small() -> SimpleNamespace:
    """The functions and names above: test modules cannot import them from here."""
    return SimpleNamespace(cap=CAP, cells=CELLS, cell=cell, play=play, alone=alone, numbers=numbers, victims=victims)


@contextmanager
def few_permutations() -> Iterator[None]:
    """The usual ten thousand re-assignments cost more than a small attack; three thousand decide the same verdicts."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("lineup_test", "swap_control"):
            patch.setattr(scores, name, partial(getattr(scores, name), permutations=2_999))
        patch.setattr(derived, "_PERMUTATIONS", 2_999)
        yield


@pytest.fixture(autouse=True)
def quick_lineups() -> Iterator[None]:
    with few_permutations():
        yield


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResultDocument, Path]:
    """A run of all the ``small.cells``, which nothing disturbed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with few_permutations():
        return play(CELLS, folder), folder


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fingerprints of the observations that are attacked from now on."""
    seen: list[str] = []

    def counting(attack: object, observation: Observation, *rest: Any) -> Reconstruction:
        seen.append(observation.fingerprint())
        return run_attack(attack, observation, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(attacking, "run_attack", counting)
    return seen
