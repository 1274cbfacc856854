"""Export as BibTeX: the tool, and each run with the hash of its evidence."""

from collections.abc import Sequence
from datetime import UTC, datetime

from harness.base.version import __version__
from harness.reports.html.facts import digest
from harness.reports.html.places import decided_places
from harness.reports.html.run_data import RunData
from harness.reports.html.table import latex_words


def as_bibtex(runs: Sequence[RunData], by: str) -> bytes:
    """An entry for the tool and one per run; keys hold letters, digits and dashes only."""
    year = str(datetime.fromtimestamp(max(run.written or 0.0 for run in runs), UTC).year)
    tool = {
        "title": "harness: does a federated-learning defense really stop gradient leakage?",
        "author": "{The gradient-leakage-harness project}", "version": __version__, "year": year,
    }  # fmt: skip
    entries = [_entry("software", "harness", tool)]
    for number, run in enumerate(runs, 1):
        places = decided_places([run])
        counts = {kind: sum(place.kind == kind for place in places) for kind in dict.fromkeys(p.kind for p in places)}
        found = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        facts = {
            "title": f"Gradient leakage of {latex_words(_what(run))}",
            "author": f"{{{latex_words(by or 'not stated')}}}",
            "year": str(datetime.fromtimestamp(run.written or 0.0, UTC).year),
            "howpublished": f"Run of harness {__version__}, commit {run.environment.get('git') or 'not stated'}",
            "note": f"Places: {found}. SHA-256 {digest(run)}",
        }  # fmt: skip
        entries.append(_entry("misc", f"harness-run-{number}", facts))
    return "\n".join(entries).encode()


def _what(run: RunData) -> str:
    rows = run.summary
    return ", ".join(dict.fromkeys(f"{row.defense} on {row.dataset}" for row in rows))


def _entry(kind: str, key: str, facts: dict[str, str]) -> str:
    return f"@{kind}{{{key},\n" + "".join(f"  {name} = {{{value}}},\n" for name, value in facts.items()) + "}\n"
