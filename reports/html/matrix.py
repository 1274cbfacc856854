"""The resilience matrix: a row per defense, a column per place an adversary can read, from the client to the server."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.places import Decided, Shown
from harness.results import CellResult
from harness.scoring.verdict import CONFIRMED_SUCCESSES


@dataclass(frozen=True)
class Entry:
    """What stands where a row and a column meet. ``key`` and ``run`` name the cell whose picture shows it."""

    kind: str
    rate: str = ""
    interval: str = ""
    attack: str = ""
    reason: str = ""
    run: str = ""
    key: str = ""

    @property
    def symbol(self) -> str:
        return wording.SYMBOLS[self.kind]

    @property
    def word(self) -> str:
        return wording.WORDS[self.kind]


@dataclass(frozen=True)
class Matrix:
    """``columns`` are (name, detail); ``rows`` are (defense, arguments, entries)."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, str, tuple[Entry, ...]], ...]


_UNTRIED = Entry("untried")


def strongest_matrices(places: Sequence[Decided]) -> list[Matrix]:
    """A matrix per setting; in each entry the strongest attack decides."""
    return [
        _matrix(title, members, lambda item: item.summary, _decided)
        for title, members in _by(places, lambda item: item.setting)
    ]


def attack_matrices(cells: Sequence[Shown]) -> list[Matrix]:
    """A matrix per setting and attack, where a setting has several attacks."""
    made = []
    for title, members in _by(cells, lambda item: item.setting):
        attacks = _by(members, lambda item: item.cell.attack)
        if len(attacks) > 1:
            made += [
                _matrix(f"{text.safe(attack, 40)} · {title}", own, lambda item: item.cell, _attacked)
                for attack, own in attacks
            ]
    return made


def _by(items: Iterable, name: Callable) -> list[tuple[str, list]]:
    groups: dict[str, list] = {}
    for item in items:
        groups.setdefault(name(item), []).append(item)
    return list(groups.items())


def _matrix(title: str, items: Sequence, place: Callable, entry: Callable) -> Matrix:
    taps = sorted({(place(item).surface is None, -(place(item).surface or 0), place(item).tap) for item in items})
    rows: dict[tuple[str, str], dict[str, Entry]] = {}
    for item in items:
        rows.setdefault((item.defense, item.arguments), {})[place(item).tap] = entry(item)
    heads = tuple(_head(None if other else -surface, tap) for other, surface, tap in taps)
    return Matrix(
        title, heads,
        tuple((*name, tuple(found.get(tap, _UNTRIED) for *_, tap in taps)) for name, found in rows.items()),
    )  # fmt: skip


def _head(surface: int | None, tap: str) -> tuple[str, str]:
    if surface is None:
        return f"tap {text.safe(tap, 20)}", "between the surfaces"
    return wording.SURFACES[surface], wording.SURFACE_DETAILS[surface]


def _decided(place: Decided) -> Entry:
    row, cell = place.summary, place.cell
    if all(standing.reason and not standing.informative for standing in row.attacks) and cell is None:
        return Entry("impossible", reason=text.safe(row.verdict_reason, 200))
    reason = text.headed(row.headline, row.verdict_reason)
    return Entry(row.verdict, *_rate(cell), text.safe(row.strongest or "", 40), reason, place.run.name, _key(cell))


def _attacked(shown: Shown) -> Entry:
    cell = shown.cell
    if cell.not_applicable_reason is not None:
        return Entry("impossible", reason=text.safe(cell.not_applicable_reason, 200))
    reason = text.safe(cell.verdict_reason, 200)
    return Entry(cell.verdict, *_rate(cell), text.safe(cell.attack, 40), reason, shown.run.name, _key(cell))


def _rate(cell: CellResult | None) -> tuple[str, str]:
    """The share that came back in words, and its interval."""
    rate, _, interval = ("" if cell is None else columns.success_rate(cell)).partition(" ")
    if cell is None or rate == text.MISSING:
        return "", ""
    # A leak by the lineup alone: beside it, a share near zero would look like a mistake.
    traces = cell.verdict == "leaks" and cell.confirmed < CONFIRMED_SUCCESSES
    words = f"traces, {rate} accurate" if traces else f"{rate} came back"
    return words, interval.strip("[]")


def _key(cell: CellResult | None) -> str:
    return (cell.key or "") if cell is not None else ""
