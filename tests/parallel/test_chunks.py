"""Training over processes: the same bytes as in one, whatever is lost on the way."""

import json
import logging
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from loky.backend.reduction import dumps

from harness.base.errors import UsageError
from harness.parallel import processes
from harness.parallel.processes import Processes
from harness.training import TrainFolder, TrainOptions, train, train_settings
from harness.training.bayesian import Notes

pytestmark = pytest.mark.usefixtures("coarse_losses")

TINY: dict[str, Any] = {
    "dataset": "cancer", "model": "mlp2", "clients": 12, "clients_per_round": 7, "rounds": 2, "local_steps": 2,
    "batch_size": 3, "split": "iid",
}  # fmt: skip


class Late(Future[Any]):
    """Is done when somebody waits for it."""

    def __init__(self, executor: "Backwards") -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> Any:
        self._executor.work()
        return super().result(timeout)


class Backwards:
    """Stands for processes: all that goes in and out is pickled, and the last that was asked for is done first."""

    most_under_way = 0
    faults: list[Exception] = []  # noqa: RUF012, of a test, which ends with it
    begun: list[int] = []  # noqa: RUF012

    def __init__(self, workers: int, env: dict[str, str], initargs: Any, job_reducers: Any, **_: Any) -> None:
        assert {threads for name, threads in env.items() if name.endswith("_NUM_THREADS")} == {"1"}
        self._reducers, self._asked = job_reducers, list[tuple[Late, bytes]]()
        _, begin, _ = initargs
        processes._own[:] = begin.args[:1]
        processes._clients.cache_clear()
        self.begun.append(workers)

    def submit(self, *call: Any) -> Late:
        future = Late(self)
        self._asked.append((future, bytes(dumps(call, self._reducers))))
        type(self).most_under_way = max(self.most_under_way, len(self._asked))
        return future

    def work(self) -> None:
        while self._asked:
            future, asked = self._asked.pop()
            if self.faults:
                future.set_exception(self.faults.pop())
                continue
            learn, chunk = pickle.loads(asked)
            future.set_result(pickle.loads(bytes(dumps(learn(chunk), self._reducers))))

    def shutdown(self, wait: bool, kill_workers: bool) -> None:
        assert kill_workers or not self._asked


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> type[Backwards]:
    monkeypatch.setattr("harness.parallel.processes.ProcessPoolExecutor", Backwards)
    for name, value in (("most_under_way", 0), ("faults", []), ("begun", [])):
        monkeypatch.setattr(Backwards, name, value)
    return Backwards


def plain(value: Any) -> Any:
    """Tensors as their bytes, in whatever they lie."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    return (value.dtype, value.shape, value.numpy().tobytes()) if isinstance(value, torch.Tensor) else value


def content(folder: Path) -> Any:
    """All that a run leaves, without how long it took."""
    document = json.loads((folder / "training.json").read_text())
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    rounds = json.loads(saved.pop("rounds"))
    for timed in (document, *document["rounds"], *rounds):
        del timed["seconds"]
    beside = {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*")}
    return document, rounds, plain(saved), beside


def run(folder: Path, jobs: int, notes: Any = None, **changes: Any) -> Any:
    parallel = Processes(jobs, 1, folder) if jobs > 1 else None
    options = TrainOptions(chunk=2, keep=(1, 2), notes=notes, parallel=parallel)
    train(train_settings(**TINY | changes), folder, TrainFolder(folder), options)
    return content(folder)


RUNS: dict[str, dict[str, Any]] = {
    "no defense": {"server_momentum": 0.5, "client_sampling": "poisson"},
    "noise in steps": {"defense": "fed_cdp", "batch_sampling": "poisson"},
    "secure sums": {
        "model": "logistic", "defense": "secagg_ddp", "defense_args": {"protocol": "sum"}, "batch_sampling": "poisson",
    },
    "variates": {"defense": "fed_cdp", "algorithm": "scaffold"},
    "a bound of the server's": {"defense": "quantile", "defense_args": {"clip": 1e-4, "rate": 2, "sigma": 0.01}},
    "a bound of the clients'": {"defense": "quantile", "defense_args": {"unit": "example"}},
    "what clients keep": {"defense": "pruning+noise", "defense_args": {"pruning.error_feedback": True}},
    "running statistics": {"dataset": "digits", "model": "resnet8", "clients_per_round": 3, "clients": 5},
    "notes": {"dataset": "digits", "defense": "global_dp", "notes": Notes},
}  # fmt: skip


# SCAFFOLD's clients add noise in their steps too, and Poisson's batches are those of secure sums too.
@pytest.mark.parametrize("changes", [
    pytest.param(changes, id=name, marks=pytest.mark.slow if name == "noise in steps" else ())
    for name, changes in RUNS.items()
])  # fmt: skip
def test_the_same_bytes_as_one_process(changes: dict[str, Any], tmp_path: Path, backwards: type[Backwards]) -> None:
    alone = run(tmp_path / "1", 1, **changes)
    assert not backwards.begun
    for jobs in (2, 3):
        assert run(tmp_path / str(jobs), jobs, **changes) == alone
    assert run(tmp_path / "other", 1, seed=1, **changes) != alone
    assert backwards.begun == [2, 3]


def command_lines() -> Iterator[bytes]:
    """Of all processes that run now."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


@pytest.mark.slow
def test_a_secret_key_is_that_of_all_workers_and_lies_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A second round from copies of a first one's folder: in one process, in other chunks, in real workers."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started: list[bytes] = []

    def go(name: str, rounds: int, chunk: int = 2, jobs: int = 1) -> Any:
        options = TrainOptions(
            chunk, keep=tuple(range(1, rounds + 1)), resume=rounds > 1, secret=True,
            on_round=lambda _: started.extend(command_lines()),
            parallel=Processes(jobs, 1, tmp_path) if jobs > 1 else None,
        )  # fmt: skip
        settings = train_settings(**TINY | {"rounds": rounds, "defense": "fed_cdp"})
        train(settings, tmp_path, TrainFolder(tmp_path / name), options)
        return content(tmp_path / name)

    go("first", 1)
    for name in ("alone", "chunks", "workers"):
        shutil.copytree(tmp_path / "first", tmp_path / name)
    alone = go("alone", 2)
    assert go("chunks", 2, chunk=3) == alone and go("workers", 2, jobs=2) == alone
    assert any(b"loky" in line for line in started)
    assert go("another", 1)[2]["weights"] != go("yet another", 1)[2]["weights"]
    secret = (tmp_path / "first" / "noise.key").read_text()
    (tmp_path / "said").write_text("".join(capfd.readouterr()) + caplog.text)
    (tmp_path / "started").write_bytes(b"\0".join(started))
    forms = secret.encode(), bytes.fromhex(secret), str(int(secret, 16)).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    holders = {path for path in files if any(form in path.read_bytes() for form in forms)}
    assert holders == {tmp_path / name / "noise.key" for name in ("first", "alone", "chunks", "workers")}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in holders)


def test_memory_stays_flat(tmp_path: Path, backwards: type[Backwards]) -> None:
    run(tmp_path, 2, clients_per_round=12)
    assert backwards.most_under_way == 3


FAULTS = {
    "lost": (BrokenProcessPool(), "a worker was lost; its clients are trained again, 2 at a time"),
    "no memory": (MemoryError("of a test"), "a worker lacks memory (MemoryError: of a test); its clients are trained"),
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.values(), ids=FAULTS)
def test_what_was_lost_is_trained_again_by_fewer(
    fault: Exception, said: str, tmp_path: Path, backwards: type[Backwards], caplog: pytest.LogCaptureFixture
) -> None:
    alone = run(tmp_path / "alone", 1)
    backwards.faults += [fault] * 5  # the first three chunks, and those in their place
    assert run(tmp_path / "4", 4) == alone
    assert backwards.begun == [4, 2, 1] and said in caplog.text
    backwards.faults += [fault] * 100
    with pytest.raises(UsageError, match="4 times; lower --jobs or --chunk, and go on with --resume"):
        run(tmp_path / "never", 4)


def test_a_fault_of_another_kind_is_told_at_once(
    tmp_path: Path, backwards: type[Backwards], monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards.faults += [ValueError("of a test")]
    with pytest.raises(ValueError, match="of a test"):
        run(tmp_path, 2)
    monkeypatch.setattr(processes.Clients, "sources", {}, raising=False)
    monkeypatch.setattr("harness.training.clients.own_sources", lambda *_: {"model_source": str(len(processes._own))})
    processes._own.clear()
    with pytest.raises(UsageError, match="was changed while the run began"):
        run(tmp_path, 2)


def test_no_more_processes_than_chunks(harness: Callable[..., Any]) -> None:
    line = ("--clients", "3", "--clients-per-round", "3", "--rounds", "1", "--local-steps", "2", "--batch-size", "3")
    done = harness("train", "--dataset", "cancer", "--split", "iid", *line, "--jobs", "3")
    said = "a round's 3 clients, 25 at a time, keep 1 of 3 --jobs busy; lower --chunk"
    assert (done.code, done.err) == (0, f"{said}\n")


@pytest.mark.slow
def test_a_killed_worker_is_not_missed(
    harness: Callable[..., Any], dying: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = [
        "train", "--dataset", "digits", "--model", dying, "--defense", "pruning", "--defense-arg",
        "error_feedback=true", "--clients", "12", "--clients-per-round", "8", "--rounds", "2", "--local-steps", "2",
        "--split", "iid", "--chunk", "2", "--threads", "1", "--seed", "0",
    ]  # fmt: skip
    assert harness(*line, "--jobs", "2", "--out", "two").code == 0
    assert "a worker was lost" in caplog.text and "1 at a time" in caplog.text
    assert harness(*line, "--jobs", "1", "--out", "one").code == 0
    assert content(Path("two")) == content(Path("one"))
