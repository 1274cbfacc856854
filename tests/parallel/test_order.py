"""What workers are given first, and how many of them there are."""

from pathlib import Path

import pytest

from harness.evaluation.observe import Stage
from harness.experiment import CellSettings, cell_settings
from harness.parallel import worker_pool
from harness.parallel.units import Job, in_good_order, units_of
from harness.parallel.worker_pool import suitable_jobs

Names = list[tuple[str, str, str | None]]


def cells(*defenses: str, **changes: object) -> list[CellSettings]:
    facts: dict[str, object] = {"dataset": "digits", "model": "mlp", "attack": "cpl", "victims": 64} | changes
    return [
        cell_settings(**facts | {"defense": name, "tap": tap}) for name in defenses for tap in ("T2.step", "T1.out")
    ]


def order(asked: list[CellSettings], folder: Path) -> Names:
    run = Job(folder, folder).run()
    return [
        (unit.cells[0].defense, unit.cells[0].attack, unit.control) for unit in in_good_order(units_of(asked, run), run)
    ]


def test_what_others_need_is_made_first(tmp_path: Path) -> None:
    """The undefended cell has the controls' victims among its own; where there is none, controls come first."""
    longer = cells("pruning", attack="dlg", attack_args={"max_iterations": 1000})
    asked = [*cells("fed_cdp", "fed_sdp", "none"), *longer]
    assert order(asked, tmp_path)[:2] == [("none", "cpl", None), ("pruning", "dlg", None)]
    alone = order([*cells("fed_cdp", "fed_sdp"), *longer], tmp_path)
    assert alone[:2] == [("none", "cpl", "positive")] * 2  # at both taps
    assert alone[2:] == [("pruning", "dlg", None), ("fed_cdp", "cpl", None), ("fed_sdp", "cpl", None)]


def test_several_looks_bring_no_control(tmp_path: Path) -> None:
    asked = [*cells("none", observations=4), *cells("fed_cdp", "fed_sdp")]
    assert ("none", "cpl", "positive") in order(asked, tmp_path)


@pytest.mark.parametrize(
    ("asked", "jobs"),
    [
        (cells("none"), 4),  # one group, whose victims are dealt
        (cells("none", victims=20), 2),  # hardly any to each
        (cells("none", victims=2), 1),
        (cells("none", engine="reference"), 1),
        (cells("none", attack="analytic"), 1),  # over at once
        (cells("none", model="vit", victims=4), 2),  # a larger network
        (cells("none", attack="spear"), 1),  # its threads take a victim each
        (cells("none", attack="identify"), 1),
        (cells("none", model="torchvision:resnet18+group_norm"), 1),  # one after another
        (cells("none", model="resnet8"), 1),
        (cells("none", model="no-such-network"), 1),
        (cells("none", device="cuda"), 1),
        (cells("none", "fed_cdp", victims=2), 1),  # done before a second process had started
        (cells("none", "fed_cdp"), 2),
        (cells("none", "fed_cdp", "fed_sdp", "pruning", "noise"), 4),
        (cells("none", "fed_cdp", device="cuda"), 1),
    ],
)
def test_as_many_processes_as_pay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[CellSettings], jobs: int
) -> None:
    monkeypatch.setattr(worker_pool, "cpu_count", lambda: 4)
    assert suitable_jobs(asked, Stage(tmp_path, 128)) == jobs


def test_no_more_processes_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker_pool, "cpu_count", lambda: 64)
    for free, jobs in ((None, 8), (5.5e9, 5), (0.5e9, 1)):
        monkeypatch.setattr(worker_pool, "free_memory", lambda free=free: free)
        assert suitable_jobs(cells("none"), Stage(tmp_path, 128)) == jobs
