"""Exports for build services and security pages: verdicts as test cases (JUnit), leaks as alerts (SARIF)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.places import Decided, Shown, decided_places, shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.machines import Alert, Case, address, junit, sarif

# A test that passes says that an attack was withstood, and nothing else may look as green as that.
_OUTCOMES: dict[str, Literal["passed", "failure", "error", "skipped"]] = {
    "leaks": "failure", "resilient": "passed", "inconclusive": "error", "impossible": "skipped", "skipped": "skipped",
    "invalid": "error",
}  # fmt: skip


def as_junit(runs: Sequence[RunData]) -> bytes:
    """A test case per attack at a place: a leak is a failure, what is undecided an error, what did not run skipped."""
    return junit("harness export", [_case(item) for item in shown_cells(runs)])


def _case(item: Shown) -> Case:
    cell = item.cell
    outcome = "failure" if cell.identified and cell.identified.identifies else _OUTCOMES[item.kind]
    kind = "identifies" if outcome == "failure" and item.kind != "leaks" else item.kind
    name = f"{cell.attack} at surface {columns.surface(cell)}{columns.circumstances(cell)}"
    numbers = (("success", columns.success_rate(cell)), ("identified", columns.identified(cell)),
               ("lineup p", columns.lineup(cell)))  # fmt: skip
    said = [f"{title} {value}" for title, value in numbers if value != text.MISSING]
    words = "; ".join([kind, cell.not_applicable_reason or cell.verdict_reason, *said, *cell.flags])
    group = ".".join(filter(None, (cell.dataset, cell.model, " ".join(filter(None, item.row)))))
    return Case(group, name, outcome, kind, words, cell.seconds)


def as_sarif(runs: Sequence[RunData]) -> bytes:
    """An alert per place that leaks, and a note per place that is undecided, at the run's ``results.json``.

    A place that withstood is no alert: security pages show whatever a file holds.
    """
    return sarif(list(_alerts(decided_places(runs))))


def _alerts(places: Sequence[Decided]) -> Iterator[Alert]:
    for place in places:
        row, file = place.summary, address(Path(place.run.folder, "results.json"))
        named = " ".join(filter(None, (place.defense, place.arguments)))
        where = f"{named}, {wording.surface(row)}{columns.circumstances(row)} ({place.setting})"
        words = text.headed(row)
        if place.kind == "leaks" or row.identifies:
            rate = columns.success_rate(place.cell) if place.cell else text.MISSING
            more = f"; success of {row.strongest} {rate}" if row.strongest and rate != text.MISSING else ""
            yield Alert("leaks", "error", where, words + more, file)
        elif place.kind == "inconclusive":
            yield Alert("undecided", "note", where, words, file)
