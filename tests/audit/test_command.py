"""``harness audit``: tables, JSON, files and mistakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

QUICK = ("--dataset", "digits", "--canaries", "100", "--steps", "1", "--others", "4")


def test_the_table_and_no_file(harness: Callable, tmp_path: Path) -> None:
    code, out, err = harness("audit", "--defense", "fed_acdp", *QUICK)
    assert (code, err, list(tmp_path.iterdir())) == (0, "", [])
    for text in ("together", "alone", "norm", "violates its claim", "lower bound", "add/remove", "delta 1e-05"):
        assert text in out
    line = ("audit", "--defense", "fed_cdp", "--defense-arg", "sigma=2", "--canary", "norm", "--output", "audit.csv")
    out = harness(*line, *QUICK).out
    assert [one.split(",")[1] for one in Path("audit.csv").read_text().splitlines()] == ["settings", "sigma=2"]
    assert "\nfed_cdp (sigma=2): " in out  # a column of settings had no room in 120 columns


def test_json_has_a_row_per_defense_canary_and_seed(harness: Callable, tmp_path: Path) -> None:
    options = ("--canary", "together,norm", "--seed", "0,1", "--defense-arg", "sigma=2", "--json", "--out", "a/b.json")
    code, out, err = harness("audit", "--defense", "fed_cdp,fed_sdp", *QUICK, *options)
    assert (code, err) == (0, "")
    assert Path(tmp_path, "a", "b.json").read_text() == out
    rows = json.loads(out)["audits"]
    assert [(row["defense"], row["design"], row["seed"]) for row in rows] == [
        (defense, design, seed)
        for defense in ("fed_cdp", "fed_sdp") for design in ("together", "norm") for seed in (0, 1)
    ]  # fmt: skip
    assert {row["confidence"] for row in rows} == {0.95}
    assert all(row["lower_bound"] >= 0 and row["epsilon"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ((), "add --defense fed_acdp"),
        (("--defense", "fed_acpd"), "did you mean"),
        (("--defense", "fed_cdp", "--canary", "apart"), "choose together"),
        (("--defense", "fed_cdp", "--canaries", "9000"), "lower --canaries"),
        (("--defense", "fed_cdp", "--others", "1000000"), "lower --others"),
        (("--defense", "fed_cdp", "--dataset", "digts"), "did you mean"),
        (("--defense", "fed_cdp", "--seed", "one"), "whole numbers"),
        (("--defense", "secagg_ddp", "--clients-per-round", "1"), "2 or more"),
        (("--defense", "fed_sdp", "--clients-per-round", "4"), "drop --clients-per-round"),
        (("--defense", "fed_cdp", "--out", "/dev/null/a.json", *QUICK), "--out"),
    ],
)
def test_mistakes(harness: Callable, arguments: tuple[str, ...], fix: str) -> None:
    code, out, err = harness("audit", *arguments)
    assert (code, out) == (2, "")
    assert fix in err
    assert err.count("\n") == 1


def test_a_secure_sum_is_seen_by_its_server(harness: Callable) -> None:
    options = ("--canaries", "40", "--others", "2", "--dataset", "digits", "--steps", "1", "--json")
    code, out, _ = harness("audit", "--defense", "secagg_ddp,fed_cdp", "--seed", "0,1", *options)
    rows = json.loads(out)["audits"]
    assert code == 0
    assert [(row["defense"], row["design"], row["view"], row["clients_per_round"]) for row in rows] == [
        ("secagg_ddp", "together", "server", 10), ("secagg_ddp", "together", "server", 10),
        ("fed_cdp", "together", "server", 1), ("fed_cdp", "together", "server", 1),
        ("fed_cdp", "alone", "server", 40), ("fed_cdp", "alone", "server", 40),
        ("fed_cdp", "norm", "server", 40), ("fed_cdp", "norm", "server", 40),
    ]  # fmt: skip
    arguments = ("--clients-per-round", "3", "--colluders", "1", "--canary", "together,norm", *options)
    code, out, _ = harness("audit", "--defense", "secagg_ddp", *arguments)
    assert [(row["design"], row["clients_per_round"], row["colluders"]) for row in json.loads(out)["audits"]] == [
        ("together", 3, 1),
        ("norm", 3, 1),
    ]
