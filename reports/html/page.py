"""The page: everything a report says, rendered into one file that loads nothing and runs no script but its own."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.base.kinds import IMAGES, Kind
from harness.base.registry import Registry
from harness.datasets import DATASETS
from harness.models import MODELS
from harness.reports import text
from harness.reports.columns import kinds_of
from harness.reports.headline import PROMISE
from harness.reports.html import chart, commands, wording
from harness.reports.html.chart import Chart
from harness.reports.html.figures import Gallery, distribution_chart, gallery, success_chart, tau_chart, theorem_chart
from harness.reports.html.places import Shown, decided_places, grouped, shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.html.table import (
    NOTHING,
    NUMBER,
    Head,
    Table,
    Value,
    as_number,
    comma_separated,
    condensed,
    folded,
    latex,
)
from harness.reports.html.tables import tables_of, unread
from harness.reports.html.training import utility_chart
from harness.reports.html.trend import TrendSection, trend_section
from harness.reports.html.verdict import Matrix, Overview, matrices, verdict

# What the page is about, in words: which data, which network, whose runs, and when.

_MOST = 3


@dataclass(frozen=True)
class About:
    """``title`` of the document; ``facts``: (what, in words)."""

    title: str
    facts: tuple[tuple[str, str], ...]


def about(runs: Sequence[RunData]) -> About:
    """Data and networks are explained where they are known here."""
    asked = [cell for run in runs for cell in run.cells if cell.role == "cell"]
    trained = [run.training.settings for run in runs if run.training is not None]
    data = _named([cell.dataset for cell in asked], trained, "dataset")
    networks = _named([cell.model for cell in asked], trained, "model")
    dates = [date for run in runs if (date := _date(run.written))]
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""
    facts = [
        *(("captured", run.judged.captured) for run in runs[:_MOST] if run.judged),
        ("data", _explained(DATASETS, data)), ("network", _explained(MODELS, networks)),
        ("run", ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")),
        ("written", when),
    ]  # fmt: skip
    title = ["What leaks", *filter(None, (_listed(data), _listed(networks), when))]
    return About(" · ".join(title), tuple((what, words) for what, words in facts if words))


def _named(attacked: Sequence[str], trained: Sequence[dict], setting: str) -> list[str]:
    found = [*attacked, *(str(settings[setting]) for settings in trained if settings.get(setting) is not None)]
    return [text.safe(name, 60) for name in dict.fromkeys(found)]


def _listed(names: Sequence[str]) -> str:
    return wording.join([*names[:_MOST], *([f"{len(names) - _MOST} more"] if len(names) > _MOST else [])])


def _explained(registry: Registry, names: Sequence[str]) -> str:
    known = set(registry)
    lines = []
    for name in names[:_MOST]:
        meaning = (registry[name].__doc__ or "").strip().partition("\n")[0] if name in known else ""
        lines.append(f"{name}: {text.safe(meaning, 200)}" if meaning else name)
    return " ".join(lines) + (f" And {len(names) - _MOST} more." if len(names) > _MOST else "")


def _date(written: float | None) -> str:
    """Return the date of a moment in words, such as ``22 November 2026``, in universal time."""
    if written is None:
        return ""
    day = datetime.fromtimestamp(written, UTC)
    return f"{day.day} {day:%B %Y}"


#: How every page of ours begins, blanks apart.
BEGINNING = (
    b'<!DOCTYPEhtml><htmllang="en"><head><metacharset="utf-8"><metaname="generator"content="gradient-leakage-harness">'
)

_MOST_DRAWN = 2_500_000


@dataclass(frozen=True)
class Figures:
    """The figures of one setting and attack; ``commands`` make their numbers again."""

    title: str
    charts: tuple[Chart, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """Contents that the template shows, in its order."""

    about: About
    kind: Kind
    verdict: Overview
    matrices: list[Matrix]
    gallery: Gallery
    figures: list[Figures]
    utility: Chart | None
    trend: TrendSection | None
    tables: dict[str, Table]
    papers: list[Table]
    captured: list[Table]
    claims: list[str]
    command: str
    evaluate: list[str]
    left_out: list[str] = field(default_factory=list)

    FOLDED: ClassVar[Sequence[str]] = ("privacy", "cells", "controls", "rounds", "settings", "environment")

    @property
    def has_figures(self) -> bool:
        """Return whether anything is drawn."""
        return self.utility is not None or any(group.charts for group in self.figures)

    @property
    def has_tables(self) -> bool:
        """Return whether anything stands below the heading of tables."""
        return not {"training", *self.FOLDED}.isdisjoint(self.tables)


def make_page(runs: Sequence[RunData], earlier: Sequence[RunData] = ()) -> str:
    """The report as HTML; of ``earlier`` runs only the trend is shown."""
    cells, places = shown_cells(runs), decided_places(runs)
    groups = grouped(cells)
    tables, figures = tables_of(runs, earlier, places, cells), _all_figures(groups)
    page = Page(
        about(runs), kinds_of(item.cell for item in cells), verdict(runs, places), matrices(places),
        gallery(places, cells, runs), figures,
        utility_chart(runs, places), trend_section([*earlier, *runs]),
        {table.name: _short(table) for table in tables if not table.name.startswith("paper-")},
        [_short(table) for table in tables if table.name.startswith("paper-")],
        [_short(table) for table in tables if table.name in ("checks", "measured", "estimates", "budget")],
        [line for run in runs if run.judged for line in run.judged.claims],
        commands.report_command(runs), [*commands.evaluate_commands(cells), *commands.judge_commands(runs)],
    )  # fmt: skip
    page.left_out.extend(f"{run.name}: {reason}" for run in [*unread(earlier), *runs] for reason in run.left_out)
    page.left_out.extend(page.gallery.left_out)
    if len(groups) > len(figures):
        more = wording.plural(len(groups) - len(figures), "more group")
        page.left_out.append(f"figures of {more} of cells; the tables have their numbers")
    return render("report.html.j2", page.kind, page=page)


def _short(table: Table) -> Table:
    """Return the table as on the page, which has less room than a file: equal rows and columns once."""
    if table.name == "cells" or table.name.startswith("paper-"):
        table = folded(table, "surface", ("seconds", "cell"))
    return condensed(folded(table, "against") if table.name == "privacy" else table)


def _all_figures(groups: dict[tuple[str, str], list[Shown]]) -> list[Figures]:
    """Figures of one group after another, until the page has enough of them."""
    made: list[Figures] = []
    drawn = 0
    settings = {setting for setting, _ in groups}
    for number, ((setting, attack), members) in enumerate(groups.items()):
        if drawn > _MOST_DRAWN:
            break
        made.append(_figures(number, (attack, setting) if len(settings) > 1 else (attack,), members))
        drawn += sum(len(one.picture) for one in made[-1].charts)
    return made


def _figures(number: int, named: tuple[str, ...], members: Sequence[Shown]) -> Figures:
    rows = chart.lines(members)
    title = " · ".join(wording.text.safe(one, 200) for one in named)
    drawn = (
        draw(f"chart-{number}-{kind}", title, rows)
        for kind, draw in (
            ("success", success_chart),
            ("theorem", theorem_chart),
            ("spread", distribution_chart),
            ("tau", tau_chart),
        )
    )
    charts = tuple(found for found in drawn if found is not None)
    return Figures(title, charts, tuple(commands.evaluate_commands(members)))


@lru_cache(maxsize=1)
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("harness.reports.html"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def render(template: str, kind: Kind, **values: object) -> str:
    """A page of ours on examples of a kind: it loads nothing, and runs no script but its own."""
    style, script = _own("report.css"), _own("report.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _templates().get_template(template).render(
        style=Markup(style), script=Markup(script), policy=policy, meanings=wording.meanings(kind),
        symbols=wording.SYMBOLS, words=wording.WORDS, promise=PROMISE, **values,
    )  # fmt: skip


def _own(name: str) -> str:
    return files("harness.reports.html").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """Return what the page's policy lets through: this very text and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


# --------------------------------------------------------------------------------------
# What a command printed as a file: its tables and the lines around them, as JSON, CSV, a page or LaTeX.


#: How files of printed tables end.
ENDINGS = (".json", ".csv", ".html", ".tex")

Part = Table | str


def printed(command: str, parts: Sequence[Part], ending: str) -> tuple[bytes, int]:
    """The file, and how many tables it has no room for: CSV holds those that have the columns of the first.

    Args:
        command: the line that printed them, for the title.
        parts: tables, and lines between them, in their order.
        ending: one of ``ENDINGS``.
    """
    tables = [
        replace(part, name=f"table-{number}", title=part.title or f"Table {number}")
        for number, part in enumerate(_tables(parts), 1)
    ]
    if ending == ".csv":
        alike = [one for one in tables if one.columns == tables[0].columns]
        whole = replace(tables[0], rows=tuple(row for one in alike for row in one.rows))
        return comma_separated(_in_numbers(whole)).encode("utf-8-sig"), len(tables) - len(alike)
    if ending == ".tex":
        return latex(tables).encode(), 0
    if ending == ".html":
        numbers = iter(tables)
        shown = [next(numbers) if isinstance(part, Table) else part for part in parts]
        return render("printed.html.j2", IMAGES, command=command, parts=shown).encode(), 0
    document = {"kind": "printed", "command": command, "parts": [_plain(part) for part in parts]}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(), 0


_ONE = re.compile(NUMBER)


def _in_numbers(table: Table) -> Table:
    """Columns of numbers as numbers, and percentages as shares.

    A column stays as it is printed where an entry is anything else, such as several numbers or a word beside one.
    """
    heads, columns = list[Head](), list[list[Value]]()
    for place, head in enumerate(table.columns):
        entries = [row[place] for row in table.rows]
        said = [one.shown for one in entries if one.shown not in NOTHING]
        numbers = bool(said) and all(_ONE.fullmatch(one) and one[0] not in "<>" for one in said)
        heads.append(replace(head, number=True) if numbers else head)
        columns.append([_number(one.shown) for one in entries] if numbers else entries)
    return replace(table, columns=tuple(heads), rows=tuple(zip(*columns, strict=True)))


def _number(shown: str) -> Value:
    if shown in NOTHING:
        return Value("")
    value = as_number(*_ONE.fullmatch(shown).groups())  # type: ignore[union-attr]
    return Value(f"{value:.10g}", value)


def _tables(parts: Sequence[Part]) -> list[Table]:
    return [part for part in parts if isinstance(part, Table)]


def _plain(part: Part) -> dict[str, object]:
    if isinstance(part, str):
        return {"text": part}
    rows = [[value.shown for value in row] for row in part.rows]
    return {"title": part.title, "columns": [column.title for column in part.columns], "rows": rows}
