"""Results for other programs: the forms of ``harness export``, and the rows of numbers that several of them hold.

A row is an attack at a place, and each number in it is a field of the stored results. What cannot be had is null, an
empty field in CSV.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from harness.base.version import __version__
from harness.reports import columns, text
from harness.reports.html import table as tables
from harness.reports.html.export_formats import as_bibtex, as_crate, as_evals, as_junit, as_registry, as_sarif
from harness.reports.html.facts import digest
from harness.reports.html.places import Decided, Shown, decided_places, shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value
from harness.results.record import Rate, Statement
from harness.scoring import METRICS

Plain = str | int | float | bool | None
Row = dict[str, Plain]


@dataclass(frozen=True)
class Exported:
    """Runs that are exported, and what the operator states: the name of the system, and who tested it."""

    runs: Sequence[RunData]
    system: str = ""
    by: str = ""

    @property
    def cells(self) -> list[Shown]:
        """Every attack at every place, without the controls."""
        return shown_cells(self.runs)

    @property
    def places(self) -> list[Decided]:
        """Every verdict over all attacks."""
        return decided_places(self.runs)

    @property
    def written(self) -> datetime:
        """When the last of the runs was written, in UTC; the beginning of 1970 where no file says so."""
        return datetime.fromtimestamp(max(run.written or 0.0 for run in self.runs), UTC)


def _rate(name: str, of: Callable[[Shown], Rate | None]) -> dict[str, Callable[[Shown], Plain]]:
    """A rate with its 95% interval and what it is a share of."""

    def end(item: Shown, place: int) -> float | None:
        found = of(item)
        return found.ci95[place] if found and found.ci95 else None

    return {
        name: lambda item: getattr(of(item), "rate", None),
        f"{name}_low": lambda item: end(item, 0),
        f"{name}_high": lambda item: end(item, 1),
        f"{name}_of": lambda item: getattr(of(item), "n", None),
    }


def _identified(item: Shown) -> Rate | None:
    found = item.cell.identified
    return found and Rate(rate=found.rate, n=found.n, ci95=found.ci95)


def _metric(name: str, statistic: str) -> Callable[[Shown], Plain]:
    return lambda item: getattr(item.cell.metrics.get(name), statistic, None)


def _theorem(name: str, part: str) -> Callable[[Shown], Plain]:
    return lambda item: getattr(text.event_of(item.cell, name), part, None)


def proven(statements: Sequence[Statement]) -> list[Statement]:
    """Those that hold for what ran and are about what is read there, the smallest epsilon first."""
    about = [one for one in statements if one.epsilon is not None and one.covers is not False]
    return sorted(about, key=lambda one: one.epsilon or 0.0)


def _proven(part: str) -> Callable[[Shown], Plain]:
    return lambda item: getattr(next(iter(proven(item.cell.privacy)), None), part, None)


#: The columns of CSV and the names in JSON, each with where it is stored.
FIELDS: dict[str, Callable[[Shown], Plain]] = {
    "run": lambda item: item.run.name,
    "dataset": lambda item: item.cell.dataset,
    "model": lambda item: item.cell.model,
    "defense": lambda item: item.cell.defense,
    "arguments": lambda item: json.dumps(item.cell.defense_args, sort_keys=True),
    "attack": lambda item: item.cell.attack,
    "tier": lambda item: item.cell.tier,
    "suite": lambda item: item.cell.suite,
    "surface": lambda item: item.cell.surface,
    "tap": lambda item: item.cell.tap,
    "round": lambda item: item.cell.round,
    "batch_size": lambda item: item.cell.batch_size,
    "local_steps": lambda item: item.cell.local_steps,
    "observations": lambda item: item.cell.observations,
    "rounds_seen": lambda item: columns.rounds_seen(item.cell),
    "options": lambda item: "; ".join(columns.options_of(item.cell)) or None,
    "seeds": lambda item: json.dumps(item.cell.seeds),
    "victims": lambda item: item.cell.victims,
    "verdict": lambda item: item.kind,
    "why": lambda item: item.cell.not_applicable_reason or item.cell.verdict_reason or None,
    **_rate("success", lambda item: item.cell.asr.get("strict")),
    "success_ssim": lambda item: getattr(item.cell.asr.get("ssim"), "rate", None),
    "success_table3": lambda item: getattr(item.cell.asr.get("table3"), "rate", None),
    **_rate("identified", _identified),
    **{f"{one.name}_{one.shown}": _metric(one.name, one.shown) for one in METRICS.values() if one.title},
    "tau_mean": _metric("tau", "mean"),
    "labels": lambda item: item.cell.label.accuracy,
    "lineup_p": lambda item: item.cell.tested_p,
    "lineup_rank": lambda item: item.cell.lineup.mean_rank,
    "first_in_lineup_at_most": _theorem("first in its lineup", "ceiling"),
    "success_at_most": _theorem("strict image", "ceiling"),
    "guarantee": _proven("guarantee"),
    "epsilon": _proven("epsilon"),
    "delta": _proven("delta"),
    "against": _proven("view"),
    "seconds": lambda item: item.cell.seconds,
    "cell": lambda item: item.cell.key,
}


def rows_of(cells: Sequence[Shown]) -> list[Row]:
    """Every attack as a row of plain values; numbers that an attack measures itself come last, as ``own_NAME``."""
    own = columns.own_measures(item.cell for item in cells)
    shows = FIELDS | {f"own_{name}": _metric(name, "mean") for name in own}
    return [{name: show(item) for name, show in shows.items()} for item in cells]


def as_csv(exported: Exported) -> bytes:
    """Numbers as they are stored, and empty fields for those that cannot be had; UTF-8 with its mark at the start."""
    rows = rows_of(exported.cells)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _entry(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue().encode("utf-8-sig")


def _entry(value: Plain) -> str:
    """A number in full; a word that a spreadsheet would run is quoted."""
    if value is None:
        return ""
    return tables.harmless(text.safe(value, 600)) if isinstance(value, str) else repr(value)


def as_json(exported: Exported) -> bytes:
    """The same rows, and the runs that they are of, each with the hash of its evidence."""
    runs = [{"name": run.name, "environment": run.environment, "sha256": digest(run)} for run in exported.runs]
    document = {"kind": "harness export", "harness": __version__, "runs": runs, "rows": rows_of(exported.cells)}
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_latex(exported: Exported) -> bytes:
    """One table with booktabs' rules: each rate with its interval, each verdict beside its guarantee."""
    cells = [item.cell for item in exported.cells]
    shown = [column for column in columns.MEDIUM if any(map(column.concerns, cells))]
    heads = tuple(Head(column.title, number=column.right) for column in shown)
    rows = [tuple(Value("; ".join(column.render(cell).plain.splitlines())) for column in shown) for cell in cells]
    settings = [columns.setting(cell) for cell in cells]
    if len(set(settings)) > 1:  # else the caption of a paper's table says it once for all rows
        heads = (Head("setting"), *heads)
        rows = [(Value(own), *row) for own, row in zip(settings, rows, strict=True)]
    return tables.latex([Table("harness", "What leaks where, by attack", heads, tuple(rows))]).encode()


@dataclass(frozen=True)
class Format:
    """A form of export: how it is written, and how its files end. ``one``: whether it describes one system only."""

    write: Callable[[Exported], bytes]
    endings: tuple[str, ...]
    one: bool = False


#: Every form that results are exported in.
FORMATS: dict[str, Format] = {
    "csv": Format(as_csv, (".csv",)),
    "sarif": Format(lambda exported: as_sarif(exported.runs), (".sarif", ".sarif.json")),
    "latex": Format(as_latex, (".tex",)),
    "ro-crate": Format(lambda one: as_crate(list(one.runs), one.system, one.by), (".zip",)),
    "every-eval-ever": Format(lambda one: as_evals(one.runs, one.system, one.by), (".eval.json",), one=True),
    "dp-registry": Format(lambda one: as_registry(one.runs, one.system, one.by), (".yaml", ".yml"), one=True),
    "bibtex": Format(lambda one: as_bibtex(one.runs, one.by), (".bib",)),
    "junit": Format(lambda exported: as_junit(exported.runs), (".xml",)),
    # The last of those whose files end so.
    "json": Format(as_json, (".json",)),
}
