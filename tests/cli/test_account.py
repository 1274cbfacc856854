"""``harness account``: answers with their conventions, and mistakes in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MNIST = ("account", "--sigma", "6", "--sampling-rate", "0.01")
FIXED = (*MNIST, "--steps", "10000")


def rows(finished: Any) -> list[dict[str, Any]]:
    assert (finished.code, finished.err) == (0, "")
    return json.loads(finished.out)["rows"]


def test_every_accountant_names_its_convention(harness: Callable) -> None:
    found = rows(harness(*FIXED, "--json"))
    names = [(row["accountant"], row["orders"]) for row in found]
    assert names == [
        ("base", None), ("advanced", None), ("zcdp", None), ("rdp", "paper"), ("rdp", "dense"), ("pld", None),
    ]  # fmt: skip
    values = [row["epsilon"] for row in found]
    assert values == pytest.approx([123.457, 7.458, 1.1588, 0.8227, 0.6592, 0.601], abs=1e-3)
    assert all(row["conversion"] for row in found)
    assert found[0]["delta_total"] == pytest.approx(1e-3)
    assert [row["nominal"] for row in found] == [False, False, True, False, False, False]


def test_the_table(harness: Callable) -> None:
    finished = harness(*FIXED, "--accountant", "rdp,pld", "--layers", "3")
    assert finished.code == 0
    for text in ("mironov, paper orders", "improved, dense orders", "1.4682", "effective sigma = 0.5774 x sigma"):
        assert text in finished.out
    assert "sampler" not in finished.out and "add/remove adjacency" in finished.out  # once, above the table
    assert "total delta" in harness(*FIXED, "--accountant", "base").out


@pytest.mark.parametrize(
    ("given", "shown"),
    [(("--sigma", "1e9", "--sampling-rate", "0.01", "--steps", "10"), ["4.84e-10", "sigma 1e+09, 10 steps;"]),
     (("--sigma", "0.01", "--steps", "1"), ["1.24e+213", "sigma 0.01, 1 step;"])],
    ids=["tiny", "vast"],
)  # fmt: skip
def test_numbers_that_four_decimals_cannot_show(harness: Callable, given: tuple[str, ...], shown: list[str]) -> None:
    finished = harness("account", *given, "--accountant", "base,advanced")
    assert finished.code == 0 and "0.0000" not in finished.out and all(one in finished.out for one in shown)


def test_the_table_says_what_is_nominal(harness: Callable) -> None:
    finished = harness(*FIXED, "--accountant", "zcdp")
    assert "nominal: rho" in finished.out


def test_conventions_as_printed(harness: Callable) -> None:
    options = ("--accountant", "base,advanced", "--e0", "rounded", "--formula", "kov", "--json")
    assert [row["epsilon"] for row in rows(harness(*FIXED, *options))] == pytest.approx([123.354, 6.680], abs=1e-3)


@pytest.mark.slow
def test_a_schedule_by_name(harness: Callable) -> None:
    options = ("--sampling-rate", "0.01", "--steps", "10000", "--rounds", "100", "--accountant", "rdp", "--json")
    budget = ("--conversion", "mironov", "--target-epsilon", "0.823", "--stop", "paper")
    found = rows(harness("account", "--sigma-schedule", "linear", *options, *budget))
    assert (found[0]["rounds"], found[0]["exceeded"]) == (95, True)
    printed = rows(harness("account", "--sigma-schedule", "linear:sigma", *options, "--conversion", "mironov"))
    assert 0.57 < printed[0]["epsilon"] < 0.58


@pytest.mark.parametrize("text", ["6\n6\n6\n", "[6, 6, 6]", "6, 6 6"])
def test_a_schedule_from_a_file(harness: Callable, tmp_path: Path, text: str) -> None:
    Path(tmp_path, "sigmas.txt").write_text(text)
    common = ("--sampling-rate", "0.1", "--accountant", "zcdp", "--json")
    by_file = rows(harness("account", "--sigma-schedule", "sigmas.txt", *common))
    assert by_file[0]["epsilon"] == rows(harness("account", "--sigma", "6", "--steps", "3", *common))[0]["epsilon"]
    by_round = rows(harness("account", "--sigma-schedule", "sigmas.txt", "--rounds", "3", "--steps", "12", *common))
    assert by_round[0]["epsilon"] == rows(harness("account", "--sigma", "6", "--steps", "12", *common))[0]["epsilon"]


def test_what_a_budget_allows(harness: Callable) -> None:
    steps = rows(
        harness(*MNIST, "--target-epsilon", "0.8228", "--accountant", "rdp", "--conversion", "mironov", "--json")
    )
    assert steps[0]["steps"] in range(10_000, 10_005)
    noise = rows(harness("account", "--sampling-rate", "0.01", "--steps", "10000", "--target-epsilon", "0.601046",
                         "--accountant", "pld", "--json"))  # fmt: skip
    assert noise[0]["sigma"] == pytest.approx(6, abs=1e-3)


def test_delta_at_a_fixed_epsilon(harness: Callable) -> None:
    found = rows(harness(*FIXED, "--epsilon", "0.601046", "--accountant", "pld", "--json"))
    assert found[0]["delta"] == pytest.approx(1e-5, rel=1e-3)
    hopeless = rows(harness(*FIXED, "--epsilon", "1", "--accountant", "base", "--json"))
    assert (hopeless[0]["delta"], hopeless[0]["epsilon"]) == (1, 1)


def test_an_accountant_without_a_bound_says_so(harness: Callable) -> None:
    found = rows(harness(*FIXED, "--mechanism", "skellam", "--accountant", "rdp,pld", "--json"))
    assert [row.get("reason") is None for row in found] == [True, True, False]
    assert found[2]["epsilon"] is None and "rdp" in found[2]["reason"]


def test_samples_without_replacement_are_for_replacing_one(harness: Callable) -> None:
    found = rows(harness(*FIXED, "--sampler", "without-replacement", "--accountant", "rdp,pld", "--json"))
    assert {row["adjacency"] for row in found} == {"replace"}
    assert found[2]["epsilon"] < 0.5 * min(row["epsilon"] for row in found[:2])


FASHION = ("account", "--sigma", "0.43265", "--sampling-rate", str(128 / 5600), "--steps", "20", "--clients", "10")
PAPER = ("--accountant", "rdp", "--conversion", "mironov", "--json")


def test_clients_share_the_noise(harness: Callable) -> None:
    (gaussian,) = rows(harness(*FASHION, *PAPER))
    (skellam,) = rows(harness(*FASHION, *PAPER, "--mechanism", "skellam", "--orders", "dense"))
    assert gaussian["epsilon"] == pytest.approx(1.0, abs=2e-3)  # the paper's orders have a gap that 2 to 255 have not
    assert skellam["epsilon"] == pytest.approx(1.0, abs=2e-3)
    (one,) = rows(harness(*FASHION[:-2], *PAPER))
    assert one["epsilon"] > 10


def test_skellam_is_for_renyi_curves(harness: Callable) -> None:
    finished = harness(*FASHION, "--mechanism", "skellam", "--json")
    assert {row["accountant"] for row in rows(finished)} == {"rdp"}
    table = harness(*FASHION)
    assert "sum of 10 clients" in table.out
    found = json.loads(harness(*FASHION, "--json").out)["settings"]
    assert (found["clients"], found["mechanism"]) == (10, "gaussian")
    assert found["effective_sigma_per_sigma"] == pytest.approx(10**0.5)


MISTAKES = {
    "sigma 0": ("--sigma 0 --steps 1", "--sigma must be above 0"),
    "sigma below 0": ("--sigma=-1 --steps 1", "--sigma must be above 0"),
    "sigma NaN": ("--sigma nan --steps 1", "--sigma must be above 0"),
    "rate 0": ("--sigma 1 --steps 1 --sampling-rate 0", "(0, 1]"),
    "rate above 1": ("--sigma 1 --steps 1 --sampling-rate 1.5", "(0, 1]"),
    "rate without sampling": ("--sigma 1 --steps 1 --sampling-rate 0.5 --sampler none", "--sampler poisson"),
    "sampler without rate": ("--sigma 1 --steps 1 --sampler poisson", "--sampling-rate"),
    "delta 0": ("--sigma 1 --steps 1 --delta 0", "delta must lie in (0, 1)"),
    "delta 1": ("--sigma 1 --steps 1 --delta 1", "delta must lie in (0, 1)"),
    "no noise named": ("--steps 5", "--sigma 6"),
    "no steps": ("--sigma 1", "--steps"),
    "negative steps": ("--sigma 1 --steps=-1", "at least 0"),
    "accountant": ("--sigma 1 --steps 1 --accountant rpd", "did you mean 'rdp'"),
    "conversion": ("--sigma 1 --steps 1 --conversion old", "mironov, improved"),
    "orders": ("--sigma 1 --steps 1 --orders few", "paper, dense"),
    "formula": ("--sigma 1 --steps 1 --formula x", "drv, kov, optimal"),
    "sampler": ("--sigma 1 --steps 1 --sampling-rate 0.1 --sampler bernoulli", "without-replacement"),
    "adjacency": ("--sigma 1 --steps 1 --adjacency swap", "add/remove, replace"),
    "adjacency of the sampler": (
        "--sigma 1 --steps 1 --sampling-rate 0.1 --sampler without-replacement --adjacency add/remove", "replace",
    ),
    "layers": ("--sigma 1 --steps 1 --layers 0", "layers must be at least 1"),
    "stop": ("--sigma 1 --target-epsilon 9 --stop never", "paper, filter"),
    "budget spent at once": ("--sigma 1 --target-epsilon 0.1 --accountant rdp", "already exceeded by the first step"),
    "budget just spent": ("--sigma 1 --target-epsilon 4.377 --accountant pld", "(pld: 4.378)"),  # 4.3772
    "budget spent in the first round": (
        "--sigma-schedule linear --rounds 10 --target-epsilon 0.01 --accountant rdp", "by the first round",
    ),
    "budget of 0": ("--steps 3 --target-epsilon 0", "must be positive"),
    "budget and epsilon": ("--steps 3 --target-epsilon 1 --epsilon 1", "choose one"),
    "everything given": ("--sigma 1 --steps 3 --target-epsilon 1", "leave one out"),
    "unreachable": (
        "--steps 9999 --sampling-rate 0.5 --target-epsilon 0.01 --accountant rdp --conversion mironov",
        "raise the target",
    ),
    "schedule": ("--sigma-schedule linaer", "did you mean 'linear'"),
    "schedule that is nothing": ("--sigma-schedule zzz.txt", "or a file of numbers"),
    "schedule that fixes sigma": ("--sigma-schedule linear --sigma 6", "leave out --sigma"),
    "file that fixes sigma": ("--sigma-schedule good.txt --sigma 6", "leave out --sigma"),
    "schedule to zero": ("--sigma-schedule linear:sigma --sigma-end 0", "zero noise"),
    "file with a zero": ("--sigma-schedule zero.txt", "zero noise"),
    "file with NaN": ("--sigma-schedule nan.txt", "the sigma of round 1 is not finite"),
    "file with infinity": ("--sigma-schedule inf.txt", "the sigma of round 0 is not finite"),
    "file with words": ("--sigma-schedule words.txt", "numbers only"),
    "file with JSON of words": ("--sigma-schedule words.json", "numbers only"),
    "empty file": ("--sigma-schedule empty.txt", "is empty"),
    "folder": ("--sigma-schedule folder", "check --sigma-schedule"),
    "reading of a schedule": ("--sigma-schedule cyclic:eps", "cyclic:sigma"),
    "rounds do not divide": ("--sigma-schedule linear --rounds 3 --steps 10", "multiple of --rounds"),
    "file too short": ("--sigma-schedule good.txt --rounds 2 --steps 6", "give one per round or step"),
    "mechanism": ("--sigma 1 --steps 5 --mechanism laplace", "choose gaussian, skellam"),
    "clients": ("--sigma 1 --steps 5 --clients 0", "at least 1"),
    "layers of skellam": ("--sigma 1 --steps 5 --mechanism skellam --layers 3", "leave --layers"),
    "bits of skellam": ("--sigma 1 --sampling-rate 0.1 --steps 5 --mechanism skellam --bits 1", "--bits 32"),
    "skellam's accountant": ("--sigma 1 --steps 5 --mechanism skellam --accountant pld", "choose --accountant rdp"),
    "no rounds": ("--sigma-schedule linear --rounds 0", "--rounds must be at least 1"),
    "rounds without schedule": ("--sigma 1 --steps 3 --rounds 3", "--sigma-schedule"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(harness: Callable, tmp_path: Path, name: str) -> None:
    files = {
        "good.txt": "3 3 3",
        "zero.txt": "3\n0",
        "words.txt": "much",
        "nan.txt": "3 nan",
        "words.json": '["x"]',
        "empty.txt": "",
    }
    files |= {"nan.txt": "3 nan", "inf.txt": "inf 3"}
    for path, text in files.items():
        Path(tmp_path, path).write_text(text)
    Path(tmp_path, "folder").mkdir()
    options, expected = MISTAKES[name]
    finished = harness("account", *options.split())
    assert (finished.code, finished.out) == (2, "")
    assert expected in finished.err
    assert finished.err.count("\n") == 1
