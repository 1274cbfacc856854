"""A place where images come back to a member of a suite ends there; what failed, and what only traces, ends nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks import SUITES
from harness.attacks.suites import EXHAUSTIVE, LATEST
from harness.evaluation import Run, evaluate
from harness.experiment import CellSettings, expand
from harness.functions import evaluate as evaluate_function
from harness.models.networks import MODELS
from harness.parallel.units import units_of
from harness.results import Control, ResultDocument, RunFolder
from harness.scoring.summarise import settles

NO_DATA = Path("no data root")
QUICK = {"analytic": {}, "identify": {}, "cpl": {"max_iterations": 2}}
SETTLED = "skipped: settled by analytic"


@pytest.fixture(autouse=True)
def a_suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``quick``: a closed form before two others; ``pair``: before one; ``late``: behind one that only identifies."""
    others = {"pair": {"analytic": {}, "identify": {}}, "late": {"identify": {}, "analytic": {}}}
    for name, members in {"quick": QUICK, **others}.items():
        monkeypatch.setitem(SUITES, f"{name}-1", members)
        monkeypatch.setitem(LATEST, name, f"{name}-1")
    yield


def cells(suite: str = "quick", **values: Any) -> list[CellSettings]:
    defense = values.pop("defense", ("none", {}))
    common = {"dataset": "digits", "model": "mlp", "victims": 6, "prior": "auto", "device": "cpu"}
    return expand({"attack": [(suite, {})], "defense": [defense]}, **common | values)


def run_of(folder: Path, settles: bool = True, resume: bool = False) -> Run:
    return Run(NO_DATA, RunFolder(folder), chunk=64, resume=resume, settles=settles)


def reasons(document: ResultDocument) -> dict[str, str | None]:
    return {cell.attack: cell.not_applicable_reason for cell in document.cells if cell.role == "cell"}


SKIPS: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "what is left": ({}, True, ["identify", "cpl"]),
    "nothing where all members run": ({}, False, []),
    "nothing behind a failure": ({"suite": "pair", "defense": ("fed_cdp", {"sigma": 60.0})}, True, []),
    "nothing behind what identifies, nor what ran before": ({"suite": "late"}, True, []),
}


@pytest.mark.parametrize(("values", "may_skip", "skipped"), SKIPS.values(), ids=SKIPS)
def test_what_is_skipped(tmp_path: Path, values: dict[str, Any], may_skip: bool, skipped: list[str]) -> None:
    document = evaluate(cells(**values), run_of(tmp_path, may_skip))
    assert [name for name, reason in reasons(document).items() if reason == SETTLED] == skipped
    (row,) = document.summary
    assert document.valid and [one.attack for one in row.attacks if one.skipped] == skipped
    assert row.verdict == ("inconclusive" if values.get("defense") else "leaks")


def test_a_skipped_row_is_no_success_and_no_failure(tmp_path: Path) -> None:
    document = evaluate(cells(), run_of(tmp_path))
    skipped = [cell for cell in document.cells if cell.settled_by]
    assert [cell.outcomes.model_dump(exclude_defaults=True) for cell in skipped] == [{"not_applicable": 6}] * 2
    assert not any(cell.asr or cell.controls or cell.told or cell.succeeds for cell in skipped)
    (row,) = document.summary
    assert row.verdict_reason.startswith("analytic: images come back") and row.tier == "plain"
    assert document.planned == 3 and len((tmp_path / "victims.jsonl").read_text().splitlines()) == 6


def test_an_older_suite_runs_whole(tmp_path: Path) -> None:
    assert EXHAUSTIVE == ("auto-7",)
    own = [cell for cell in cells("auto-7") if cell.attack in ("analytic", "identify")]
    assert not any(reasons(evaluate(own, run_of(tmp_path))).values())


def test_a_resumed_run_is_that_which_nothing_broke(small: Any, tmp_path: Path) -> None:
    """It breaks behind the member that settles the place, and again before anything but that member is there."""
    whole = small.numbers(evaluate(cells(), run_of(tmp_path / "whole")))
    for done in (1, 2):
        folder = tmp_path / str(done)
        broken = run_of(folder)
        for settings in cells()[:done]:
            broken.asked(settings)
        assert small.numbers(evaluate(cells(), run_of(folder, resume=True))) == whole
        made = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
        assert small.numbers(evaluate(cells(), run_of(folder, resume=True))) == whole
        assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == made


def test_what_was_skipped_is_made_when_it_is_asked_for_and_then_kept(small: Any, tmp_path: Path) -> None:
    evaluate(cells(), run_of(tmp_path))
    whole = evaluate(cells(), run_of(tmp_path, settles=False, resume=True))
    assert not any(reasons(whole).values())
    assert small.numbers(evaluate(cells(), run_of(tmp_path, resume=True))) == small.numbers(whole)


def test_members_of_a_place_are_one_unit_only_where_one_may_settle_it(tmp_path: Path) -> None:
    asked = [*cells(tap="T2.step"), *cells(tap="T1.out"), *cells(model="logistic")]
    for may_skip, sizes in ((True, [6, 3]), (False, [2, 2, 2, 1, 1, 1])):
        assert [len(unit.cells) for unit in units_of(asked, run_of(tmp_path, may_skip))] == sizes


def test_the_function_skips_unless_all_members_are_asked_for(tmp_path: Path) -> None:
    few = {"defense": "none", "attack": "quick", "dataset": "digits", "model": "mlp", "victims": 6, "out": tmp_path}
    for whole in (False, True):
        made = reasons(evaluate_function(**few, all_members=whole, data_root=NO_DATA))
        assert list(made.values()) == [None, *[None if whole else SETTLED] * 2]


class Places(torch.nn.Module):
    """The least that reads patches at learned places."""

    def __init__(self, channels: int, classes: int, head: float) -> None:
        super().__init__()
        self.cut, self.head = torch.nn.Conv2d(channels, 16, 4, 4), torch.nn.Linear(16, classes)
        self.where = torch.nn.Parameter(torch.randn(4, 16))
        torch.nn.init.normal_(self.head.weight, std=head)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, K)."""
        return self.head(torch.tanh(self.cut(images).flatten(2).mT + self.where).mean(1))


@pytest.mark.parametrize("head", [0.1, 0.0])
def test_a_network_of_patches_is_settled_unless_its_head_is_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: float
) -> None:
    def make(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return Places(shape[0], classes, head)

    monkeypatch.setitem(MODELS._entries, "places", make)
    monkeypatch.setitem(SUITES, "quick-1", {"patches": {}, "identify": {}})
    patches, identify = cells(model="places")
    run = run_of(tmp_path)
    if head:
        assert run.asked(patches).cell.verdict == "leaks" and run.asked(identify).cell.settled_by == "patches"
    else:
        reason = run.asked(patches).cell.not_applicable_reason
        assert "is not applicable: the head's weights are zero" in (reason or "") and not run._settled


UNFIT: dict[str, dict[str, Any]] = {
    "a flag": {"flags": ["stalled: for a test"]},
    "a warning": {"warnings": ["the noise is not what was declared"]},
    "a control that failed": {"controls": [Control(name="positive", held=True), Control(name="swap", held=False)]},
    "no positive control": {"controls": [Control(name="swap", held=True)]},
    "traces alone": {"confirmed": 0},
    "no member of a suite": {"suite": None},
    "a suite that runs whole": {"suite": "auto-7"},
    "a control": {"role": "control", "control": "positive"},
    "another verdict": {"verdict": "inconclusive"},
}


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SUITES, "quick-1", QUICK)
        patch.setitem(LATEST, "quick", "quick-1")
        return evaluate(cells()[:1], run_of(tmp_path_factory.mktemp("settled"))).cells[0]


@pytest.mark.parametrize("changes", UNFIT.values(), ids=UNFIT)
def test_what_does_not_settle(settled: Any, changes: dict[str, Any]) -> None:
    assert settles(settled) and not settles(settled.model_copy(update=changes))
