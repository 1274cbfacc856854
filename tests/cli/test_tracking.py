"""Results as runs of MLflow, in a file of this machine and with a server that does not answer."""

import importlib.util
import json
import logging
import os
import shutil
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harness
from federation_cases import Client
from harness.base.errors import UsageError
from harness.capture import captured
from harness.models.networks import build_module
from harness.testing import digits
from harness.tracking import require_tracker, track

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]
HERE = all(importlib.util.find_spec(name) for name in ("mlflow", "sqlalchemy", "alembic"))
needs_mlflow = pytest.mark.skipif(not HERE, reason="mlflow is not installed; pip install '.[mlflow]'")
EVALUATE = (
    "evaluate --defense none,fed_cdp --dataset digits --model mlp --victims 2 --surface 2 --attack-arg max_iterations=1"
)
TRAIN = "train --defense fed_cdp --dataset digits --model mlp --clients 2 --clients-per-round 2 --batch-size 2"


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its tables, which take seconds to make, and no runs."""
    file = tmp_path_factory.mktemp("store") / "ml.db"
    with warnings.catch_warnings(action="ignore"):
        from mlflow import MlflowClient

        MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def store(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A client of the store that the run wrote to."""
    shutil.copy(empty, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/ml.db")

    def client() -> Any:
        from mlflow import MlflowClient

        return MlflowClient(os.environ["MLFLOW_TRACKING_URI"])

    return client


def runs_of(client: Any) -> list[Any]:
    known = client.get_experiment_by_name("harness")
    return list(client.search_runs([known.experiment_id]))


@needs_mlflow
@pytest.mark.filterwarnings("ignore")  # of MLflow's libraries
def test_an_evaluation_is_a_run_with_one_for_each_attack(harness: Harness, store: Callable[[], Any]) -> None:
    finished = harness(*EVALUATE.split(), "--track", "mlflow", "--out", "digits")
    assert finished.code == 0 and "mlflow" not in finished.err
    client = store()
    found = {run.info.run_name: run for run in runs_of(client)}
    assert list(sorted(found)) == ["digits", "fed_cdp / cpl / T2.step", "none / cpl / T2.step"]
    whole, part = found["digits"], found["fed_cdp / cpl / T2.step"]
    assert part.data.tags["mlflow.parentRunId"] == whole.info.run_id and whole.info.status == "FINISHED"
    (row,) = [one for one in outcome("digits").rows if one["defense"] == "fed_cdp"]
    assert part.data.params["defense"] == "fed_cdp" and part.data.params["victims"] == "2"
    assert part.data.tags["harness.verdict"] == row["verdict"] and part.data.metrics["success"] == row["success"]
    assert part.data.metrics["epsilon"] == row["epsilon"]
    (file,) = client.list_artifacts(whole.info.run_id)
    assert file.path == "results.json" and file.file_size > 1000


def outcome(folder: str) -> Any:
    return harness.load(folder)


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_training_has_its_rounds(harness: Harness, store: Callable[[], Any]) -> None:
    line = f"{TRAIN} --local-steps 1 --rounds 2 --learning-rate 0.1 --track mlflow --out trained --json"
    finished = harness(*line.split())
    assert finished.code == 0
    client = store()
    (run,) = runs_of(client)
    assert run.info.run_name == "trained" and run.data.params["learning_rate"] == "0.1"
    assert [one.step for one in client.get_metric_history(run.info.run_id, "accuracy")] == [1, 2]
    assert "learning_rate" not in run.data.metrics


def capture(folder: Path, count: int, truth: bool) -> list[str]:
    """Folders of so many clients who each took a step on one digit."""
    network, client = build_module("mlp", (1, 8, 8), 10, seed=0), Client()
    start = {name: value.clone() for name, value in network.state_dict().items()}
    images, labels = digits(count, 1)
    for number in range(count):
        network.load_state_dict(start)
        facts = {"model": "mlp", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.05, "batch_size": 1}
        with captured(network, folder / str(number), **facts) as made:  # type: ignore[arg-type]
            client.train(network, images[number], labels[number], 0.05, number)
            if truth:
                made.batch(images[number], labels[number])
    return [str(folder / str(number)) for number in range(count)]


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_judgement_of_captures_with_their_truth_has_attacks_below(
    harness: Harness, store: Callable[[], Any], tmp_path: Path
) -> None:
    folders = capture(tmp_path / "sent", 2, truth=True)
    line = ["judge", *folders, "--prior", "digits", "--attack", "cpl", "--out", "mine", "--track", "mlflow"]
    finished = harness(*line)
    assert finished.code == 0, finished.err
    found = {run.info.run_name: run for run in runs_of(store())}
    whole, part = found["mine"], found["none / cpl / T1.out"]
    record = json.loads(Path("mine", "judged.json").read_bytes())
    assert whole.data.params["captures"] == "2" and whole.data.params["model"] == "mlp"
    assert whole.data.tags["harness.verdict"] == record["results"]["summary"][0]["verdict"]
    (row,) = [one for one in outcome("mine").rows if one["attack"] == "cpl"]
    assert part.data.metrics["success"] == row["success"] and part.data.tags["harness.verdict"] == row["verdict"]
    assert part.data.tags["mlflow.parentRunId"] == whole.info.run_id
    (file,) = store().list_artifacts(whole.info.run_id)
    assert file.path == "judged.json" and whole.info.status == "FINISHED"


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_judgement_without_a_truth_has_its_estimates_and_checks(
    harness: Harness, store: Callable[[], Any], tmp_path: Path
) -> None:
    folders = capture(tmp_path / "sent", 2, truth=False)
    line = ["judge", *folders, "--prior", "digits", "--attack", "cpl", "--out", "mine", "--track", "mlflow"]
    assert harness(*line).code == 0
    found = {run.info.run_name: run for run in runs_of(store())}
    record = json.loads(Path("mine", "judged.json").read_bytes())
    (made,) = record["estimates"]
    shares = found["cpl (an estimate)"].data.metrics
    assert sum(shares.values()) == 1 and len(shares) == len(set(made["estimates"]))
    assert "harness.verdict" not in found["mine"].data.tags  # no truth, no verdict
    told = [value for key, value in found["mine"].data.tags.items() if key.startswith("harness.check.")]
    assert sorted(told) == sorted(one["outcome"] for one in record["checks"])
    for option in ("--plan", "--checks-only"):
        refused = harness(*line, option)
        assert refused.code == 2 and f"{option} leaves no results to track; drop --track" in refused.err


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_frontier_has_a_run_for_each_level(harness: Harness, store: Callable[[], Any]) -> None:
    line = (
        "frontier --dataset cancer --defense fed_cdp --sigma 1 --victims 4 --attack analytic --clients 4 "
        "--clients-per-round 4 --rounds 1 --local-steps 1 --batch-size 4 --out swept --track mlflow"
    )
    assert harness(*line.split()).code == 0
    found = {run.info.run_name: run for run in runs_of(store())}
    document = json.loads(Path("swept", "frontier.json").read_bytes())
    assert len(found) == 1 + len(document["points"])
    whole = found["swept"]
    assert whole.data.tags["harness.answer.1"] == document["answers"][0]
    (point,) = [one for one in document["points"] if one["level"] == 1]
    part = next(run for name, run in found.items() if name.startswith("fed_cdp sigma 1 / cancer / "))
    assert part.data.metrics["accuracy"] == point["accuracy"] and part.data.metrics["level"] == 1
    assert part.data.tags["harness.verdict"] == point["verdict"]
    assert part.data.tags["mlflow.parentRunId"] == whole.info.run_id


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_server_that_does_not_answer_costs_a_warning(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:  # nobody listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        finished = harness(*EVALUATE.split(), "--track", "mlflow", "--out", "digits")
    assert finished.code == 0 and "fed_cdp" in finished.out
    (said,) = [one for one in caplog.records if one.name == "harness.tracking"]
    assert said.levelno == logging.WARNING and "tracking by mlflow failed" in said.getMessage()
    assert "\n" not in said.getMessage() and outcome("digits").cells


def test_what_lacks_is_told_before_anything_runs(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="unknown tracker 'wandb'; choose mlflow"):
        require_tracker("wandb")
    assert "unknown tracker" in harness(*EVALUATE.split(), "--track", "wandb").err
    monkeypatch.setattr("harness.tracking.importlib.util.find_spec", lambda name: None)
    finished = harness(*EVALUATE.split(), "--track", "mlflow")
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert "tracking needs mlflow; pip install 'gradient-leakage-harness[mlflow]'" in finished.err
    assert not Path("runs").exists()
    with pytest.raises(UsageError, match="tracking needs mlflow"):
        track(None)  # type: ignore[arg-type]


@needs_mlflow
def test_a_shard_is_not_tracked(harness: Harness) -> None:
    finished = harness(*EVALUATE.split(), "--shard", "1/2", "--track", "mlflow")
    assert finished.code == 2 and "--track needs a whole run" in finished.err
