"""The accuracy at full scale: one rule for every row, what is kept on the way, shards, and runs of earlier versions."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.evaluation import Run
from harness.papers import TABLES, UNDEALT, Request
from harness.papers import accuracy as settings_of_tables
from harness.papers import full_accuracy as module
from harness.papers.full_accuracy import BOUNDED, LADDER, Cell, FullRuns, Standing, averaged_noise
from harness.parallel.units import Shard
from harness.results import RunFolder, Statement
from harness.study import runner as trained
from harness.study.runner import ShardDone
from harness.training import (
    DivergedError,
    RoundRecord,
    TrainDocument,
    TrainFolder,
    TrainSettings,
    read_training,
    train_settings,
)
from harness.training.rounds import Training

Row = dict[str, Any]
KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-24-full-accuracy" / "trained"


def request_for(folder: Path, quick: bool = False, resume: bool = False, seeds: tuple[int, ...] = (0,)) -> Request:
    return Request(Run(folder, RunFolder(folder), resume=resume), folder, quick=quick, seeds=seeds)


def rows_of(folder: Path) -> dict[tuple[str, str], Row]:
    kept = json.loads((folder / "full-accuracy.json").read_text())
    return {(row["data"], row["method"]): row for row in kept["rows"]}


def by_noise(settings: TrainSettings) -> float:
    """What a run is made to reach: 0.97 without noise, 0.93 up to sigma 0.3, and less beyond."""
    sigma = settings.defense_args.get("sigma", 0.0 if settings.defense == "none" else 6.0)
    if settings.defense == "adaclip" and sigma == 0:
        return 0.1
    if settings.defense == "quantile" and sigma:
        return 0.6
    if settings.defense == "fed_acdp" and "policy" not in settings.defense_args:
        return 0.97
    return 0.97 if not sigma else 0.93 if sigma <= 0.3 else 0.5


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[TrainSettings]:
    """Runs that take no time, in the order they are asked for; Fed-SDP diverges under the printed noise."""
    asked: list[TrainSettings] = []

    def train(settings: TrainSettings, root: Path, folder: TrainFolder, options: object) -> TrainDocument:
        asked.append(settings)
        if settings.defense == "fed_sdp" and not settings.defense_args:
            raise DivergedError("weights hold NaN")
        accuracy = by_noise(settings)
        document = TrainDocument(
            environment={}, settings=settings.model_dump(mode="json"), units="", parameters=1, train_examples=1,
            test_examples=1, overlap=1, weights={}, seconds=1, accuracy=accuracy, privacy=[
                Statement(view="server", guarantee="sample-DP", notes="", epsilon=9.5, unit="example"),
                Statement(view="third party", guarantee="sample-DP", notes="", epsilon=2.5, unit="example"),
            ],
            rounds=[RoundRecord(round=number + 1, accuracy=accuracy, participants=1, seconds=60, update_norm=0.5,
                                noise=0.1) for number in range(settings.rounds)],
        )  # fmt: skip
        folder.write(document)
        return document

    monkeypatch.setattr(trained, "train", train)
    monkeypatch.setattr(module, "chance_level", lambda *_: 0.2)
    monkeypatch.setattr(module, "DATASETS", ("cancer", "lfw"))
    return asked


def test_the_same_rule_for_every_row(tmp_path: Path, trainings: list[TrainSettings]) -> None:
    made = TABLES["full-accuracy"](request_for(tmp_path))
    rows = rows_of(tmp_path)
    assert list(rows.values()) == made.rows
    assert {row["verdict"] for (data, _), row in rows.items() if data == "lfw"} == {"not at hand"}

    def cells(method: str) -> list[str]:
        return [rows["cancer", method][name] for name in ("as printed", "noise ×0", "learns at", "accuracy", "verdict")]

    assert cells("non-private") == ["0.970", "", "", "", "agrees"]
    assert cells("Fed-SDP") == ["0.000 (1 diverged)", "0.970", "σ=0.3", "0.930", "without noise"]
    assert cells("Fed-CDP") == ["0.500", "0.970", "σ=0.3", "0.930", "without noise"]
    assert cells("Fed-αCDP") == ["0.970", "0.970", "as printed", "0.970", "agrees"]
    assert cells("Fed-αCDP[σ]") == ["0.500", "0.970", "σ=0.3", "0.930", "without noise"]
    assert cells("Quantile") == ["0.600", "0.970", "none to 0.003", "", "without noise"]
    assert cells("AdaClip") == ["0.500", "0.100 chance", "not even ×0", "", "differs"]
    assert rows["cancer", "Fed-CDP"]["proven ε"] == "2.5 (example, third party)"
    tried = [one.defense_args["sigma"] for one in trainings if (one.dataset, one.defense) == ("cancer", "fed_cdp")
             and one.defense_args]  # fmt: skip
    assert tried == [0.0, 0.1, 1.0, 0.3, 0.5]  # by halves, then the released scripts' noise
    assert len(trainings) == len({one.model_dump_json() for one in trainings})


def test_the_schedule_that_starts_lower_keeps_its_shape() -> None:
    name, changes = Cell("cancer", "Fed-αCDP[σ]", 3.0).trained()
    settings = train_settings(
        defense="fed_acdp", defense_args=settings_of_tables.METHODS[name][1] | changes, rounds=10
    )  # fmt: skip
    sigmas = [settings.build_defense().operations(settings.cohort())[-1].decay.sigma(number) for number in (0, 9)]
    assert sigmas == pytest.approx([3.0, 0.97])
    assert list(LADDER) == sorted(LADDER, reverse=True)


def test_seeds_are_averaged(tmp_path: Path, trainings: list[TrainSettings]) -> None:
    runs = FullRuns(request_for(tmp_path, seeds=(0, 1)))
    runs.make(cell := Cell("cancer", "Fed-CDP", 0.0))
    assert [one.seed for one in trainings] == [0, 1] and str(runs.measured(cell)) == "0.970 ± 0.000"


def stop_after(count: int, trainings: list[TrainSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    made: Callable[..., TrainDocument] = trained.train

    def train(*given: Any) -> TrainDocument:
        if len(trainings) == count:
            raise KeyboardInterrupt
        return made(*given)

    monkeypatch.setattr(trained, "train", train)


@pytest.mark.slow
def test_what_is_made_is_kept_and_the_rest_is_named(
    tmp_path: Path, trainings: list[TrainSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DATASETS", ("cancer", "mnist"))
    monkeypatch.setattr(module, "METHODS", ("non-private", "Fed-SDP", "Fed-CDP", "AdaClip"))
    with monkeypatch.context() as stopping:
        stop_after(4, trainings, stopping)
        with pytest.raises(KeyboardInterrupt):
            TABLES["full-accuracy"](request_for(tmp_path))
    rows, text = rows_of(tmp_path), (tmp_path / "full-accuracy.txt").read_text()
    assert rows["cancer", "Fed-SDP"]["noise ×0"] == "0.970" and rows["cancer", "Fed-CDP"]["verdict"] == "-"
    assert rows["cancer", "AdaClip"]["as printed"] == "not run"
    assert "cancer, Fed-SDP, as printed: diverged after 0 rounds\n" in text
    assert "cancer, AdaClip, as printed: after 0 of 3 rounds\n" in text
    TABLES["full-accuracy"](request_for(tmp_path, resume=True))
    again = trainings[4:]
    order = [one.dataset for one in again]
    assert order == sorted(order, key=["cancer", "mnist-sample"].index)
    assert [one for one in again if one in trainings[:4]] == [trainings[1]]  # which diverged, and left nothing behind
    assert rows_of(tmp_path)["mnist", "Fed-CDP"]["verdict"] == "without noise"


@pytest.mark.slow
def test_shards_divide_the_rows_and_together_are_the_table(tmp_path: Path, trainings: list[TrainSettings]) -> None:
    assert "full-accuracy" not in UNDEALT
    whole = TABLES["full-accuracy"](request_for(tmp_path / "whole"))
    alone = list(trainings)
    trainings.clear()
    for index in (1, 2):
        with pytest.raises(ShardDone):
            TABLES["full-accuracy"](replace(request_for(tmp_path / "parts", resume=True), shard=Shard(index, 2)))
        assert index == 2 or 0 < len(trainings) < len(alone)
    assert not (tmp_path / "parts" / "full-accuracy.txt").exists()
    assert {one.model_dump_json() for one in trainings} == {one.model_dump_json() for one in alone}
    trainings.clear()
    together = TABLES["full-accuracy"](request_for(tmp_path / "parts", resume=True))
    assert together.rows == whole.rows
    assert all(one.defense == "fed_sdp" for one in trainings)  # which diverged, and left nothing behind


def test_runs_of_an_earlier_version_are_taken_over(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "trained")
    runs = FullRuns(request_for(tmp_path, resume=True))
    for cell in (Cell("cancer", "Fed-CDP"), Cell("cancer", "Fed-CDP", 0.0)):
        (found,) = runs.standings(cell)
        assert found.over and found.document is not None
        assert found.accuracy == read_training(KEPT / runs.folder(found.settings).name).accuracy


@pytest.mark.parametrize(("defense", "steps"), [("fed_sdp", 3), ("fed_cdp", 1), ("fed_cdp", 4)])
def test_the_noise_in_an_average_is_as_long_as_was_computed(defense: str, steps: int, tmp_path: Path) -> None:
    """Of two runs that differ in their noise only, so do the weights after a round."""
    made: dict[float, tuple[Training, dict[str, float]]] = {}
    for sigma in (0.0, 6.0):
        settings = train_settings(
            dataset="cancer", split="iid", clients=4, clients_per_round=3, rounds=1, local_steps=steps, batch_size=4,
            defense=defense, defense_args={"sigma": sigma},
        )  # fmt: skip
        run = Training(settings, tmp_path)
        made[sigma] = run, run.play_round(0, 25)[0]
    (silent, _), (noisy, means) = made.values()
    record = RoundRecord(round=1, participants=3, seconds=0, **means)
    expected = averaged_noise(Standing(noisy.settings, [record], None, False), len(noisy.weights))
    assert float((noisy.weights - silent.weights).norm()) == pytest.approx(expected, rel=0.03)


def test_what_is_not_run_at_the_released_noise_says_so() -> None:
    bounded = [(cell.name, cell.paper, cell.trained()[1]) for cell in BOUNDED]
    assert bounded == [
        (f"Fed-SDP, C={clip:g}", paper, {"sigma": 0.5, "clip": clip})
        for clip, paper in ((8.0, 0.911), (16.0, 0.656), (32.0, 0.214))
    ]
