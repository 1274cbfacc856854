"""A model fitted to the private data has no valid epsilon, in training and in an evaluation, and is kept whole."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import run

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
