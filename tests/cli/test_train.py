"""``harness train`` from the command line to its files, and an attack on the model it kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("coarse_losses")

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


@pytest.mark.parametrize(
    ("split", "held"),
    [
        ("shards", 150),
        ("iid", 425),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("dirichlet", 155), ("similarity", 155), ("sorted", 40))
        ),
    ],
)
def test_clients_hold_what_the_data_can_give_where_nobody_said_how_much(
    harness: Harness, split: str, held: int
) -> None:
    """A hundred steps of five would be more than the table has rows; the smallest class has 159."""
    line = ("train", "--dataset", "cancer", "--clients", "10", "--clients-per-round", "2", "--rounds", "1", "--json")
    finished = harness(*line, "--split", split)
    document = json.loads(finished.out)
    assert document["settings"]["examples"] == held
    assert finished.err == (
        f"{held} examples per client, the most that {split} clients of cancer hold without repeats: 100 local steps "
        "pass over them several times\n"
    )
    assert harness(*line, "--split", split, "--examples", "500").code == 2


def test_a_delta_that_protects_nobody_is_said(harness: Harness) -> None:
    digits = ["digits" if word == "cancer" else word for word in TINY]
    line = (*digits, "--model", "mlp2", "--rounds", "1", "--defense", "fed_cdp", "--delta")
    said = " ".join(harness(*line, "0.0007").out.split())
    assert "warning: delta 0.0007 is at least one over the 1437 examples" in said
    assert "warning" not in harness(*line, "0.00069").out


def test_the_table_and_going_on(harness: Harness) -> None:
    first = harness(*TINY, "--rounds", "2")
    assert first.code == 0 and "accuracy" in first.out and "no clipping, no noise" in first.out
    again = harness(*TINY, "--rounds", "2", "--resume")
    assert again.code == 0 and again.out == first.out
    other = harness(*TINY, "--rounds", "2", "--resume", "--seed", "1")
    assert other.code == 2 and "seed 0 there, 1 here" in other.err and "Traceback" not in other.err


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("--clients-per-round", "11"), "lower --clients-per-round"),
        (("--clients", "0"), "clients"),
        (("--defense", "fed_cdpp"), "did you mean"),
        (("--defense", "fed_cdp", "--defense-arg", "sigma=0", "--target-epsilon", "1"), "no valid epsilon"),
        (("--chunk", "1"), "--chunk must be at least 2"),
        (("--jobs", "0"), "--jobs must be 1 to 1024, not 0"),
        (("--jobs", "100000"), "--jobs must be 1 to 1024"),
        (("--jobs", "2", "--chunk", "2", "--threads", "0"), "--threads must be 1 to"),
        (("--delta", "0"), "delta"),
        (("--split", "shards", "--examples", "11"), "even number"),
        (("--keep-rounds", "last"), "--keep-rounds takes whole numbers"),
        (("--dataset", "nowhere.npz"), "nowhere.npz"),
    ],
)
def test_mistakes(harness: Harness, arguments: tuple[str, ...], fix: str) -> None:
    finished = harness(*TINY, *arguments)
    assert finished.code == 2 and fix in finished.err and len(finished.err.splitlines()) == 1


@pytest.mark.slow
def test_a_kept_model_is_attacked_as_it_was_trained(harness: Harness) -> None:
    made = ("--rounds", "2", "--keep-rounds", "0,2", "--defense", "fed_cdp", "--defense-arg", "sigma=0.25")
    # Not what evaluate takes by default: the statement is about the run, whatever round of it is attacked.
    made += ("--delta", "0.001", "--batch-sampling", "shuffle", "--examples", "8")
    digits = ["digits" if word == "cancer" else word for word in TINY]
    privacy = json.loads(harness(*digits, "--model", "mlp2", *made, "--json").out)["privacy"]
    attack = ("evaluate", "--training", "training", "--attack", "idlg", "--victims", "2", "--surface", "2", "--json")
    finished = harness(*attack, "--round", "0,2", "--attack-arg", "max_iterations=3")
    cells = [cell for cell in json.loads(finished.out)["cells"] if cell["role"] == "cell"]
    assert [cell["round"] for cell in cells] == [0, 2]
    assert len({cell["observation_id"] for cell in cells}) == 2
    for cell in cells:
        assert (cell["dataset"], cell["model"], cell["defense"]) == ("digits", "mlp2", "fed_cdp")
        assert cell["defense_args"]["sigma"] == 0.25 and cell["cohort"]["clients"] == 10
        stated = [one | {"covers": None} for one in cell["privacy"]]  # only a row has a place that is read
        assert stated == privacy and privacy[0]["epsilon"] > 1
    other = harness(*attack, "--defense", "fed_sdp", "--round", "2", "--attack-arg", "max_iterations=3")
    (cell,) = [cell for cell in json.loads(other.out)["cells"] if cell["role"] == "cell"]
    assert cell["defense"] == "fed_sdp"
    assert all("had it been trained under this" in one["notes"] for one in cell["privacy"] if one["epsilon"])
    for extra, fix in (
        (("--round", "1"), "train with --keep-rounds 1"),
        (("--training", "elsewhere"), "no training run in 'elsewhere'"),
        (("--weights", "training/models/round_00002.pt"), "choose one"),
    ):
        wrong = harness(*attack, *extra)
        assert wrong.code == 2 and fix in wrong.err and len(wrong.err.splitlines()) == 1
