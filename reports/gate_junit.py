"""The regression gate as JUnit XML: a test case per cell, so that any CI service shows which one failed."""

import re
from xml.etree import ElementTree

from harness.gate import Finding, Report
from harness.reports.gate_words import COLUMNS, row

# What XML 1.0 has no way to write, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_junit(report: Report) -> bytes:
    """The XML document. Regressions, broken attacks are failures; what could not be compared is an error."""
    cases = [_case(finding) for finding in report.findings]
    suite = ElementTree.Element("testsuite", name="harness check", tests=str(len(cases)))
    for tag in ("failures", "errors", "skipped"):
        kind = tag.removesuffix("s") if tag != "skipped" else tag
        suite.set(tag, str(sum(case.find(kind) is not None for case in cases)))
    suite.extend(cases)
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def _case(finding: Finding) -> ElementTree.Element:
    name = _clean(finding.cell or "the run")
    case = ElementTree.Element("testcase", classname=f"gate.{_clean(finding.dataset or 'run')}", name=name)
    words = "; ".join(f"{title} {text}" for title, text in zip(COLUMNS, row(finding), strict=True) if text)
    if finding.kind in ("regression", "broken attack", "invalid run"):
        tag = "failure"
    elif finding.fails:
        tag = "error"
    elif finding.kind == "extra":
        tag = "skipped"
    else:
        ElementTree.SubElement(case, "system-out").text = _clean(words)
        return case
    outcome = ElementTree.SubElement(case, tag, message=_clean(words))
    if tag != "skipped":
        outcome.set("type", finding.kind)
    return case


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
