"""``harness train --bayesian`` and ``harness account --training``: what is printed, and that nobody takes it for DP."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]
TRAIN = (
    "train", "--dataset", "digits", "--model", "logistic", "--clients", "10", "--clients-per-round", "4",
    "--local-steps", "1", "--batch-size", "10", "--examples", "20", "--split", "iid",
    "--rounds", "2", "--batch-sampling", "poisson", "--defense", "fed_cdp", "--defense-arg", "sigma=2",
)  # fmt: skip


@pytest.fixture
def trained(harness: Harness) -> str:
    return harness(*TRAIN, "--bayesian").out


def test_train_says_what_it_is_not(trained: str) -> None:
    words = " ".join(trained.split())
    assert "BDP is not differential privacy" in words and "protects no outlier" in words
    assert "NOT met by this run, so its moments epsilon is nominal" in words


def test_account_gives_the_runs_own_rows(harness: Harness, trained: str) -> None:
    made = json.loads(harness("account", "--training", "training", "--json").out)["rows"]
    assert made == json.loads(harness(*TRAIN, "--bayesian", "--resume", "--json").out)["bayesian"]
    assert {row["guarantee"] for row in made} == {"BDP"} and len(made) == 6
    looser = json.loads(
        harness("account", "--training", "training", "--delta", "1e-2", "--direction", "L", "--json").out
    )
    assert [row["direction"] for row in looser["rows"]] == ["L"] * 3
    assert all(row["epsilon"] < other["epsilon"] for row, other in zip(looser["rows"], made[1::2], strict=True))


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("--training", "training", "--sigma", "3"), "--sigma does not go with --training"),
        (("--training", "training", "--accountant", "pld"), "--accountant does not go with --training"),
        (("--training", "training", "--direction", "R"), "max, L"),
        (("--training", "training", "--delta", "2"), "delta must lie"),
        (("--training", "elsewhere"), "no training run in 'elsewhere'"),
        (("--sigma", "3", "--steps", "1", "--direction", "L"), "add --training FOLDER"),
    ],
)
def test_mistakes(harness: Harness, trained: str, arguments: tuple[str, ...], fix: str) -> None:
    finished = harness("account", *arguments)
    assert finished.code == 2 and fix in finished.err and len(finished.err.splitlines()) == 1


def test_a_run_without_notes(harness: Harness) -> None:
    assert harness(*TRAIN).code == 0
    finished = harness("account", "--training", "training")
    assert finished.code == 2 and "trained without --bayesian" in finished.err
