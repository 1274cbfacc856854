"""A paper's table over shards and processes: every row is dealt, each cell and training made once, the same bytes."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.cli import reproduce as parts
from harness.evaluation import Run
from harness.papers import TABLES, UNDEALT, Request, accuracy, grid
from harness.parallel.units import Job, Shard
from harness.results import RunFolder
from harness.study import runner as trained
from harness.study.runner import ShardDone, dealt

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("coarse_losses")
# The tables of the tiny fixture.
CELLS = ("reproduce", "table1", "--quick", "--victims", "2", "--threads", "1", "--json")
TRAININGS = ("reproduce", "table5", "--quick", "--threads", "1", "--json")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Table I of two attacks, which are stopped at once; Table V of one dataset and federations of a moment."""
    table1, table5 = grid.grid("table1"), grid.grid("table5")
    printed = [[attack, data, 1.0, 0.0, 1.0] for attack in ("dlg", "idlg") for data in ("mnist", "lfw")]
    settings = table1.settings | {"attack_args": {"max_iterations": 2}}
    changed = {
        "table1": table1.model_copy(update={"rows": printed, "settings": settings}),
        "table5": table5.model_copy(update={"rows": [row for row in table5.rows if row[0] == "cancer"]}),
    }
    monkeypatch.setattr(grid, "grid", changed.__getitem__)
    for name, value in {"QUICK_CLIENTS": 3, "QUICK_PER_ROUND": 2, "QUICK_ROUNDS": 2}.items():
        monkeypatch.setattr(accuracy, name, value)
    small = {name: replace(one, examples=4 * one.batch_size) for name, one in accuracy.TABLE_2.items()}
    monkeypatch.setattr(accuracy, "TABLE_2", small)
    yield


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were trained into, as often as they were."""
    made: list[str] = []
    real = trained.train

    def counted(settings: Any, root: Path, folder: Any, options: Any) -> Any:
        made.append(folder.path.name)
        return real(settings, root, folder, options)

    monkeypatch.setattr(trained, "train", counted)
    return made


def documents(folder: Path) -> dict[str, Any]:
    """The trainings of a folder, without how long they took."""
    found = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("trained/*/training.json")}
    return {name: one | {"seconds": 0, "rounds": [untimed(r) for r in one["rounds"]]} for name, one in found.items()}


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    return record | {"seconds": 0}


@pytest.mark.parametrize("count", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3))])
def test_cells_of_shards_are_those_of_one_process(
    harness: Command, tiny: None, content: Callable[[Path], Any], count: int
) -> None:
    whole = harness(*CELLS, "--out", "one")
    assert whole.code == 0, whole.err
    cells = []
    for index in range(1, count + 1):
        done = harness(*CELLS, "--shard", f"{index}/{count}", "--out", "shared")
        assert done.code == 0 and not Path("shared/results.json").exists()
        cells += json.loads(done.out)["cells"]
    made = {path.stem: path.stat().st_mtime_ns for path in Path("shared/cells").iterdir()}
    assert set(cells) == set(made) and made
    together = harness(*CELLS, "--out", "shared", "--resume")
    assert together.out == whole.out and content(Path("shared")) == content(Path("one"))
    assert {path.stem: path.stat().st_mtime_ns for path in Path("shared/cells").iterdir()} == made


@pytest.mark.slow
def test_trainings_of_shards_are_made_once(harness: Command, tiny: None, trainings: list[str]) -> None:
    whole = harness(*TRAININGS, "--out", "one")
    assert whole.code == 0, whole.err
    expected = sorted(trainings)
    trainings.clear()
    for part in ("1/2", "2/2"):
        done = harness(*TRAININGS[:-1], "--shard", part, "--out", "shared")
        assert f"shard {part} of table5 is done" in done.out and "--resume and --out shared instead of" in done.out
    assert sorted(trainings) == expected == sorted(set(expected))
    together = harness(*TRAININGS, "--out", "shared", "--resume")
    assert together.out == whole.out and documents(Path("shared")) == documents(Path("one"))
    assert sorted(trainings) == expected


def test_two_workers_on_one_shard_share_its_trainings(tiny: None, tmp_path: Path, trainings: list[str]) -> None:
    asked = partial(Request, data_root=tmp_path / "none", quick=True)
    part = parts.Part("table5", asked, Shard(1, 1))
    runs = [Job(tmp_path / "none", tmp_path / "shared").run() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(part.make, runs))
    assert sorted(trainings) == sorted(set(trainings)) == sorted(documents(tmp_path / "shared"))


def test_processes_make_everything_and_take_nothing_of_an_earlier_run(
    harness: Command, tiny: None, trainings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(job: Job, tasks: list[parts.Part], jobs: int, *words: str) -> None:
        for task in tasks:
            task.make(job.run())

    monkeypatch.setattr(parts, "in_processes", here)
    whole = harness(*TRAININGS, "--out", "one")
    expected = sorted(trainings)
    for again in (("--jobs", "2"), ("--jobs", "2"), ("--jobs", "2", "--resume")):
        trainings.clear()
        assert harness(*TRAININGS, *again, "--out", "spread").out == whole.out
        assert sorted(trainings) == ([] if "--resume" in again else expected)


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_one(harness: Command, content: Callable[[Path], Any]) -> None:
    line = ("reproduce", "secagg-leakage", "--quick", "--victims", "1", "--threads", "1", "--json")
    one, two = harness(*line, "--out", "one"), harness(*line, "--jobs", "2", "--out", "two")
    assert (one.code, two.code) == (0, 0) and one.out == two.out
    assert content(Path("one")) == content(Path("two"))


@pytest.mark.parametrize("table", [name for name in TABLES if name not in UNDEALT])
def test_a_shard_without_rows_makes_nothing(table: str, tmp_path: Path) -> None:
    """All that a table makes is dealt: nothing is made before, nor after."""
    run = Run(tmp_path / "none", RunFolder(tmp_path / "run"))
    with pytest.raises(ShardDone):
        TABLES[table](Request(run, tmp_path / "none", quick=True, victims=2, shard=Shard(10_000, 10_000)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [("--shard", "1/2"), ("--jobs", "2")], ids=["shard", "jobs"])
@pytest.mark.parametrize("table", UNDEALT)
def test_a_table_without_parts_says_so(harness: Command, table: str, option: tuple[str, str]) -> None:
    done = harness("reproduce", table, *option, "--out", "run")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{table} has no parts for {option[0]}: " in done.err and f"leave {option[0]} out" in done.err
    assert not Path("run/results.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shard", "3/2"), "shards of 2 are 1/2 to 2/2"),
        (("--shard", "one"), "write 3/8 for the third of eight"),
        (("--shard", "1/2", "--jobs", "2"), "take --jobs alone"),
        (("--jobs", "0"), "--jobs must be 1"),
        (("--threads", "0"), "--threads must be 1"),
    ],
)
def test_a_mistake_is_told_in_one_line(harness: Command, options: tuple[str, ...], said: str) -> None:
    done = harness("reproduce", "table1", *options, "--out", "run")
    assert (done.code, done.err.count("\n")) == (2, 1) and said in done.err
    assert not list(Path().glob("run/cells/*"))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_row_is_one_shards_and_no_dataset_is(count: int) -> None:
    rows = [(attack, data) for attack in "abcd" for data in ("mnist", "cifar10", "lfw")]
    shares = [dealt(rows, "row", Shard(index, count)) for index in range(1, count + 1)]
    assert sorted(row for share in shares for row in share) == sorted(rows)
    assert count != 3 or all(len({data for _, data in share}) > 1 for share in shares)
