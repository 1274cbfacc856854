"""Differences and their intervals: they cover the truth as often as they say, and pairing narrows them."""

from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from harness.base.errors import UsageError
from harness.gate import GateCell, Victim, as_baseline, check
from harness.gate.cells import with_titles
from harness.gate.contrast import Difference, contrast, contrast_defenses, contrast_runs
from harness.gate.trend import trends_of
from harness.reports.gate import print_history, row
from harness.reports.text import MISSING
from harness.results import CellResult, Identified, Lineup

Made = Callable[..., GateCell]


def with_errors(cell: GateCell, log_rmse: np.ndarray, first: int = 0) -> GateCell:
    return GateCell(
        cell.settings, {str(first + v): Victim(0.5, float(np.exp(value)), 0.0) for v, value in enumerate(log_rmse)}
    )


@pytest.mark.parametrize("first", [0, 1000], ids=["paired", "two samples"])
def test_intervals_cover_as_often_as_they_say(cell: Made, first: int) -> None:
    random, truth, covered = np.random.default_rng(1), 0.3, 0
    for _ in range(400):
        easy = random.normal(size=32)
        same = easy if first == 0 else random.normal(size=32)
        before = with_errors(cell(), easy + 0.2 * random.normal(size=32))
        after = with_errors(cell(), same + truth + 0.2 * random.normal(size=32), first)
        low, high = contrast(before, after).log_rmse.ci95
        covered += low <= truth <= high
    print(f"{covered} of 400 intervals cover")
    assert 365 <= covered <= 393  # 95% of 400 is 380, its standard deviation 4.4


def test_pairing_narrows_the_interval(cell: Made) -> None:
    random = np.random.default_rng(2)
    easy = random.normal(size=32)
    before, after = with_errors(cell(), easy), with_errors(cell(), easy + 0.1 * random.normal(size=32))
    others = with_errors(cell(), random.normal(size=32), 1000)

    def width(other: GateCell) -> float:
        low, high = contrast(before, other).log_rmse.ci95
        return high - low

    assert contrast(before, after).paired and not contrast(before, others).paired
    assert width(after) < width(others) / 5


def test_success_rates_have_intervals_at_the_floor_and_the_ceiling(cell: Made) -> None:
    one = contrast(cell(0.0), cell(1.0)).asr
    assert (one.a, one.b, one.difference) == (0.0, 1.0, 1.0)
    assert 0.7 < one.ci95[0] < one.ci95[1] <= 1.0
    low, high = contrast(cell(0.0), cell(0.0)).asr.ci95
    assert low < 0 < high


def test_cells_meet_their_own_kind(cell: Made) -> None:
    a = [cell(), cell(tap="T1.out"), cell(defense="noise", **{"defense.amount": 0.1})]
    contrasts, alone = contrast_runs(a, [cell(), cell(tap="T0.in")])
    assert len(contrasts) == 1 and [title[-6:] for title in alone] == ["(in A)", "(in A)", "(in B)"]
    (pair,), _ = contrast_defenses(a, a, ("fed_cdp", "noise"))
    assert pair.a.startswith("fed_cdp") and pair.b.startswith("noise")
    with pytest.raises(UsageError, match=r"no cell in common: .* differ in dataset .* -> mnist-sample; compare"):
        contrast_runs(a, [cell(dataset="mnist-sample")])


def test_a_skipped_cell_is_compared_with_nothing_and_missed_by_nobody(cell: Made) -> None:
    skipped = GateCell(cell().settings, {}, settled_by="patches")
    patches = cell(attack="patches")
    contrasts, alone = contrast_runs([cell(), patches], [skipped, patches])
    assert [pair.a for pair in contrasts] == [patches.title] and not alone
    assert contrast_runs([cell()], [skipped]) == ([], [])


def test_what_only_tells_examples_apart_has_ranks_alone(cell: Made) -> None:
    one, other = cell(attack="identify", victims=24), cell(attack="identify", victims=24, draw=1)
    pair = contrast(one, other)
    assert pair.rank.difference is not None and pair.asr == pair.log_rmse == Difference()
    (found,) = check(as_baseline([one], {}), [other], {}).findings
    assert row(found)[2] == row(found)[4] == MISSING != row(found)[3]
    usual = {"dataset": "digits", "model": "mlp", "defense": "fed_cdp", "attack": "identify", "tap": "T2.step"}
    nights = [
        CellResult(**usual, seeds=[0], victims=8, identified=Identified(mean_rank=rank), lineup=Lineup(reason="none"))
        for rank in (0.2, 0.5, 0.4)
    ]  # fmt: skip
    (trend,) = trends_of([[night] for night in nights])
    assert trend.span == pytest.approx(0.3)
    console = Console(file=StringIO(), width=140)
    print_history(["a", "b", "c"], [trend], console)
    printed = console.file.getvalue()
    assert [entry.strip() for entry in printed.splitlines()[3].split("│")[2:-1]] == [
        "mean rank", "0.20", "0.50", "0.40", "0.30",
    ]  # fmt: skip
    assert "│ success" not in printed


@pytest.mark.parametrize("other", [{"model": "mlp2"}, {"local_steps": 2}, {"attack.tv": 0.1}])
def test_no_two_cells_of_a_run_have_the_same_title(cell: Made, other: dict) -> None:
    (name, value), ours = next(iter(other.items())), cell(local_steps=1, **{"attack.tv": 0.0})
    cells = with_titles([ours, GateCell(ours.settings | other, ours.victims), cell(tap="T1.out")])
    told = [one.title.removeprefix(ours.title) for one in cells]
    assert told[:2] == [f" / {name} {ours.settings[name]}", f" / {name} {value}"]
    assert cells[2].title == cell(tap="T1.out").title
    pairs, _ = contrast_runs(cells, cells)
    assert [(pair.a, pair.b) for pair in pairs] == [(one.title, one.title) for one in cells]
    report = check(as_baseline(cells, {}), cells, {})
    assert sorted(one.cell for one in report.findings) == sorted(one.title for one in cells)


def test_no_two_trends_have_the_same_title() -> None:
    usual = {"dataset": "digits", "model": "mlp", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step", "seeds": [0]}
    changes = ({}, {"model": "mlp2"}, {"attack_args": {"tv": 0.5}}, {"batch_size": 2}, {"cohort": {"rounds": 3}})
    cells = [CellResult(**usual | one, victims=8) for one in changes]
    titles = [trend.title for trend in trends_of([cells, cells])]
    assert len(set(titles)) == len(cells) and any("model mlp2" in title for title in titles)
