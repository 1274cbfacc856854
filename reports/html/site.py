"""The public board and the view of all runs: pages of all rows, and of each; what cards hold is data, never markup."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.base.kinds import EVERY, together
from harness.reports import columns, text
from harness.reports.columns import kinds_of
from harness.reports.html import wording
from harness.reports.html.cell_tables import cell_table, control_table, verdict_value
from harness.reports.html.page import make_page, render
from harness.reports.html.places import Decided, decided_places, shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, condensed, make, words
from harness.reports.html.tables import privacy_table
from harness.reports.html.verdict import Line
from harness.reports.text import at_most, event_of
from harness.results import CellResult
from harness.results.card import Card
from harness.scoring.strongest import over_places

# Rows may be of any kind of data.
_KIND = together(EVERY)
_COLUMNS = (
    ("surface", "where an adversary reads: 2 inside the client, 1 what leaves it, 0 what arrives at the server"),
    ("success", f"{_KIND.many} that the best attack brings back ({_KIND.success}), with its 95% interval"),
    ("lineup p", "how often true records would be this near if nothing leaked; a very small value is a leak by itself"),
    ("at most", "the limit of every attacker, by a theorem; none exists if no theorem covers the noise"),
    ("epsilon", "the smallest proven one that covers what is read there, at a delta of 1e-5, and whom it protects; "
                "none if nothing is proven"),
    ("accuracy", "of a model that was trained in the same federation with this defense, if there is one"),
    ("paper", "what the defense's paper says of this place, if its figure is known here: resists, or leaks"),
    ("tier", "what the attackers know at most. plain: neither the defense nor public data of the same kind. informed: "
             "both. tampering: both, and the server sends manipulated weights"),
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """Contents of the board's page; ``chance``: that noise alone makes a row leak; ``example``: a card's name."""

    headline: Sequence[Line]
    chance: str
    board: Table
    left_out: Sequence[str]
    example: str
    columns: Sequence[tuple[str, str]] = _COLUMNS


@dataclass(frozen=True)
class Row:
    """Contents of a row's page."""

    name: str
    title: str
    kind: str
    words: str
    facts: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    command: str


def make_site(cards: Sequence[Card], left_out: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file of the board by its path: pages and cards."""
    board = make(
        "board", "The board", _HEADS, [_entries(card) for card in cards],
        "A place is a defense on data, read at a surface or tap. Each row leads to its page.",
    )  # fmt: skip
    counted = over_places(
        (card.row, [one.result for one in card.cells]) for card in cards if kind_of(card) != "invalid"
    )
    skipped, chance = [text.safe(line, 300) for line in left_out], counted.words if counted else ""
    site = Site(_headline(cards), chance, board, skipped, cards[0].name)
    pages = {"index.html": render("site.html.j2", _KIND, site=site).encode()}
    for card in cards:
        kind = kinds_of(one.result for one in card.cells)
        pages[f"rows/{card.name}.html"] = render("row.html.j2", kind, row=_row(card)).encode()
        pages[f"cards/{card.name}.json"] = card.content()
    return pages


_HEADS = (
    Head("defense", choice=True), Head("verdict", choice=True), Head("data", choice=True),
    Head("surface", choice=True), Head("success [95%]", number=True), Head("lineup p", number=True),
    Head("at most", number=True), Head("epsilon", number=True), Head("accuracy", number=True),
    Head("paper", choice=True), Head("tier", choice=True), Head("model"), Head("suite", choice=True), Head("harness"),
)  # fmt: skip


def kind_of(card: Card) -> str:
    """The verdict; ``invalid`` where nothing may be claimed, ``impossible`` where nothing could be run."""
    if card.status == "unreliable":
        return "invalid"
    refused = all(one.result.not_applicable_reason is not None for one in card.cells)
    return "impossible" if refused else card.row.shown


def _best(card: Card) -> CellResult:
    """The cell of the attack that brings most back."""
    return max((one.result for one in card.cells), key=lambda cell: (bool(cell.asr), cell.outcomes.success))


def _named(card: Card) -> str:
    return " ".join(filter(None, wording.label(card.row.defense, card.row.defense_args)))


def _bound(card: Card) -> tuple[str, float | None]:
    cell = _best(card)
    event = event_of(cell, "strict image")
    if event is None or event.ceiling is None:
        return ("none exists" if cell.bound and cell.bound.theorem is None else text.MISSING), None
    return text.percent_up(event.ceiling), event.ceiling


def _epsilon(card: Card) -> tuple[str, float | None]:
    if card.statement is None or card.statement.epsilon is None:
        return "none", None
    epsilon = card.statement.epsilon
    return f"{text.epsilon(epsilon)} ({text.safe(card.statement.unit or '?', 12)})", epsilon


def _entries(card: Card) -> tuple[Value, ...]:
    row, best, accuracy = card.row, _best(card), card.training.accuracy if card.training else None
    rate = best.asr.get("strict")
    chief = next((one.result for one in card.cells if one.result.attack == row.strongest), best)
    lineup = chief.tested_p
    versions, (proven, epsilon) = card.environment.get("versions"), _epsilon(card)
    return (
        Value(text.safe(_named(card), 200), link=f"rows/{card.name}.html"),
        verdict_value(kind_of(card)), words(row.dataset, 40),
        Value(wording.surface(row), -1.0 if row.surface is None else float(row.surface)),
        Value(text.rate(rate), rate.rate if rate else None), Value(text.p_value(lineup), lineup), Value(*_bound(card)),
        Value(proven, epsilon, "nothing" if text.too_large(epsilon) else ""),
        Value(text.percent(accuracy), accuracy), words(_paper(card)), words(row.tier),
        words(row.model, 40), words(row.suite, 24),
        words(versions.get("harness") if isinstance(versions, dict) else None, 24),
    )  # fmt: skip


def _paper(card: Card) -> str | None:
    return card.reported and {"Y": "resists", "N": "leaks"}[card.reported.resists]


def _headline(cards: Sequence[Card]) -> list[Line]:
    """Return how many rows say what, and how many contradict their paper."""
    counts = Counter(kind_of(card) for card in cards)
    lines = [
        Line(kind, f"{counts[kind]} of {wording.plural(len(cards), 'row')}: {said}.")
        for kind, said in (
            ("leaks", "private data, or traces of them, come back"), ("resilient", "every attack was withstood"),
            ("inconclusive", "the evidence supports neither verdict"), ("impossible", "no attack could be run"),
            ("invalid", "of runs that must not be used"),
        )
        if counts[kind]
    ]  # fmt: skip
    fallen = sum(kind_of(card) == "leaks" and _paper(card) == "resists" for card in cards)
    if fallen:
        lines.append(Line("leaks", f"{wording.plural(fallen, 'row')} of these: the paper says that nothing does."))
    return lines


def _threads(count: object) -> str:
    return wording.plural(count, "thread") if isinstance(count, int) else "threads not stated"


def _row(card: Card) -> Row:
    row, kind = card.row, kind_of(card)
    run = RunData(
        card.name, Path(), dict(card.environment), card.status == "evaluated", card.reason,
        cells=[one.result for one in card.cells], summary=[row],
    )  # fmt: skip
    tables = [cell_table(shown_cells([run])), control_table([run]), privacy_table([run], shown_cells([run]))]
    said = f"{wording.WORDS[kind]}: {card.reason or text.headed(row)}"
    return Row(
        card.name, text.safe(f"{_named(card)} on {row.dataset}, {wording.where(row)}", 200), kind,
        text.safe(said, 600), _facts(card), [condensed(made) for made in tables if made.rows],
        "\n".join(text.safe(line, 2000) for line in card.command.splitlines()),
    )  # fmt: skip


def _facts(card: Card) -> list[tuple[str, str]]:
    row, trained, statement = card.row, card.training, card.statement
    bounds = (at_most(one.result.bound, event_of(one.result, "strict image")) for one in card.cells if one.result.bound)
    bound = next(bounds, "")
    versions = card.environment.get("versions")
    known = versions if isinstance(versions, dict) else {}
    facts = [
        ("attacked", wording.setting(row)),
        ("federation", _federation(row.cohort)), ("tier", row.tier), ("suite", row.suite or "attacks named one by one"),
        ("any attacker", bound),
        ("epsilon", f"{_epsilon(card)[0]} at delta {statement.delta or 0:g}: {statement.notes}" if statement
                    else "none covers what is read there"),
        ("accuracy", f"{text.percent(trained.accuracy)} of {trained.test_examples} test examples after "
                     f"{wording.plural(trained.rounds, 'round')}" if trained else ""),
        ("paper", f"{card.reported.source}: {_paper(card)}, on {card.reported.data}" if card.reported else ""),
        ("made with", ", ".join(f"{name} {known[name]}" for name in ("harness", "torch", "numpy") if name in known)
                      + f", {_threads(card.environment.get('threads'))}, {card.environment.get('machine')}"
                      + (f" ({card.environment['processor']})" if card.environment.get("processor") else "")),
        ("hash", card.hash),
    ]  # fmt: skip
    return [(what, text.safe(said, 700)) for what, said in facts if said]


def _federation(cohort: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in cohort.items())


# --------------------------------------------------------------------------------------
# All runs in one table: what was judged where, how it moved from run to run, and a link to each run's report.


_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 24
_VIEW_HEADS = (
    Head("run", choice=True), Head("written"), Head("verdict", choice=True), Head("defense", choice=True),
    Head("surface", choice=True), Head("strongest attack", choice=True), Head("success [95%]", number=True),
    Head("history"), Head("setting", choice=True, wide=True), Head("suite", choice=True), Head("version", choice=True),
    Head("why", long=True),
)  # fmt: skip


def make_view(runs: Sequence[RunData]) -> dict[str, bytes]:
    """The pages by their paths: ``index.html``, and a report of each run below ``reports/``."""
    runs = sorted(runs, key=lambda run: run.written or 0.0)
    places = decided_places(runs)
    links = {run.name: f"reports/{number}.html" for number, run in enumerate(runs, 1)}
    rows = [_view_row(place, links, _history(place, places)) for place in reversed(places)]
    table = make(
        "runs", "Every run, the latest first", _VIEW_HEADS, rows,
        "A row is a defense at one place in one run. History: success of the strongest attack there, from run to run.",
    )  # fmt: skip
    left_out = [f"{run.name}: {line}" for run in runs for line in (*run.told, *run.left_out)]
    kind = columns.kinds_of(cell for place in places for cell in place.cells)
    index = render("view.html.j2", kind, table=table, left_out=left_out, headline=_view_headline(runs, table))
    pages = {links[run.name]: make_page([run], []).encode() for run in runs}
    return {"index.html": index.encode(), **pages}


def _view_headline(runs: Sequence[RunData], table: Table) -> str:
    return f"{wording.plural(len(runs), 'run')}, {wording.plural(len(table.rows), 'verdict')}"


def _view_row(place: Decided, links: dict[str, str], history: Value) -> tuple[Value, ...]:
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
        words(place.why),
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
