"""``harness account`` for sums of clients and for Skellam noise."""

import json
from collections.abc import Callable

import pytest

FASHION = ("account", "--sigma", "0.43265", "--sampling-rate", str(128 / 5600), "--steps", "20", "--clients", "10")
PAPER = ("--accountant", "rdp", "--conversion", "mironov", "--json")


def epsilon(finished: object) -> float:
    assert (finished.code, finished.err) == (0, "")
    return json.loads(finished.out)["rows"][0]["epsilon"]


def test_clients_share_the_noise(harness: Callable) -> None:
    gaussian = epsilon(harness(*FASHION, *PAPER))
    skellam = epsilon(harness(*FASHION, *PAPER, "--mechanism", "skellam", "--orders", "dense"))
    assert gaussian == pytest.approx(1.0, abs=2e-3)  # the paper's orders have a gap that 2 to 255 have not
    assert skellam == pytest.approx(1.0, abs=2e-3)
    assert epsilon(harness(*FASHION[:-2], *PAPER)) > 10


def test_skellam_is_for_renyi_curves(harness: Callable) -> None:
    finished = harness(*FASHION, "--mechanism", "skellam", "--json")
    assert {row["accountant"] for row in json.loads(finished.out)["rows"]} == {"rdp"}
    table = harness(*FASHION)
    assert "sum of 10 clients" in table.out
    found = json.loads(harness(*FASHION, "--json").out)["settings"]
    assert (found["clients"], found["mechanism"]) == (10, "gaussian")
    assert found["effective_sigma_per_sigma"] == pytest.approx(10**0.5)


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        (("--mechanism", "laplace"), "choose gaussian, skellam"), (("--clients", "0"), "at least 1"),
        (("--mechanism", "skellam", "--layers", "3"), "leave --layers"),
        (("--mechanism", "skellam", "--bits", "1"), "--bits 32"),
        (("--mechanism", "skellam", "--accountant", "pld"), "choose --accountant rdp"),
    ],
)  # fmt: skip
def test_mistakes(harness: Callable, options: tuple[str, ...], fix: str) -> None:
    finished = harness("account", "--sigma", "1", "--sampling-rate", "0.1", "--steps", "5", *options)
    assert finished.code == 2
    assert fix in finished.err
    assert len(finished.err.strip().splitlines()) == 1
