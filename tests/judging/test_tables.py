"""Captured rows of a table: what their features mean, and that judge then reports what evaluate reports."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.attacks import ATTACKS, run_attack
from harness.base.building import build
from harness.base.columns import Columns, Group, TableColumns
from harness.base.errors import UsageError
from harness.base.kinds import IMAGES, ROWS
from harness.capture import CaptureRecord, write_capture
from harness.cli import run
from harness.datasets import Dataset, load_dataset
from harness.evaluation.measure import measure, scale_of
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings
from harness.judging.capture import read_capture
from harness.judging.declared import cells_of
from harness.judging.federation import gathered
from harness.judging.stage import CapturedStage
from harness.models.networks import build_module

VICTIMS, BATCH = 2, 4
COLUMNS = Columns(("a", "b"), (Group("g", tuple("uvwxy")), Group("h", tuple("uvwx"), optional=True)))
FACT = TableColumns.of(COLUMNS)
SHAPE = (1, 1, COLUMNS.width)
FACTS: dict[str, Any] = {
    "model": "mlp2", "image_shape": SHAPE, "classes": 2, "learning_rate": 0.1, "batch_size": BATCH,
}  # fmt: skip
SETTINGS = cell_settings(
    dataset="cancer", model="mlp2", victims=VICTIMS, batch_size=BATCH, learning_rate=0.1, attack="rows",
    attack_args={"draws": 200}, tap="T1.out",
)  # fmt: skip


def table(count: int, seed: int = 0) -> Dataset:
    """Random rows."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(count, COLUMNS.width, generator=random)
    rows[:, 0] /= 3
    images = COLUMNS.project(rows)[:, None, None]
    return Dataset("cancer", images, torch.arange(count) % 2, ("0", "1"), "", COLUMNS)


class OfTable(Stage):
    """Simulates clients that hold rows of the table."""

    def dataset(self, name: str, model: str | None = None) -> Dataset:
        return table(60)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return OfTable(tmp_path, 64).set(SETTINGS)


def captures(scene: Scene, folder: Path, columns: TableColumns | None) -> list[Path]:
    """What the clients of a scene would have written."""
    seen, found, model = scene.observation, list[Path](), scene.observation.model
    record = CaptureRecord(columns=columns, **FACTS | {"model": model.name})
    for row in range(VICTIMS):
        before, sent = model.state(seen.weights[row]), model.state(seen.target[row])
        images, labels = scene.truth.images[row].numpy(), scene.truth.labels[row].numpy()
        found.append(write_capture(folder / str(row), record, before, images=images, labels=labels, gradient=sent))
    return found


def judged(folders: list[Path], root: Path) -> Scene:
    clients = gathered([read_capture(one) for one in folders])
    (cell,) = cells_of(clients, "captures", ["rows"], "none", "cpu")
    return CapturedStage(root, 64, clients, cell, None, None).set(cell)


@pytest.mark.parametrize("model", ["mlp2", "ft_transformer"])
def test_judge_reports_what_evaluate_reports(model: str, tmp_path: Path) -> None:
    """The same rows come back of the same client, and every measure of them is the same, to the bit."""
    scene = OfTable(tmp_path, 64).set(SETTINGS.model_copy(update={"model": model}))
    whole = scale_of(scene.dataset)
    theirs = judged(captures(scene, tmp_path, TableColumns.of(COLUMNS, whole.deviations)), tmp_path)
    assert theirs.observation.columns == COLUMNS
    made, measures = [], []
    for one in (scene, theirs):
        found = run_attack(build(ATTACKS, "rows", {"draws": 200}), one.observation).images
        pairs = one.truth.images.flatten(0, 1), found.flatten(0, 1)
        made.append(found)
        measures.append(measure(one.dataset, *pairs, "not asked for"))
    assert torch.equal(*made)
    ours, others = (one.metrics for one in measures)
    assert ours.keys() == others.keys() >= {"categorical_accuracy", "continuous_within"}
    assert all(np.array_equal(values, others[name]) for name, values in ours.items())
    assert np.array_equal(*(one.success["strict"] for one in measures))


def test_without_the_fact_numbers_are_all_that_is_known(scene: Scene, tmp_path: Path) -> None:
    theirs = judged(captures(scene, tmp_path, None), tmp_path)
    assert theirs.observation.columns is None and scale_of(theirs.dataset) is None
    assert (CaptureRecord(**FACTS).kind, CaptureRecord(columns=FACT, **FACTS).kind) == (IMAGES, ROWS)


def test_deviations_that_nobody_says_are_those_of_the_rows(scene: Scene, tmp_path: Path) -> None:
    theirs = judged(captures(scene, tmp_path, FACT), tmp_path)
    own = theirs.dataset.images.double().flatten(1)[:, :2]
    assert torch.allclose(scale_of(theirs.dataset).deviations, own.std(0, correction=0))


def test_the_fact_is_read_as_it_is_written() -> None:
    columns = TableColumns.of(COLUMNS, torch.tensor([0.1, 1 / 3], dtype=torch.float64))
    record = CaptureRecord(columns=columns, **FACTS)
    read = CaptureRecord.model_validate_json(record.model_dump_json())
    assert read == record and read.columns is not None and read.columns.as_columns == COLUMNS
    assert torch.equal(read.columns.scales, torch.tensor([0.1, 1 / 3], dtype=torch.float64))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"numbers": ["a"], "categories": {"g": ["u"]}}, r"are 1 numbers and 1 features of categories, and image_shape is"),
    (FACT.model_dump() | {"missing": ["k"]}, "name 'k' under missing, and no categories of it"),
    (FACT.model_dump() | {"deviations": [0.1]}, "have 2 numbers and 1 deviations; give one of each"),
    (FACT.model_dump() | {"groups": []}, "groups"),
    ({"numbers": ["a"] * 11, "categories": {"g": []}}, "categories"),
    (FACT.model_dump() | {"numbers": ["g", "g"]}, "columns name 'g' twice; give each a name of its own"),
    ({"numbers": ["g"], "categories": {"g": ["u"]}}, "columns name 'g' twice"),
    ({"numbers": ["a"], "categories": {"g": ["u", "v", "u"]}}, "categories of 'g' name 'u' twice"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "said"), WRONG)
def test_a_schema_that_does_not_fit_is_one_line(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, Any], said: str
) -> None:
    folder = captures(scene, tmp_path, FACT)[0]
    file = folder / "capture.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"columns": columns}))
    assert run(["judge", str(folder), "--prior", "none"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and said in told and told.count("; correct ") == 1


OTHER: list[tuple[dict[str, Any], str]] = [
    ({"numbers": ["a", "c"]}, "differ in columns.numbers: 'b' in '.*', 'c' in '.*'; judge them separately"),
    ({"categories": dict(reversed(FACT.categories.items()))}, "differ in columns.categories: 'g' in '.*', 'h' in"),
    ({"missing": []}, "differ in columns.missing: 'h' in '.*', None in"),
]


@pytest.mark.parametrize(("columns", "said"), OTHER)
def test_the_first_column_that_differs_is_named(
    scene: Scene, tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    folders = captures(scene, tmp_path, FACT)
    file = folders[1] / "capture.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"columns": FACT.model_dump() | columns}))
    with pytest.raises(UsageError, match=said) as problem:
        gathered([read_capture(one) for one in folders])
    assert len(str(problem.value)) < 300


def test_texts_have_no_columns() -> None:
    facts = {"format": 2, "data": "text", "vocabulary": 9, "places": 4, "columns": FACT.model_dump()}
    with pytest.raises(ValueError, match="columns are of tables, and the data are texts; take them out"):
        CaptureRecord(**{name: value for name, value in FACTS.items() if name != "image_shape"} | facts)


def test_a_truth_of_other_columns_is_one_line(scene: Scene, tmp_path: Path) -> None:
    truth = scene.truth
    truth.images[1, 2, 0, 0, 3] = 0.5
    folders = captures(replace(scene, truth=truth), tmp_path, FACT)
    with pytest.raises(UsageError, match=r"row 3 is of no category of 'g'; correct columns in capture.json, or the"):
        judged(folders, tmp_path)


PRIORS = {
    "of rows that have no such category": (table(60, 1).images * 0.9, "row 1 is of no category of 'g'"),
    "of another shape": (torch.rand(60, 1, 1, 9), "examples of shape"),
}


@pytest.mark.parametrize(("images", "said"), PRIORS.values(), ids=PRIORS)
def test_a_prior_of_other_columns_is_one_line(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str], images: torch.Tensor, said: str
) -> None:
    np.savez(tmp_path / "own.npz", images=images.numpy(), labels=np.arange(60) % 2)
    folders = captures(scene, tmp_path / "captures", FACT)
    assert run(["judge", *map(str, folders), "--prior", str(tmp_path / "own.npz")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and said in told


def test_a_page_counts_columns(scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "own.npz", images=table(80, 1).images.numpy(), labels=np.arange(80) % 2)
    folders = captures(scene, tmp_path / "captures", FACT)
    asked = ["judge", *map(str, folders), "--prior", str(tmp_path / "own.npz"), "--attack", "rows"]
    assert run([*asked, "--out", str(tmp_path / "out"), "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["results"]["cells"]
    cell = next(one for one in cells if one["role"] == "cell")
    assert cell["metrics"]["categorical_accuracy"]["mean"] == 1 and cell["asr"]["strict"]["rate"] == 1
    assert run(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "table row" in (tmp_path / "page.html").read_text()


def test_distinct_rows_come_back_by_the_rule_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many guesses of a row are within an RMSE of 0.1, which is much in standard deviations of its columns."""
    data = load_dataset("cancer", tmp_path)
    record = CaptureRecord(columns=TableColumns.of(data.columns), **FACTS | {"image_shape": data.image_shape})
    named = list[str]()
    for client, rows in enumerate(torch.arange(VICTIMS * BATCH).split(BATCH)):
        images, labels, network = (
            data.images[rows],
            data.labels[rows],
            build_module("mlp2", data.image_shape, 2, client),
        )
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        before = {name: value.detach().numpy() for name, value in network.named_parameters()}
        sent = {name: value.grad.numpy() for name, value in network.named_parameters() if value.grad is not None}
        folder = write_capture(tmp_path / str(client), record, before, images=images, labels=labels, gradient=sent)
        named.append(str(folder))
    assert run(["judge", *named, "--prior", "cancer", "--attack", "cpl", "--out", str(tmp_path / "o"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (cell,) = [one for one in document["results"]["cells"] if (one["role"], one["attack"]) == ("cell", "cpl")]
    (told,) = document["examples"]
    assert told["back"] == cell["asr"]["strict"]["successes"]
    records = [json.loads(line) for line in (tmp_path / "o" / "victims.jsonl").read_text().splitlines()]
    assert told["back"] < sum(one["rmse"] <= 0.1 for one in records if (one["role"], one["attack"]) == ("cell", "cpl"))


def test_rows_may_be_flat_and_are_on_one_scale(scene: Scene, tmp_path: Path) -> None:
    folders, known = captures(scene, tmp_path, FACT), dict[str, np.ndarray]()
    plain = gathered([read_capture(one) for one in folders])
    for folder in folders:
        with np.load(folder / "truth.npz") as truth:
            known = {"images": truth["images"].reshape(BATCH, -1), "labels": truth["labels"]}
        np.savez(folder / "truth.npz", allow_pickle=False, **known)
    flat = gathered([read_capture(one) for one in folders])
    assert flat.images is not None and plain.images is not None and torch.equal(flat.images, plain.images)
    np.savez(folders[0] / "truth.npz", images=3 * known["images"] - 1, labels=known["labels"])
    with pytest.raises(UsageError, match=r"has numbers from -1 to 2; scale the columns of a table to \[0, 1\]"):
        gathered([read_capture(one) for one in folders])
