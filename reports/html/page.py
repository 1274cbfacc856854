"""The page: everything a report says, rendered into one file that loads nothing and runs no script but its own."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.reports.html import chart, commands, wording
from harness.reports.html.chart import Chart
from harness.reports.html.distributions import distribution_chart
from harness.reports.html.gallery import Gallery, gallery
from harness.reports.html.matrix import Matrix, attack_matrices, strongest_matrices
from harness.reports.html.places import Shown, decided_places, grouped, shown_cells
from harness.reports.html.runs import RunData
from harness.reports.html.success import success_chart
from harness.reports.html.table import Table
from harness.reports.html.tables import all_tables, unread
from harness.reports.html.taus import tau_chart
from harness.reports.html.theorem import theorem_chart
from harness.reports.html.trend import TrendSection, trend_section
from harness.reports.html.utility import utility_chart
from harness.reports.html.verdict import Overview, verdict

_MOST_DRAWN = 2_500_000


@dataclass(frozen=True)
class Figures:
    """The figures of one setting and attack."""

    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Page:
    """All that the template shows, in its order."""

    verdict: Overview
    matrices: list[Matrix]
    by_attack: list[Matrix]
    gallery: Gallery
    figures: list[Figures]
    utility: Chart | None
    trend: TrendSection | None
    tables: dict[str, Table]
    papers: list[Table]
    command: str
    evaluate: list[str]
    left_out: list[str] = field(default_factory=list)


def make_page(runs: Sequence[RunData], earlier: Sequence[RunData] = ()) -> str:
    """The report as HTML; of ``earlier`` runs only the trend is shown."""
    cells, places = shown_cells(runs), decided_places(runs)
    groups = grouped(cells)
    tables, figures = all_tables(runs, earlier), _all_figures(groups)
    page = Page(
        verdict(runs, places), strongest_matrices(places), attack_matrices(cells), gallery(places, cells),
        figures,
        utility_chart(runs, places), trend_section([*earlier, *runs]),
        {table.name: table for table in tables if not table.name.startswith("paper-")},
        [table for table in tables if table.name.startswith("paper-")],
        commands.report_command(runs), commands.evaluate_commands(cells),
    )  # fmt: skip
    page.left_out.extend(f"{run.name}: {reason}" for run in [*unread(earlier), *runs] for reason in run.left_out)
    page.left_out.extend(page.gallery.left_out)
    if len(groups) > len(figures):
        more = wording.plural(len(groups) - len(figures), "more group")
        page.left_out.append(f"figures of {more} of cells; the tables have their numbers")
    return _render(page)


def _all_figures(groups: dict[tuple[str, str], list[Shown]]) -> list[Figures]:
    """Figures of one group after another, until the page has enough of them."""
    made: list[Figures] = []
    drawn = 0
    for number, (named, members) in enumerate(groups.items()):
        if drawn > _MOST_DRAWN:
            break
        made.append(_figures(number, named, members))
        drawn += sum(len(one.picture) for one in made[-1].charts)
    return made


def _figures(number: int, named: tuple[str, str], members: Sequence[Shown]) -> Figures:
    setting, attack = named
    rows, made = chart.lines(members), commands.evaluate_commands(members)
    title = f"{wording.text.safe(attack, 40)} · {setting}"
    drawn = (
        draw(f"chart-{number}-{kind}", title, rows, made)
        for kind, draw in (
            ("success", success_chart),
            ("theorem", theorem_chart),
            ("spread", distribution_chart),
            ("tau", tau_chart),
        )
    )
    return Figures(title, tuple(found for found in drawn if found is not None))


def _render(page: Page) -> str:
    environment = Environment(
        loader=PackageLoader("harness.reports.html"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style, script = _own("report.css"), _own("report.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template("report.html.j2").render(
        page=page, style=Markup(style), script=Markup(script), policy=policy, meanings=wording.MEANINGS,
        symbols=wording.SYMBOLS, words=wording.WORDS,
    )  # fmt: skip


def _own(name: str) -> str:
    return files("harness.reports.html").joinpath("templates", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """What the page's policy lets through: this very text and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
