"""A run that was stopped, or whose files were damaged, goes on to the numbers of one that nothing disturbed."""

from pathlib import Path
from typing import Any

import pytest

from harness.results import CellResult, ResultDocument, RunFolder, read_results


def test_resuming_a_finished_run_attacks_nothing(
    small: Any, tmp_path: Path, attacks: list[str], uninterrupted: tuple[ResultDocument, Path]
) -> None:
    first = small.play(small.cells, tmp_path)
    attacks.clear()
    lines = small.victims(tmp_path)
    again = small.play(small.cells, tmp_path, resume=True)
    assert attacks == []
    assert again.cells == first.cells
    assert small.numbers(again) == small.numbers(uninterrupted[0])
    assert small.victims(tmp_path) == lines


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("finished", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_a_run_killed_between_cells_resumes_to_the_same_numbers(
    small: Any, tmp_path: Path, finished: int, attacks: list[str], uninterrupted: tuple[ResultDocument, Path]
) -> None:
    done: list[str | None] = []

    def die(made: CellResult) -> None:
        done.append(made.key)
        if len(done) == finished:
            raise Killed

    with pytest.raises(Killed):
        small.play(small.cells, tmp_path, on_cell=die)
    before = list(attacks)
    attacks.clear()
    resumed = small.play(small.cells, tmp_path, resume=True)
    assert small.numbers(resumed) == small.numbers(uninterrupted[0])
    assert small.victims(tmp_path) == small.victims(uninterrupted[1])
    assert not set(before) & set(attacks)


def test_what_a_killed_run_leaves_says_that_it_is_unfinished(
    small: Any, tmp_path: Path, uninterrupted: tuple[ResultDocument, Path]
) -> None:
    """Killed in the second of two cells: the first is whole, the run is not."""
    done: list[str] = []

    def die(made: CellResult) -> None:
        done.append(made.role)
        if done.count("cell") and made.role == "control":
            raise Killed

    with pytest.raises(Killed):
        small.play(small.cells, tmp_path, on_cell=die)
    left = read_results(tmp_path)
    assert (left.valid, left.complete, left.planned) == (False, False, 2)
    assert left.valid_reason and left.valid_reason.startswith("1 of 2 cells are done; add --resume")
    small.play(small.cells, tmp_path, resume=True)
    whole = read_results(tmp_path)
    assert (whole.valid, whole.complete, whole.planned) == (True, True, 2)
    assert small.numbers(whole) == small.numbers(uninterrupted[0])


@pytest.mark.parametrize("written", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_run_killed_while_writing_a_cell_resumes_to_the_same_numbers(
    small: Any,
    tmp_path: Path,
    written: int,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: tuple[ResultDocument, Path],
) -> None:
    real, keys = RunFolder.write_cell, list[str]()

    def half_write(self: RunFolder, key: str, *rest: Any) -> None:
        keys.append(key)
        real(self, key, *rest)
        if len(keys) > written:
            file = self.path / "cells" / f"{key}.json"
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "write_cell", half_write)
        small.play(small.cells, tmp_path)
    assert small.numbers(small.play(small.cells, tmp_path, resume=True)) == small.numbers(uninterrupted[0])


def test_damaged_and_lost_files_are_made_again(
    small: Any, tmp_path: Path, attacks: list[str], uninterrupted: tuple[ResultDocument, Path]
) -> None:
    document = small.play(small.cells, tmp_path)
    damaged = document.cells[0]
    lost = next(made for made in document.cells if made.control == "noise_x100")
    (tmp_path / "cells" / f"{damaged.key}.json").write_text('{"schema_version": 1, "settings"')
    (tmp_path / "cells" / f"{lost.key}.json").unlink()
    for arrays in (tmp_path / "reconstructions").iterdir():
        arrays.write_bytes(arrays.read_bytes()[:100])
    attacks.clear()
    assert small.numbers(small.play(small.cells, tmp_path, resume=True)) == small.numbers(uninterrupted[0])
    assert {damaged.observation_id, lost.observation_id} <= set(attacks)


@pytest.mark.parametrize(("control", "written", "other"), [
    (None, '"verdict": "leaks"', '"verdict": "resilient"'), (None, '"outcome": "success"', '"outcome": "failure"'),
    ("positive", '"verdict": "leaks"', '"verdict": "resilient"'),
])  # fmt: skip
def test_edited_cells_are_made_again(
    control: str | None, written: str, other: str, small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    uninterrupted: tuple[ResultDocument, Path],
) -> None:  # fmt: skip
    document = small.play(small.cells, tmp_path)
    files = [tmp_path / "cells" / f"{made.key}.json" for made in document.cells if made.control == control]
    file, text = next((one, text) for one in files if written in (text := one.read_text()))
    file.write_text(text.replace(written, other))
    again = small.play(small.cells, tmp_path, resume=True)
    assert small.numbers(again) == small.numbers(uninterrupted[0])
    assert small.victims(tmp_path) == small.victims(uninterrupted[1])
    assert "it is made again" in capsys.readouterr().err


def test_without_resume_nothing_old_is_used(small: Any, tmp_path: Path, attacks: list[str]) -> None:
    small.play([small.cell()], tmp_path)
    small.play([small.cell()], tmp_path)
    assert len(attacks) == 2
