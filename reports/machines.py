"""Findings as JUnit XML and as SARIF: what test runners and security pages of repositories read."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree

from harness.base.version import __version__

# What XML 1.0 has no way to write, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """A test case.

    Attributes:
        outcome: a ``failure`` is a finding, an ``error`` what could not be told, ``skipped`` what was not tried.
        kind: the type of a failure or an error, in a word.
        words: what was seen.
        seconds: how long it took, where that is known.
    """

    group: str
    name: str
    outcome: Literal["passed", "failure", "error", "skipped"]
    kind: str
    words: str
    seconds: float | None = None


def junit(suite: str, cases: Sequence[Case]) -> bytes:
    """The cases as one test suite of JUnit XML, as Jenkins reads it."""
    found = ElementTree.Element("testsuite", name=_clean(suite), tests=str(len(cases)))
    for tag, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        found.set(tag, str(sum(case.outcome == outcome for case in cases)))
    found.extend(map(_case, cases))
    return ElementTree.tostring(found, encoding="utf-8", xml_declaration=True)


def _case(case: Case) -> ElementTree.Element:
    made = ElementTree.Element("testcase", classname=_clean(case.group), name=_clean(case.name))
    if case.seconds is not None:
        made.set("time", f"{case.seconds:.3f}")
    if case.outcome == "passed":
        ElementTree.SubElement(made, "system-out").text = _clean(case.words)
    elif case.outcome == "skipped":
        # No attribute: the schema of Jenkins has none here.
        ElementTree.SubElement(made, "skipped").text = _clean(case.words)
    else:
        ElementTree.SubElement(made, case.outcome, message=_clean(case.words), type=case.kind)
    return made


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)


@dataclass(frozen=True)
class Alert:
    """A result of SARIF: the rule that is broken, what was seen, and the file that says so."""

    rule: str
    level: Literal["error", "warning", "note"]
    place: str
    words: str
    file: str


#: What each rule means, for a person who opens the alert.
RULES = {
    "leaks": "Private data come back from what clients send, or are told from look-alikes.",
    "undecided": "The evidence settles neither that data come back nor that they do not.",
    "regression": "A defense is less resilient than its committed baseline.",
    "broken-attack": "An attack finds less than it did, so that nothing it does not find counts.",
    "invalid-run": "The run must not be used.",
    "not-compared": "Something could not be compared with the baseline.",
}
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(alerts: Sequence[Alert]) -> bytes:
    """The alerts as one run of SARIF 2.1.0; the same place has the same fingerprint in every run.

    Source: SARIF version 2.1.0, OASIS standard (2020), with errata 01 (2023).
    """
    used = list(dict.fromkeys(alert.rule for alert in alerts))
    rules = [{"id": rule, "shortDescription": {"text": RULES[rule]}} for rule in used]
    driver = {"name": "harness", "version": __version__, "rules": rules}
    found = [_result(alert, used.index(alert.rule)) for alert in alerts]
    run = {"tool": {"driver": driver}, "results": found, "columnKind": "unicodeCodePoints"}
    document = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def address(file: Path) -> str:
    """A file as a URI: relative to this folder where it lies inside, as a repository's page needs it."""
    whole, here = file.absolute(), Path.cwd()
    return quote(whole.relative_to(here).as_posix() if whole.is_relative_to(here) else whole.name)


def _result(alert: Alert, rule: int) -> dict[str, Any]:
    # A security page shows an alert at a line of a file; results have no lines, so it is the first.
    where = {"artifactLocation": {"uri": alert.file}, "region": {"startLine": 1}}
    mark = hashlib.sha256(f"{alert.rule}\n{alert.place}".encode()).hexdigest()
    return {
        "ruleId": alert.rule, "ruleIndex": rule, "level": alert.level, "kind": "fail",
        "message": {"text": f"{alert.place}: {alert.words}"}, "locations": [{"physicalLocation": where}],
        "partialFingerprints": {"harnessPlace/v1": mark},
    }  # fmt: skip
