"""What rows take is measured on a few, and no more are computed at once than fit; which changes no number."""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import reconstructing
from harness.attacks.engine import memory_of_row
from harness.base import devices as memory
from harness.base import limits
from harness.base.devices import fitting, is_small, peak_of
from harness.base.vectors import filled
from harness.evaluation import Run, attacking, evaluate
from harness.evaluation.attacking import at_once
from harness.evaluation.observe import Stage
from harness.experiment import CellSettings, cell_settings
from harness.results import RunFolder

MEGABYTE = 2**20
BEFORE = torch.zeros(10 * MEGABYTE, dtype=torch.uint8)


def block(megabytes: int) -> Tensor:
    return torch.zeros(megabytes * MEGABYTE, dtype=torch.uint8)


def in_turn() -> None:
    for _ in range(5):
        block(3)


def together() -> list[Tensor]:
    return [block(3) for _ in range(5)]


def with_gradient() -> None:
    values = torch.zeros(MEGABYTE // 4, requires_grad=True)
    torch.autograd.grad(values.exp().exp().sum(), values)


WORK: dict[str, tuple[Callable[[], object], float, float]] = {
    "one after another": (in_turn, 3, 3),
    "all at once": (together, 15, 15),
    "a view is nothing": (lambda: [block(2)[:4], block(2).view(2, -1)], 4, 4),
    "nor is what was there": (lambda: BEFORE[:7] + 1, 0, 0.1),
    "it is while it is copied": (BEFORE.clone, 10, 10),
    "what a gradient needs": (with_gradient, 3, 6),
}


@pytest.mark.parametrize(("work", "least", "most"), WORK.values(), ids=WORK)
def test_a_peak(work: Callable[[], object], least: float, most: float) -> None:
    assert least * MEGABYTE <= peak_of(work) <= most * MEGABYTE


@pytest.fixture(autouse=True)
def untold() -> Iterator[None]:
    memory._told.clear()  # pyright: ignore[reportPrivateUsage]
    yield


FITS: dict[str, tuple[float | None, int, float, int | str]] = {
    "all": (1000, 64, 1, 64),
    "as many as a share of what is free holds": (1000, 64, 20, 30),
    "beside what is kept of all": (1000, 64, 12, 50),
    "two at least, as one is computed twice": (1000, 64, 300, 2),
    "not even these": (1000, 64, 301, "take about 1e-06 GB of memory, and 1e-06 GB are free; fewer --victims"),
    "one that is alone": (1000, 1, 600, 1),
    "where no system says": (None, 64, 1e9, 64),
}


@pytest.mark.parametrize(("free", "asked", "each", "found"), FITS.values(), ids=FITS)
def test_what_fits(
    free: float | None, asked: int, each: float, found: int | str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(memory, "free_memory", lambda: free)
    if isinstance(found, str):
        with pytest.raises(MemoryError, match=found.replace("+", ".")):
            fitting(asked, each, "this", "cpu")
        return
    for _ in range(3):
        assert fitting(asked, each, "this", "cpu") == found
    # Told once, and only of fewer.
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(",")[0] for line in told] == (
        [f"harness: this: {found} at once instead of {asked}"] if found < asked else []
    )


def test_what_is_kept_of_all_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    assert fitting(64, 20, "this", "cpu", reserved=500) == 15


@pytest.mark.parametrize(
    ("rows", "parameters", "pixels", "small"),
    [(64, 15_000, 784, True), (64, 11_000_000, 3072, False), (128, 15_000, 150_000, False), (2, 15_000, 3072, True)],
)
def test_only_what_may_be_large_is_measured(
    rows: int, parameters: int, pixels: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 16 * 2**30)
    assert is_small(rows, parameters, pixels, "cpu") == small


def cell(**values: Any) -> CellSettings:
    common = {"dataset": "digits", "model": "mlp", "victims": 7, "attack_args": {"max_iterations": 2}}
    return cell_settings(**{**common, **values})


def test_a_row_takes_its_weights_target_and_gradient_at_least() -> None:
    settings = cell()
    seen = Stage(Path("no data root"), 64).set(settings).observation
    each = memory_of_row(reconstructing(settings.build_attack()), seen)
    own = 4 * seen.model.layout.total
    assert 3 * own < each < 40 * own
    double = memory_of_row(reconstructing(cell(attack_args={"restarts": 2}).build_attack()), seen)
    assert each / 1.5 < double < each * 1.5  # of each start


def test_two_victims_are_attacked_without_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    monkeypatch.setattr(attacking, "memory_of_row", lambda *given: measured.append(given) or 1.0)
    monkeypatch.setattr(attacking, "is_small", lambda *_: False)
    settings = cell()
    seen, attack = Stage(Path("no data root"), 64).set(settings).observation, reconstructing(settings.build_attack())
    for victims in (2, 3):
        assert at_once(attack, seen.take(torch.arange(victims)), 64, settings) == 64
        assert len(measured) == victims - 2


def test_more_victims_than_any_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100_000)
    with pytest.raises(MemoryError, match=r"networks of 7 victims take about .* GB of memory, .*; fewer --victims"):
        Stage(Path("no data root"), 64).set(cell())


def test_kept_victims_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(Path("no data root"), 64)
    stage.set(cell())
    monkeypatch.setattr(memory, "free_memory", lambda: 0 if stage._scenes else 16e9)
    assert stage.set(cell(defense="fed_cdp")).observation.rows == 7
    assert len(stage._scenes) == 1


def test_parts_lie_once_in_memory() -> None:
    parts, alive = [torch.full((2, 3), float(number)) for number in range(3)], list[int]()
    weak = [weakref.ref(part) for part in parts]

    def one_by_one() -> Iterator[torch.Tensor]:
        while parts:
            yield parts.pop(0)
            alive.append(sum(one() is not None for one in weak) - len(parts))

    assert filled(one_by_one(), 6).tolist() == [[float(row // 2)] * 3 for row in range(6)]
    assert max(alive) == 1
    assert filled(iter([torch.ones(2, 3)]), 2).shape == (2, 3)


@pytest.mark.parametrize("attack", [pytest.param("cpl", marks=pytest.mark.slow), "identify"])
def test_no_number_depends_on_what_is_free(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"attack_args": {}} if attack == "identify" else {}
    settings = cell(attack=attack, defense="fed_cdp", defense_args={"sigma": 0.01}, **arguments)
    found = []
    # The network has 35,000 weights: the lesser one holds some rows and not all.
    for name, free in (("plenty", 16e9), ("short", 7e6)):
        monkeypatch.setattr(memory, "free_memory", lambda free=free: free)
        document = evaluate([settings], Run(Path("no data root"), RunFolder(tmp_path / name)))
        found.append([one.model_dump(exclude={"seconds"}) for one in document.cells])
        assert bool(caplog.records) == (name == "short")
    assert found[0] == found[1]
    assert all("at once instead of" in record.getMessage() for record in caplog.records)


def test_processes_of_one_run_share_what_is_free_but_not_what_each_may_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_workers", 1), ("_on_device", 1), ("_GROUP", tmp_path)):
        monkeypatch.setattr(limits, name, value)
    monkeypatch.setattr(limits, "_available", lambda: 1200)
    found = []
    for addresses in (None, 350):
        monkeypatch.setattr(limits, "_left_of_addresses", lambda addresses=addresses: addresses)
        for workers in (1, 3, 4):
            limits.share_memory(workers)
            found.append(limits.free_memory())
    assert found == [1200, 400, 300, 350, 350, 300]


@pytest.mark.parametrize(
    ("most", "current", "inactive", "left"),
    [("1000", "400", "100", 700), ("max", "400", "0", None), (None, "", "", None)],
)
def test_a_container_s_own_limit_counts(
    most: str | None, current: str, inactive: str, left: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_GROUP", tmp_path)
    monkeypatch.setattr(limits, "_available", lambda: 10**6)
    monkeypatch.setattr(limits, "_left_of_addresses", lambda: None)
    if most is not None:
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text(f"{current}\n")
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    assert limits.free_memory() == (10**6 if left is None else left)
