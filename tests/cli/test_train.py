"""``harness train`` from the command line to its files, and an attack on the model it kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Harness = Callable[..., Any]
TINY = (
    "train", "--dataset", "cancer", "--clients", "10", "--clients-per-round", "4", "--local-steps", "3",
    "--batch-size", "4", "--split", "iid",
)  # fmt: skip


def test_json_is_the_document_and_nothing_else(harness: Harness, tmp_path: Path) -> None:
    finished = harness(*TINY, "--rounds", "2", "--defense", "fed_cdp", "--defense-arg", "sigma=0.5", "--json")
    assert (finished.code, finished.err) == (0, "")
    document = json.loads(finished.out)
    assert document == json.loads((tmp_path / "training" / "training.json").read_text())
    assert [record["round"] for record in document["rounds"]] == [1, 2]
    assert document["rounds"][1]["noise"] == pytest.approx(0.5 * 4 / 4)
    assert (tmp_path / "training" / "curves.png").stat().st_size > 5000


def test_the_table_and_going_on(harness: Harness) -> None:
    first = harness(*TINY, "--rounds", "2")
    assert first.code == 0 and "accuracy" in first.out and "no clipping, no noise" in first.out
    again = harness(*TINY, "--rounds", "2", "--resume")
    assert again.code == 0 and again.out == first.out
    other = harness(*TINY, "--rounds", "2", "--resume", "--seed", "1")
    assert other.code == 2 and "seed 0 there, 1 here" in other.err and "Traceback" not in other.err


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        (("--clients-per-round", "11"), "lower clients_per_round"),
        (("--clients", "0"), "clients"),
        (("--defense", "fed_cdpp"), "did you mean"),
        (("--defense", "fed_cdp", "--defense-arg", "sigma=0", "--target-epsilon", "1"), "no valid epsilon"),
        (("--chunk", "1"), "--chunk must be at least 2"),
        (("--delta", "0"), "delta"),
        (("--split", "shards", "--examples", "11"), "even number"),
        (("--keep-rounds", "last"), "--keep-rounds takes whole numbers"),
        (("--dataset", "nowhere.npz"), "nowhere.npz"),
    ],
)
def test_mistakes(harness: Harness, arguments: tuple[str, ...], mend: str) -> None:
    finished = harness(*TINY, *arguments)
    assert finished.code == 2 and mend in finished.err and len(finished.err.splitlines()) == 1
