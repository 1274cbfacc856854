"""The victims of one attack over processes: the same bits as in one, and none of them is missed when it is lost."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks import Attack, Reconstruction, reconstructing, run_attack
from harness.base import limits
from harness.base.progress import progress
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.watching import AttackForecast, AttackRecorder
from harness.experiment import CellSettings, cell_settings
from harness.parallel import worker_pool as pools
from harness.parallel.worker_pool import WorkerPool, worker_pool

CELL = cell_settings(
    dataset="digits", model="lenet", attack="cpl", victims=11, attack_args={"restarts": 2, "max_iterations": 12},
    defense="noise", defense_args={"amount": 0.001},
)  # fmt: skip


HERE = "; this process attacks its rows"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Stage(tmp_path_factory.mktemp("data"), 128).set(CELL)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def everyone(one_thread: None) -> Iterator[WorkerPool]:
    with worker_pool(3) as three:
        yield three


def attack_of(settings: CellSettings) -> Attack:
    return reconstructing(settings.build_attack())


def watched(scene: Scene) -> tuple[AttackRecorder, Callable[..., AttackForecast]]:
    recorder = AttackRecorder(scene.truth.images, attack_of(CELL).starts)
    return recorder, lambda bar: AttackForecast(recorder, bar, scene.observation.rows, attack_of(CELL), CELL)


def in_one(scene: Scene) -> tuple[Reconstruction, AttackRecorder]:
    recorder, _ = watched(scene)
    return run_attack(attack_of(CELL), scene.observation, observer=recorder), recorder


def assert_equal(made: Reconstruction, expected: Reconstruction) -> None:
    for name in Reconstruction.__dataclass_fields__:
        assert torch.equal(getattr(made, name), getattr(expected, name)), name


def assert_as_in_one(everyone: WorkerPool, scene: Scene, attack: Attack) -> None:
    """Everything that is made and recorded, of uneven shares, and all rows are counted."""
    recorder, watching = watched(scene)
    with progress("attacking", 11, "victims") as bar:
        made = everyone.attack(attack, scene.observation, 128, watching(bar))
        assert bar.left() == 0.0
    expected, alone = in_one(scene)
    assert_equal(made, expected)
    tau, snapshots = recorder.tau(made.restart, 12), recorder.snapshots(made.restart, made.images)
    assert torch.equal(tau, alone.tau(made.restart, 12)) and (tau < 12).any()
    known = alone.snapshots(made.restart, made.images)
    assert list(snapshots) == list(known) == [1, 2]
    assert all(torch.equal(snapshots[iteration], images) for iteration, images in known.items())


def test_every_bit_is_that_of_one_process(everyone: WorkerPool, scene: Scene) -> None:
    assert_as_in_one(everyone, scene, attack_of(CELL))
    assert everyone.seconds > 0 and sorted(everyone.peaks) == [1, 2] and min(everyone.peaks.values()) > 2**25


def test_nobody_need_watch(everyone: WorkerPool, scene: Scene) -> None:
    made = everyone.attack(attack_of(CELL), scene.observation, 4)
    assert_equal(made, in_one(scene)[0])


# A worker of a training run is killed in test_chunks.py.
@pytest.mark.slow
def test_a_process_that_is_killed_is_not_missed(
    one_thread: None, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Half as many go on, in one more attack."""
    with worker_pool(4) as four, caplog.at_level(logging.WARNING):
        four._others.submit(os._exit, 1)
        assert_as_in_one(four, scene, attack_of(CELL))
        assert (four.processes, four.seconds) == (2, 0)
        assert_as_in_one(four, scene, attack_of(CELL))
        assert four.seconds > 0 and list(four.peaks) == [1]
    assert caplog.messages == ["a worker was lost" + HERE]


@pytest.mark.parametrize(
    ("kind", "chunks"),
    [pytest.param("MemoryError", [128, 64, 64], marks=pytest.mark.slow),
     pytest.param("ValueError", None, marks=pytest.mark.slow)],
)  # fmt: skip
def test_what_another_process_lacks_and_what_it_says(
    kind: str, chunks: list[int] | None, one_thread: None, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lack of memory is fixed here with half as many rows; everything else is told."""
    seen, ordinary = list[int](), run_attack

    def noted(attack: Attack, observation: Any, chunk: int, *rest: Any) -> Reconstruction:
        seen.append(chunk)
        return ordinary(attack, observation, chunk, *rest)

    monkeypatch.setattr("harness.evaluation.attacking.run_attack", noted)
    expected = in_one(scene)[0]
    with worker_pool(3) as three:
        monkeypatch.setattr(three, "_submit", lambda _: three._others.submit(exec, f"raise {kind}('of a test')"))
        if chunks is None:
            with pytest.raises(ValueError, match="of a test"):
                three.attack(attack_of(CELL), scene.observation, 128)
            return
        assert_equal(three.attack(attack_of(CELL), scene.observation, 128), expected)
        assert (seen, three.processes) == (chunks, 1)


def test_what_cannot_be_sent_is_attacked_here(
    everyone: WorkerPool, scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(type(attack_of(CELL))):
        def __reduce__(self) -> Any:
            raise TypeError("this goes nowhere")

    # Nothing of it is left to the thread that sends: it would meet a network that is being evaluated.
    monkeypatch.setattr(everyone._others, "submit", lambda *_: pytest.fail("it was sent"))
    stuck, before = Stuck(**attack_of(CELL).parameters()), everyone.seconds
    assert_as_in_one(everyone, scene, stuck)
    assert not caplog.messages and everyone.seconds == before


NETWORK = """
from torch import nn

def make(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, classes))
"""


EDITS: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: None,
    "beside": lambda path: path.with_name("new_beside.py").write_text(""),
    "layers": lambda path: path.write_text(NETWORK.replace("Sigmoid", "Tanh")),
    "broken": lambda path: path.write_text("def make(:"),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("edit", [
    pytest.param(one, marks=pytest.mark.slow) for one in EDITS
])  # fmt: skip
def test_a_network_of_one_s_own(
    edit: str, one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is what this process has loaded that attacks, whatever stands in its file by now."""
    monkeypatch.chdir(tmp_path)
    name, changed = f"network_dealt_{edit}", edit not in ("nothing", "beside")
    Path(f"{name}.py").write_text(NETWORK)
    settings = cell_settings(dataset="digits", model=f"{name}:make", attack="cpl", victims=8)
    attack = replace(attack_of(settings), max_iterations=100)
    with worker_pool(2, 1, [settings]) as everyone, caplog.at_level(logging.WARNING):
        seen = Stage(tmp_path, 128).set(settings).observation
        EDITS[edit](Path(f"{name}.py"))
        assert_equal(everyone.attack(attack, seen, 128), run_attack(attack, seen))
    assert caplog.messages == (["a file of yours was changed while the run began" + HERE] if changed else [])
    assert (everyone.seconds == 0) == changed


WHOLE: dict[str, dict[str, Any]] = {
    "three victims are one share": {"victims": 3},
    "so is one": {"victims": 1, "attack_args": {"max_iterations": 10_000}},
    "over at once": {"attack_args": {"max_iterations": 1}, "attack": "inverting_gradients"},
    "one after another": {"model": "resnet8", "attack": "inverting_gradients"},
    "nothing is searched for": {"attack": "spear", "batch_size": 2, "model": "mlp"},
}


@pytest.mark.parametrize("changes", WHOLE.values(), ids=WHOLE)
def test_what_is_not_dealt(changes: dict[str, Any], one_thread: None, tmp_path: Path) -> None:
    settings = cell_settings(**CELL.model_dump(include={"dataset", "model", "attack", "victims"}) | changes)
    seen = Stage(tmp_path, 128).set(settings).observation
    with worker_pool(3) as everyone:
        assert len(everyone._shares(attack_of(settings), seen)) == 1


def test_what_is_too_large_is_not_dealt(everyone: WorkerPool, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = scene.observation.model.layout.total
    for most, shares in ((2 * 4 * 11 * weights, 3), (2 * 4 * 11 * weights - 1, 1)):
        monkeypatch.setattr(pools, "_MOST_SENT", most)
        assert len(everyone._shares(attack_of(CELL), scene.observation)) == shares
    monkeypatch.setattr(pools, "_MOST_SENT", 2**40)
    monkeypatch.setattr(pools, "free_memory", lambda: 4 * 2 * 4 * 11 * weights - 1)
    assert len(everyone._shares(attack_of(CELL), scene.observation)) == 1


def test_workers_may_grow_into_what_all_of_the_machine_has(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their limit is a part of what is free for all, and not of one worker's part of it."""
    free, begin = list[int | None](), pools.begin_workers
    monkeypatch.setattr(limits, "free_memory", lambda: 8_000 // limits._workers)
    monkeypatch.setattr(pools, "begin_workers", lambda *given: free.append(limits.free_memory()) or begin(*given))
    with worker_pool(2):
        assert limits.free_memory() == 4_000
    assert free == [8_000] and limits.free_memory() == 8_000


def test_a_progress_line_is_for_all_shares() -> None:
    """Of 64 rows, this process has 32 and the other as many: they are taken to be as far."""
    with progress("attacking", 64, "victims") as bar:
        told = AttackForecast(None, bar, 64, attack_of(CELL), CELL)
        assert told.deal([torch.arange(0, 64, 2), torch.arange(1, 64, 2)]) == [None, None]
        told(torch.arange(32), torch.zeros(32), 6, torch.zeros(32))
        assert bar.total * bar._part / 64 == pytest.approx(16)  # half of twelve iterations, with half of the starts
        told.advance(32)
        assert bar._done == 64
        told.wait()
        told.take_over(32, None)
        assert bar._done == 32
        told(torch.arange(32), torch.zeros(32), 6, torch.zeros(32))
        assert bar._done + bar._part == pytest.approx(40, rel=0.01)  # half of the other half, with half of its starts
        told.advance(32)
        assert bar._done == 64
        told.gather([torch.arange(0, 64, 2), torch.arange(1, 64, 2)], [None, None])
        assert bar._done == 64


@pytest.mark.slow
def test_a_command_of_one_group_deals_its_victims(
    harness: Callable[..., Any], content: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (
        "evaluate", "--dataset", "digits", "--model", "lenet", "--defense", "fed_cdp", "--attack", "cpl",
        "--surface", "1,2", "--victims", "9", "--attack-arg", "max_iterations=8", "--no-pictures",
    )  # fmt: skip
    seconds, end = list[float](), WorkerPool.end
    monkeypatch.setattr(WorkerPool, "end", lambda pool, kill=False: seconds.append(pool.seconds) or end(pool, kill))
    assert harness(*line, "--jobs", "2", "--out", "dealt").code == 0
    assert harness(*line, "--threads", "1", "--out", "one").code == 0
    assert content(Path("dealt")) == content(Path("one"))
    assert seconds[0] > 0 == seconds[1]
