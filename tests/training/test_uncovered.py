"""A model fitted to the private data has no valid epsilon, in training and in an evaluation, and is kept whole."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import run
from harness.datasets import load_dataset

SMALL = [
    "--dataset", "digits", "--defense", "fed_cdp", "--clients", "4", "--clients-per-round", "4", "--split", "iid",
    "--local-steps", "1", "--batch-size", "8", "--examples", "16", "--batch-sampling", "poisson", "--rounds", "2",
]  # fmt: skip

Command = Callable[..., Any]


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Any:
        capsys.readouterr()
        assert run([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return command


def test_no_epsilon_is_valid_but_the_claim_stays(document: Command) -> None:
    covered = document("train", *SMALL, "--model", "mlp2", "--out", "covered")
    fitted = document("train", *SMALL, "--model", "pca_mlp", "--out", "fitted", "--keep-rounds", "0,2")
    valid = {row["view"]: row for row in covered["privacy"] if row["epsilon"] is not None}
    assert valid
    for row in fitted["privacy"]:
        assert row["epsilon"] is None and row["guarantee"] == "none"
        if row["view"] in valid:
            assert row["claimed_epsilon"] == valid[row["view"]]["claimed_epsilon"] is not None
            assert "principal components" in row["notes"]
    attacked = document(
        "evaluate", "--training", "fitted", "--round", "2", "--victims", "2", "--surface", "2", "--no-pictures",
        "--attack-arg", "max_iterations=2", "--out", "attacked",
    )  # fmt: skip
    rows = [row for cell in attacked["cells"] for row in cell["privacy"]]
    assert rows and all(row["epsilon"] is None for row in rows)
    assert any("principal components" in row["notes"] for row in rows)


REPEATS = [
    *SMALL[: SMALL.index("--split")], "--model", "mlp2", "--split", "similarity", "--level", "0", "--examples", "200",
]  # fmt: skip


@pytest.mark.parametrize(("defense", "covered"), [("fed_cdp", False), ("global_dp", True)])
def test_an_example_held_twice_is_covered_as_part_of_a_client_only(
    document: Command, defense: str, covered: bool
) -> None:
    made = document("train", *REPEATS, "--defense", defense, "--rounds", "1")
    stated = {row["view"]: row for row in made["privacy"]}["third party"]
    assert (stated["epsilon"] is not None) == covered
    assert ("holds an example up to 2 times" in stated["notes"]) != covered


def test_there_is_no_valid_epsilon_to_stop_at_where_examples_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", *REPEATS, "--target-epsilon", "500"]) == 2
    assert "fed_cdp has no valid epsilon to stop at; use --budget claimed" in capfd.readouterr().err


@pytest.mark.parametrize("budget", ["valid", "claimed"])
def test_a_budget_that_there_is_not_is_not_advised(
    budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each was advised in the place of the other. Results that stand in the folder are not said to be replaced."""
    monkeypatch.chdir(tmp_path)
    Path("training").mkdir()
    Path("training/training.json").write_text('{"schema_version":1,"kind":"training"}')
    line = ["train", *REPEATS, "--defense", "none", "--target-epsilon", "5", "--budget", budget]
    assert run(line) == 2
    fix = "use a defense that adds noise, such as fed_cdp, or drop --target-epsilon"
    assert capfd.readouterr().err == f"harness: none has no {budget} epsilon to stop at; {fix}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["train", *SMALL, "--target-epsilon", "5"], "no valid epsilon to stop at: model pca_mlp.*--budget claimed"),
        (["train", *SMALL, "--bayesian"], "Bayesian accounting would not cover this run"),
        (
            ["audit", "--dataset", "digits", "--defense", "fed_cdp"],
            "fitted to training data, which is not done here; use another one",
        ),
    ],
)
def test_what_would_need_one_is_refused(
    line: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*line, "--model", "pca_mlp"]) == 2
    error = capfd.readouterr().err
    assert len([text for text in error.splitlines() if text.startswith("harness:")]) == 1
    assert re.search(message, error)


def test_scales_of_private_data_are_not_covered_by_bayesian_epsilons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--clients 4 --clients-per-round 4 --local-steps 1 --batch-size 2 --rounds 1 --split iid"
    assert run(f"train --dataset cancer --defense global_dp --bayesian {small} --out {tmp_path}".split()) == 2
    assert "scaled by the smallest and largest values" in capsys.readouterr().err


@pytest.mark.parametrize(("dataset", "model"), [
    ("cancer", "mlp2"), pytest.param("digits", "mlp2", marks=pytest.mark.slow),
    pytest.param("logistic-0-0", "logistic", marks=pytest.mark.slow),
])  # fmt: skip
def test_nor_is_one_valid_where_the_data_were_scaled_by_what_they_hold(
    document: Command, dataset: str, model: str
) -> None:
    line = [*SMALL[2:], "--dataset", dataset, "--model", model, "--rounds", "1"]
    trained = document("train", *line, "--keep-rounds", "0")
    attacked = document(
        "evaluate", "--dataset", dataset, "--model", model, "--defense", "fed_cdp", "--victims", "2", "--surface", "2",
        "--no-pictures", "--attack", "cpl", "--attack-arg", "max_iterations=2", "--out", "attacked",
    )  # fmt: skip
    rows = [*trained["privacy"], *attacked["cells"][0]["privacy"]]
    scaled = ["is scaled by" in row["notes"] and "computed without noise" in row["notes"] for row in rows]
    assert scaled == [dataset != "digits"] * len(rows)
    assert [row["epsilon"] is None for row in rows] == scaled
    assert all(row["claimed_epsilon"] is not None for row in rows)


def test_which_data_are_scaled_by_what_they_hold(tmp_path: Path) -> None:
    bundled = ["cifar10-sample", "digits", "mnist-sample", "cancer", "logistic-1-1"]
    assert [name for name in bundled if load_dataset(name, tmp_path).uncovered] == ["cancer", "logistic-1-1"]
