"""All runs in one table: what was judged where, how it moved from run to run, and a link to each run's report."""

from collections.abc import Sequence
from datetime import UTC, datetime

from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.cell_tables import verdict_value
from harness.reports.html.page import make_page, render
from harness.reports.html.places import Decided, decided_places
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, make, words

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 24
_HEADS = (
    Head("run", choice=True), Head("written"), Head("verdict", choice=True), Head("defense", choice=True),
    Head("surface", choice=True), Head("strongest attack", choice=True), Head("success [95%]", number=True),
    Head("history"), Head("setting", choice=True, wide=True), Head("suite", choice=True), Head("version", choice=True),
    Head("why", wide=True),
)  # fmt: skip


def make_view(runs: Sequence[RunData]) -> dict[str, bytes]:
    """The pages by their paths: ``index.html``, and a report of each run below ``reports/``."""
    runs = sorted(runs, key=lambda run: run.written or 0.0)
    places = decided_places(runs)
    links = {run.name: f"reports/{number}.html" for number, run in enumerate(runs, 1)}
    rows = [_row(place, links, _history(place, places)) for place in reversed(places)]
    table = make(
        "runs", "Every run, the latest first", _HEADS, rows,
        "A row is a defense at one place in one run. History: success of the strongest attack there, from run to run.",
    )  # fmt: skip
    left_out = [f"{run.name}: {line}" for run in runs for line in (*run.told, *run.left_out)]
    kind = columns.kinds_of(cell for place in places for cell in place.cells)
    index = render("view.html.j2", kind, table=table, left_out=left_out, headline=_headline(runs, table))
    pages = {links[run.name]: make_page([run], []).encode() for run in runs}
    return {"index.html": index.encode(), **pages}


def _headline(runs: Sequence[RunData], table: Table) -> str:
    return f"{wording.plural(len(runs), 'run')}, {wording.plural(len(table.rows), 'verdict')}"


def _row(place: Decided, links: dict[str, str], history: Value) -> tuple[Value, ...]:
    row, run = place.summary, place.run
    versions = run.environment.get("versions")
    rate = place.cell.asr.get("strict") if place.cell else None
    day = datetime.fromtimestamp(run.written or 0.0, UTC)
    defense, arguments = wording.label(row.defense, row.defense_args)
    return (
        Value(run.name, None, "", links[run.name]), Value(f"{day:%Y-%m-%d %H:%M}", run.written or 0.0),
        verdict_value(place.kind), words(" ".join(filter(None, (defense, arguments)))),
        Value(wording.surface(row), -1.0 if row.surface is None else float(row.surface)), words(row.strongest),
        Value(text.rate(rate), rate and rate.rate), history, words(place.setting), words(row.suite),
        words(versions.get("harness") if isinstance(versions, dict) else None),
        words(text.headed(row)),
    )  # fmt: skip


def _history(place: Decided, places: Sequence[Decided]) -> Value:
    """Success at that place in all runs up to this one, as bars, with the first and the last in words."""
    own = _identity(place)
    alike = [one for one in places if _identity(one) == own]
    found = [one.cell.asr.get("strict") if one.cell else None for one in alike[: alike.index(place) + 1]]
    rates = [one.rate for one in found if one is not None and one.rate is not None]
    if len(rates) < 2:
        return Value(text.MISSING)
    bars = "".join(_BARS[min(int(rate * len(_BARS)), len(_BARS) - 1)] for rate in rates[-_MOST_BARS:])
    return Value(f"{bars} {text.percent(rates[0])} to {text.percent(rates[-1])}", rates[-1] - rates[0])


def _identity(place: Decided) -> tuple[str, ...]:
    row = place.summary
    return place.setting, row.tap, columns.circumstances(row), *wording.label(row.defense, row.defense_args)
