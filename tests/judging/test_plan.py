"""``harness judge --plan``: what is read, tried and not tried, and for how long, with nothing attacked."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.attacks import engine
from harness.cli import run

Federation = Callable[..., list[Path]]
Planned = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Planned:
    def never(*_: object) -> None:
        raise AssertionError("a plan attacks nothing")

    monkeypatch.setattr(engine._ChunkRun, "run", never)

    def command(*options: object) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = run(["judge", *map(str, options), "--plan", "--json", "--out", str(tmp_path / "out")])
        said = capsys.readouterr()
        assert not (tmp_path / "out").exists()
        return code, json.loads(said.out) if said.out else None, said.err

    return command


@pytest.mark.parametrize("truth", [True, False])
def test_a_plan_says_what_is_read_and_tried(truth: bool, federation: Federation, planned: Planned) -> None:
    folders = federation(3, truth=truth, batch=2)
    code, document, _ = planned(folders[0].parent, "--prior", "digits", "--attack", "cpl,analytic,identify")
    read = document["captures"]
    assert code == 0 and [Path(one["folder"]) for one in read] == folders
    assert {one["truth"] for one in read} == {2 if truth else None} and {one["sent"] for one in read} == {"after"}
    assert read[0]["facts"] | {"model": "mlp", "batch_size": 2, "optimizer": "sgd"} == read[0]["facts"]
    cpl, analytic, _ = document["attacks"]
    assert (cpl["captures"], cpl["of"], cpl["reason"]) == (3, 3, None) and 0 < cpl["seconds"][0] < cpl["seconds"][1]
    assert analytic["captures"] == 0 and "one example per observation" in analytic["reason"]
    assert document["seconds"][1] >= cpl["seconds"][1]


WRONG: dict[str, tuple[Callable[[list[Path]], object], tuple[str, ...], str]] = {
    "a capture without what was sent": (lambda folders: (folders[1] / "after.npz").unlink(), (), "must hold one of"),
    "no truth and no prior": (lambda folders: [(one / "truth.npz").unlink() for one in folders], (), "add --prior"),
    "others among them": (
        lambda folders: (folders[1] / "capture.json").write_text(
            (folders[1] / "capture.json").read_text().replace("0.05", "0.1")
        ), (), "captures differ in learning_rate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "options", "said"), WRONG.values(), ids=WRONG)
def test_a_plan_names_what_cannot_be_judged(
    spoil: Callable[[list[Path]], object], options: tuple[str, ...], said: str, federation: Federation,
    planned: Planned,
) -> None:  # fmt: skip
    folders = federation(2)
    spoil(folders)
    code, document, line = planned(*folders, *options)
    problems = [document["problem"], *(one["problem"] for one in document["captures"])]
    assert code == 2 and any(said in one for one in problems if one) and line.count("\n") == 1
    assert len(document["captures"]) == 2


def test_a_plan_is_read_by_people_too(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["judge", *map(str, federation(2)), "--plan"]) == 0
    said = capsys.readouterr().out
    assert "of all: model mlp" in said and "2 of 2" in said and "1 of 1 attack(s) run, " in said


def test_what_takes_longer_is_forecast_to(
    federation: Federation, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, evaluate = federation(2), engine._ChunkRun._evaluate

    def slowly(run: Any, position: Any) -> Any:
        time.sleep(0.05)
        return evaluate(run, position)

    quick = planned(*folders, "--attack", "cpl")[1]["seconds"]
    monkeypatch.setattr(engine._ChunkRun, "_evaluate", slowly)
    slow = planned(*folders, "--attack", "cpl")[1]["seconds"]
    # 20 gradients in each of 300 iterations at most, or of 30, on two victims at once.
    assert slow[0] > max(30.0, quick[0]) and slow[1] > 300.0 and slow[1] == pytest.approx(10 * slow[0])
