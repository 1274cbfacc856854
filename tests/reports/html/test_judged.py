"""What ``harness judge`` found out on the page: checks and estimates, and never more than an estimate says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.judging.evidence import Outcome
from harness.reports.html import all_tables, make_page, read_runs
from harness.reports.html.judged import ALONE, WHO
from harness.reports.html.places import decided_places
from harness.reports.html.verdict import verdict
from harness.results import Control

CHECK = {"name": "noise is on every tensor", "outcome": "violated", "detail": "it is off"}
TOLD = {"name": "the truth explains what was sent", "outcome": "violated", "detail": "they differ"}
HOLDS, UNKNOWN = (CHECK | {"outcome": outcome} for outcome in ("holds", "cannot tell"))


def estimated(*estimates: str) -> list[dict[str, Any]]:
    return [{"attack": "cpl", "estimates": list(estimates), "reason": "the attack does not leak even undefended"}]


def lines(folder: Path) -> list[tuple[str, str]]:
    runs = read_runs([folder])
    return [(line.kind, line.words) for line in verdict(runs, decided_places(runs)).headline]


PLAUSIBLE, TELL, NO = "plausibly reconstructed", "could not tell", "no"
STATES: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "some": (
        {"estimates": estimated(PLAUSIBLE, NO, TELL)},
        ("plausible", "cpl plausibly reconstructed 1 of 3 captures (an estimate, as no truth is known)."),
    ),
    "none": (
        {"estimates": estimated(NO, NO)},
        ("untried", "cpl plausibly reconstructed none of 2 captures (an estimate, as no truth is known)."),
    ),
    "undecided": (
        {"estimates": estimated(TELL, NO)},
        ("inconclusive", "We could not tell whether cpl reconstructs 2 captures: the attack does not leak even "
                         "undefended (an estimate, as no truth is known)."),
    ),
    "a check failed": (
        {"checks": [HOLDS, CHECK]},
        ("leaks", "What was sent is not what was declared; violated: noise is on every tensor."),
    ),
    "all checks held": ({"checks": [HOLDS]}, ("resilient", "What was sent looks as declared: 1 check held.")),
    "some cannot tell": (
        {"checks": [HOLDS, UNKNOWN]},
        ("inconclusive", "No check is against what was declared; 1 of 2 held, the others cannot tell."),
    ),
    "none can tell": (
        {"checks": [UNKNOWN]},
        ("inconclusive", "We could not tell whether what was sent is what was declared: no check applies."),
    ),
    "few clients": (
        {"examples": [{"back": 0, "said": "cpl: 0 of 10 came back"}, {"back": 2, "said": "map: 2 of 10 came back"}]},
        ("plausible", "map: 2 of 10 came back."),
    ),
    "no example": ({"examples": [{"back": 0, "said": "cpl: 0 came back"}]}, ("inconclusive", "cpl: 0 came back.")),
    "a budget": (
        {"budget": {"seconds": 600, "attacks": [
            {"attack": "cpl", "captures": 0, "said": "cpl: left out: all of it takes 6 hours", "reason": "long"}]}},
        ("untried", "Within a budget of 10 minutes, 0 of 1 attack ran whole, 1 did not run: cpl: left out: all of it "
                    "takes 6 hours."),
    ),
    "more than declared": (
        {"checks": [HOLDS, CHECK | {"outcome": "more than declared", "detail": "deviation 9, declared is 6"}]},
        ("inconclusive", "What was sent is noisier than declared: deviation 9, declared is 6."),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "line"), STATES.values(), ids=STATES.keys())
def test_a_headline_says_no_more_than_the_estimate(
    tmp_path: Path, a_judged: Callable, facts: dict[str, Any], line: tuple[str, str]
) -> None:
    assert lines(a_judged(tmp_path, **({"checks": [], "estimates": []} | facts))) == [line]


def test_a_check_that_holds_does_not_stand_above_a_leak(
    tmp_path: Path, a_judged: Callable, a_run: Callable, a_cell: Callable
) -> None:
    a_run(tmp_path, [a_cell("none", 1)])
    said = lines(a_judged(tmp_path, checks=[HOLDS], estimates=[]))
    assert [kind for kind, _ in said] == ["leaks", "resilient"]


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_whatever_a_check_can_say_is_shown(tmp_path: Path, a_judged: Callable, outcome: str) -> None:
    [run] = read_runs([a_judged(tmp_path, checks=[CHECK | {"outcome": outcome}])])
    assert run.judged and not run.left_out
    assert f"{outcome}</td>" in make_page([run])


@pytest.mark.parametrize("valid", [True, False])
def test_estimates_of_clients_who_send_something_else_must_not_be_used(
    tmp_path: Path, a_judged: Callable, valid: bool
) -> None:
    page = make_page(read_runs([a_judged(tmp_path, valid=valid, checks=[CHECK])]))
    assert ("its estimates must not be used: noise is on every tensor? No: " in page) != valid


def test_a_truth_that_explains_nothing_leaves_no_verdict(
    tmp_path: Path, a_cell: Callable, a_run: Callable, a_judged: Callable
) -> None:
    a_run(tmp_path, [a_cell("fed_cdp")], pictures=False)
    a_judged(tmp_path, valid=False, checks=[CHECK, TOLD], estimates=[], results={})
    page = make_page(read_runs([tmp_path]))
    assert "its verdicts must not be used: the truth explains what was sent? No: they differ" in page
    assert lines(tmp_path)[1] == ("invalid", "fed_cdp: no verdict, as the run is invalid.")
    assert "LEAKS</a>" not in page


@pytest.mark.parametrize("results", [None, {}])
def test_a_declared_filter_of_a_framework_has_its_sentence(tmp_path: Path, a_judged: Callable, results: Any) -> None:
    """Rows of attacks have it themselves."""
    stated = {"view": "server", "claimed_epsilon": 8, "epsilon": 7.91, "delta": 1e-5, "guarantee": "client-LDP",
              "schedule": "harness claims flower:LocalDpMod (epsilon=8)", "notes": "exact Gaussian <b>"}  # fmt: skip
    own = stated | {"schedule": "constant"}
    page = make_page(read_runs([a_judged(tmp_path, privacy=[stated, own], results=results)]))
    sentence = (
        "harness claims flower:LocalDpMod (epsilon=8), server: claimed epsilon 8, proven epsilon 7.91 (delta 1e-05): "
        "exact Gaussian &lt;b&gt;."
    )
    assert page.count(sentence) == (results is None)


def test_tables_and_pictures_of_captures(judged: Path) -> None:
    runs = read_runs([judged])
    rows = {table.name: [[value.shown for value in row] for row in table.rows] for table in all_tables(runs)}
    assert rows["checks"] == [[judged.name, "noise is on every tensor", "✖ violated", "it is off"]]
    assert rows["estimates"][1] == [judged.name, "cpl", "2", "no", "0.4", "0.5", "1e-08", "0"]
    page = make_page(runs)
    assert "captured clients against cpl" in page and "data:image/webp" in page
    assert "3 clients, 1 example each, training lenet, captured in flower; fed_cdp is declared" in page
    assert 'id="tables"' not in page and "LEAKS" not in page


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        ({"prior": "digits"}, "--attack cpl --prior digits"),
        (
            {"prior": "my data.npz", "update_model": "avg"},
            "--attack cpl --prior &#39;my data.npz&#39; --update-model avg",
        ),
        ({"prior": "digits", "update_model": "unroll"}, "--attack cpl --prior digits"),
        ({}, "--attack cpl --prior none"),
        (
            {
                "budget": {
                    "seconds": 40,
                    "attacks": [
                        {"attack": name, "group": group, "captures": 3, "said": "it ran"}
                        for name, group in (("cpl", ""), ("map", ""), ("identify", WHO), ("cpl", ALONE))
                    ],
                }
            },
            "--attack cpl,map --prior none --budget 40s",
        ),
    ],
)
def test_the_command_behind_an_estimate(
    tmp_path: Path, a_judged: Callable, facts: dict[str, str], command: str
) -> None:
    page = make_page(read_runs([a_judged(tmp_path, **facts)]))
    assert f"harness judge CAPTURE... {command}</pre>" in page


def test_an_attack_that_works_on_one_step_does_not_fail_on_the_model(
    tmp_path: Path, a_cell: Callable, a_run: Callable, a_judged: Callable
) -> None:
    idle = Control(name="positive", held=False, detail="the attack is idle")
    cell = a_cell("none", verdict="inconclusive", controls=[idle], local_steps=3, batch_size=4)
    a_run(tmp_path, [cell], pictures=False)
    alone = {"what": ALONE, "by": "map", "said": "map leaks, as it must", "held": True}
    a_judged(tmp_path, checks=[], estimates=[], measured=[alone], results={})
    assert lines(tmp_path)[-1][1] == (
        "Without a defense, we could not tell: the attack does not work on 3 steps of 4 examples, though map works on "
        "one step on one example."
    )


def test_stand_ins_are_nobody_whose_verdict_is_asked_for(
    tmp_path: Path, a_cell: Callable, a_run: Callable, a_judged: Callable
) -> None:
    """Their cells lie in the folder, as those of a run that was killed would; also where the document is damaged."""
    stand_ins = a_run(tmp_path, [a_cell("fed_cdp", dataset="stand-ins")], pictures=False)
    (stand_ins / "results.json").unlink()
    [run] = read_runs([a_judged(tmp_path)])
    assert run.cells == [] and run.judged
    other = a_run(tmp_path / "good", [a_cell()], pictures=False)
    (tmp_path / "judged.json").write_text("{}")
    [damaged, _] = read_runs([tmp_path, other])
    assert damaged.cells == [] and "judged.json is not as harness judge writes it" in damaged.left_out[0]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "../../etc/passwd", "{{ 7*7 }}", "a\x00\x1b[31mb"])
def test_whatever_it_says_stays_text(tmp_path: Path, a_judged: Callable, name: str) -> None:
    record = {"model": name, "framework": name, "defense": {"name": name}}
    estimate = estimated(PLAUSIBLE)[0] | {"attack": name, "reason": name, "labels": [[1]], "left": [None]}
    a_judged(tmp_path, record=record, checks=[CHECK | {"name": name, "detail": name}], estimates=[estimate])
    page = make_page(read_runs([tmp_path]))
    assert page.count("<script>") == 1 and "\x1b" not in page and "data:image/webp" not in page
    assert json.loads((tmp_path / "judged.json").read_text())["record"]["model"] == name
