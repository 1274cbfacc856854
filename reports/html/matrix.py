"""The matrix: for each defense what somebody who reads here or there was seen to find out, and what is promised."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.reports import columns, text
from harness.reports.html import verdict as evidence
from harness.reports.html import wording
from harness.reports.html.places import Decided, inward
from harness.results import CellResult, Control, Statement
from harness.scoring.verdict import CONFIRMED_SUCCESSES

# What is promised of what an adversary reads at a place, in a few words beside its verdict.


@dataclass(frozen=True)
class Promise:
    """``words``: the epsilon that holds there, or that nothing does; ``detail``: what else is claimed or covered."""

    words: str
    detail: str = ""


_NOTHING = "nothing promised"


def promise(place: Decided) -> Promise:
    """The weakest promise that covers the place; one about something else is none."""
    cell = next((cell for cell in place.cells if cell.not_applicable_reason is None), None)
    if cell is None:
        return Promise("")
    proven = [one for one in cell.privacy if one.epsilon is not None]
    here = [one for one in proven if one.covers is not False]
    if here:
        weakest = max(here, key=_epsilon)
        said, tag = f"epsilon {text.epsilon(_epsilon(weakest))}", text.safe(weakest.guarantee, 40)
        if text.too_large(_epsilon(weakest)):
            return Promise(_NOTHING, ", ".join([said, tag, *_claim(here)]))
        told = text.told(weakest).removeprefix(", ")
        return Promise(said, ", ".join(filter(None, [tag, told, *_claim(here)])))
    if proven:
        other = min(proven, key=_epsilon)
        elsewhere = f"epsilon {text.epsilon(_epsilon(other))} holds, but not of what is read here"
        return Promise(_NOTHING, ", ".join([elsewhere, *_claim(proven)]))
    return Promise(_NOTHING, ", ".join(_claim(cell.privacy)))


def _epsilon(statement: Statement) -> float:
    return statement.epsilon or 0.0


def _claim(statements: list[Statement]) -> list[str]:
    """What the defense's paper, or its framework, claims, whether or not it holds."""
    claimed = [one.claimed_epsilon for one in statements if one.claimed_epsilon is not None]
    return [f"claimed is {min(claimed):.3g}"] if claimed else []


@dataclass(frozen=True)
class Entry(wording.Marked):
    """One place, or several of which all of this is true.

    ``said``: the verdict in words; ``rate`` and ``interval``: how much came back; ``tried``: (who, attacks with what
    each found); ``controls``: how many held, ``failed``: those that did not; ``run`` and ``key`` name the cell whose
    picture shows it.
    """

    kind: str
    said: str
    rate: str
    interval: str
    tells: bool
    promise: Promise
    tried: tuple[tuple[str, str], ...]
    controls: str
    failed: tuple[str, ...]
    where: tuple[str, ...] = ()
    run: str = ""
    key: str = ""


@dataclass(frozen=True)
class Row:
    """A defense: ``units`` says in a sentence what it does to what."""

    defense: str
    arguments: str
    units: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Matrix:
    """``title`` says what all rows have in common; ``refused``: attacks that could not be run, and why.

    ``claims``: of each framework's filter and each view what is claimed, what is proven, and why.
    """

    title: str
    rows: tuple[Row, ...]
    claims: tuple[str, ...]
    refused: tuple[str, ...]


def matrices(places: Sequence[Decided]) -> list[Matrix]:
    """A matrix per setting; at each place the strongest attack decides."""
    settings: dict[str, list[Decided]] = {}
    for place in places:
        settings.setdefault(place.setting, []).append(place)
    return [_matrix(title, members) for title, members in settings.items()]


def _matrix(title: str, members: Sequence[Decided]) -> Matrix:
    rows: dict[tuple[str, str], list[Decided]] = {}
    for place in sorted(members, key=inward):
        rows.setdefault((place.defense, place.arguments), []).append(place)
    # In the order in which they were asked for.
    order = list(dict.fromkeys((place.defense, place.arguments) for place in members))
    made = tuple(Row(*name, _units(rows[name]), _folded(map(_entry, rows[name]))) for name in order)
    return Matrix(title, made, _claims(members), _refused(members))


def _units(own: Sequence[Decided]) -> str:
    return next((text.safe(cell.units, 400) for place in own for cell in place.cells if cell.units), "")


def _claims(own: Sequence[Decided]) -> tuple[str, ...]:
    cells = [cell for place in own for cell in place.cells]
    return tuple(text.claimed_and_proven(one for cell in cells for one in cell.privacy))


def _folded(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Places that differ in nothing but where they are become one entry."""
    alike: dict[Entry, Entry] = {}
    for entry in entries:
        same = replace(entry, where=(), run="", key="")
        first = alike.get(same)
        alike[same] = entry if first is None else replace(first, where=first.where + entry.where)
    return tuple(alike.values())


def _entry(place: Decided) -> Entry:
    checks = [(cell, check) for cell in place.cells for check in cell.controls]
    failed = dict.fromkeys(_failure(cell, check) for cell, check in checks if not check.held)
    counted = _counted([check for _, check in checks])
    cell = place.cell
    said = evidence.said(place).removeprefix("not run: ")
    return Entry(
        place.kind, said, *_rate(cell), bool(place.summary.identifies), promise(place), _tried(place), counted,
        tuple(failed), (wording.place(place.summary),), place.run.name, (cell and cell.key) or "",
    )  # fmt: skip


def _counted(checks: Sequence[Control]) -> str:
    """How many controls held of those that were run."""
    ran = [check for check in checks if not check.is_own]
    said = [f"{sum(check.held for check in ran)} of {wording.plural(len(ran), 'control')} held"] if ran else []
    own = len(checks) - len(ran)
    said += [f"{own} not run, as a cell without a defense is its own"] if own else []
    return "; ".join(said)


def _failure(cell: CellResult, check: Control) -> str:
    return text.safe(f"{check.name} of {cell.attack}: {check.detail}", 160)


def _tried(place: Decided) -> tuple[tuple[str, str], ...]:
    """What each attack found, by what its attacker knows."""
    found: dict[str, list[str]] = {}
    for cell in place.cells:
        who = columns.unrun(cell) if cell.not_applicable_reason is not None else cell.tier
        found.setdefault(who, []).append(f"{text.safe(cell.attack, 40)} {_found(cell)}".strip())
    order = ("plain", "informed", "tampering", "not whole", "not run", "skipped")
    return tuple((who, ", ".join(found[who])) for who in order if who in found)


def _found(cell: CellResult) -> str:
    if cell.not_applicable_reason is not None:
        return ""
    if cell.identified is not None:
        return f"tells {text.percent(cell.identified.rate)}"
    return columns.success_rate(cell).partition(" ")[0]


def _refused(members: Sequence[Decided]) -> tuple[str, ...]:
    """Each reason once; where nothing at all could be run, it stands at the place itself."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for place in members:
        for cell in place.refused if place.kind != "impossible" else ():
            attack = f"{text.safe(cell.attack, 40)} {columns.unrun(cell)}"
            named = attack, text.safe(cell.not_applicable_reason or "", 200)
            reasons.setdefault(named, {})[place.defense] = None
    everyone = len({place.defense for place in members})
    return tuple(
        f"{attack}{'' if len(found) == everyone else f' against {wording.join(list(found))}'}: {reason}"
        for (attack, reason), found in reasons.items()
    )


def _rate(cell: CellResult | None) -> tuple[str, str]:
    """The share that came back in words, and its interval."""
    rate, _, interval = ("" if cell is None else columns.success_rate(cell)).partition(" ")
    if cell is None or rate == text.MISSING:
        return "", ""
    # A leak by the lineup alone: beside it, a share near zero would look like a mistake.
    traces = cell.verdict == "leaks" and cell.confirmed < CONFIRMED_SUCCESSES
    words = f"traces (p {text.p_value(cell.lineup.p_value)}), {rate} accurate" if traces else f"{rate} came back"
    return words, interval.strip("[]").replace("-", "–")
