"""The verdict in words and its matrix: what each defense was seen to let out, and how far that can be trusted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.places import GRAVITY, Decided, inward
from harness.reports.html.run_data import RunData
from harness.results import AttackStanding, CellResult, Control, Statement
from harness.results.record import UNDEFENDED
from harness.scoring.strongest import over_places
from harness.scoring.summarise import TELLS, UNFIT
from harness.scoring.verdict import CONFIRMED_SUCCESSES, VICTIMS_NEEDED

# What is said of one place in words: what was found out there, and never more.


def said(place: Decided) -> str:
    """A few words that go on after the defense's name, such as ``withstood 2 attacks, ...``."""
    return "; ".join(filter(None, (_found(place), text.after_rounds(place.summary))))


def _found(place: Decided) -> str:
    if place.kind == "invalid":
        return place.why
    if place.kind == "impossible":
        return f"not run: {text.safe(place.refused[0].not_applicable_reason or '', 200)}"
    if place.kind == "inconclusive" and place.summary.headline.startswith(TELLS):
        return f"an attack {text.safe(place.summary.headline, 120)}"
    if place.kind == "inconclusive":
        return f"we could not tell: {undecided(place)}"
    row = place.summary
    words = text.safe(row.headline, 120)
    if place.kind == "leaks":
        return words or "fell to an attack"
    withstood = _withstood(place)
    if not withstood:
        return UNFIT
    count = wording.plural(len(withstood), "attack")
    if not words:
        return f"withstood {count}"
    return words if count in words else f"{words} ({count})"


def undecided(place: Decided) -> str:
    """Return why neither a leak nor resilience may be claimed: an attack that does not work says nothing of the
    defense."""
    row = place.summary
    reason = text.safe(text.reason(row.verdict_reason), 200)
    if row.identifies:
        reason = reason.partition("; ")[2] or reason
    rebuilding = [one for one in row.attacks if one.identifies is None]
    failing = [cell for cell in place.cells if cell.identified is None and cell.not_applicable_reason is None]
    if not failing or any(one.informative for one in rebuilding):
        # What was not found is no news where nothing may be concluded from it.
        return reason.removeprefix("no attack leaks, but ")
    where = {_fails(cell) for cell in failing}
    there = where.pop() if len(where) == 1 else "here"
    who = "the attack does not work" if len(failing) == 1 else f"none of the {len(failing)} attacks works"
    alone = place.run.judged.works_alone if place.run.judged else None
    if alone and there == _ON_MODEL:
        took = f"{wording.plural(row.local_steps, 'step')} of {wording.plural(row.batch_size, 'example')}"
        return f"{who} on {took}, though {text.safe(alone, 40)} works on one step on one example"
    return f"{who} {there}"


_ON_MODEL = "on this model"


def _fails(cell: CellResult) -> str:
    failed = {check.name for check in cell.controls if not check.held}
    return "through this defense even without its noise" if failed == {"positive_sigma0"} else _ON_MODEL


def strength(place: Decided) -> tuple[bool, bool, int]:
    """Return how much a place says for its defense: that only who knows it came through, whether somebody informed was
    withstood, and how many attacks were."""
    withstood, leaking = _withstood(place), [one for one in place.summary.attacks if one.verdict == "leaks"]
    informed = any(one.tier != "plain" for one in withstood)
    spared = [one for one in place.summary.attacks if one.skipped]
    return all(one.tier != "plain" for one in [*leaking, *spared]), informed, len(withstood)


def tried(places: Sequence[Decided]) -> str:
    """Return how many attacks were tried at all, what the strongest of their attackers know, and which of them no
    headline counts where it counts who was withstood."""
    ran = [one for place in places for one in place.cells if one.not_applicable_reason is None]
    names = list(dict.fromkeys(text.safe(cell.attack, 40) for cell in ran))
    if not names:
        return "No attack could be run."
    listed = wording.join(names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"])
    informed = [cell for cell in ran if cell.tier != "plain"]
    known = "the defense and its noise" if any(cell.noise for cell in informed or ran) else "the defense"
    if len(names) == 1:
        who = f"its attacker {'knows' if informed else 'does not know'} {known}"
    else:
        who = f"among them attackers who know {known}" if informed else f"none of the attackers knows {known}"
    said = f"{wording.plural(len(names), 'attack')} tried ({listed}): {who}."
    held = [place for place in places if place.kind == "resilient"]
    there = [{text.safe(one.attack, 40) for one in place.cells if one.not_applicable_reason is None} for place in held]
    withstood = [{text.safe(one.attack, 40) for one in _withstood(place)} for place in held]
    others = []
    for name in names:
        ran = [name not in won for all_, won in zip(there, withstood, strict=True) if name in all_]
        if any(ran):
            others.append(name if all(ran) else f"{name} (at {sum(ran)} of {len(ran)} places)")
    return said + (f" Not counted as withstood, as unfit or undecided: {wording.join(others)}." if others else "")


def _withstood(place: Decided) -> list[AttackStanding]:
    return [one for one in place.summary.attacks if one.was_withstood]


_MOST_NAMES, _MOST_LINES = 4, 4


@dataclass(frozen=True)
class Line(wording.Marked):
    """A sentence of the headline, and the kind of verdict it speaks of."""

    kind: str
    words: str


@dataclass(frozen=True)
class Overview:
    """``headline``: line by line; ``tried``: how many attacks by whom; ``notes`` below it; ``warnings`` above it."""

    headline: tuple[Line, ...]
    tried: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def verdict(runs: Sequence[RunData], places: Sequence[Decided]) -> Overview:
    """The verdict over all runs."""
    warnings = [
        f"Run {run.name} is {run.state.upper()} and its {'verdicts' if run.cells else 'estimates'} must not be used: "
        f"{run.fault}"
        for run in runs
        if not run.valid and (run.cells or (run.judged and run.judged.estimates))
    ]
    notes = [f"Run {run.name}: {line}." for run in runs for line in (*run.told, *run.unproven)]
    ran = [place.summary.victims for place in places if place.kind not in ("impossible", "invalid")]
    victims = max(ran, default=VICTIMS_NEEDED)
    if victims < VICTIMS_NEEDED:
        few = "one victim is" if victims == 1 else f"{victims} victims are"
        notes.append(f"Nothing can be resilient: {few} too few for that ({VICTIMS_NEEDED} needed).")
    counted = over_places(
        (place.summary, place.cells) for place in places if place.kind not in ("impossible", "invalid")
    )
    if counted is not None:
        notes.append(counted.words)
    judged = [Line(kind, words) for run in runs if run.judged for kind, words in run.judged.headline]
    lines = judged + (_headline(places) if places or not judged else [])
    if judged:  # what a check finds in order does not stand above a leak
        lines.sort(key=lambda line: {"invalid": 0, "leaks": 0, "resilient": 2}.get(line.kind, 1))
    return Overview(tuple(lines), tried(places) if places else "", tuple(notes), tuple(warnings))


def _headline(places: Sequence[Decided]) -> list[Line]:
    if not places:
        return [Line("untried", "No attack was evaluated in these runs, so nothing can be said about leakage.")]
    found = _by_name(places)
    told = [name for name, own in found.items() if name != UNDEFENDED and any(_is_told(place) for place in own)]
    lines = [_undefended(found.pop(UNDEFENDED))] if UNDEFENDED in found else []
    for kind in GRAVITY:
        some = {name: own for name, own in found.items() if _worst(own) == kind}
        lines += _leaking(some, len(found)) if kind == "leaks" else _alike(kind, some)
    if told:
        words = f"Behind {_names(told)}, an attacker who is shown the truth among look-alikes identifies it."
        lines.append(Line("identifies", words))
    return lines


def _by_name(places: Sequence[Decided]) -> dict[str, list[Decided]]:
    """By the defense's name, with its arguments where another has the same name; no defense is one and the same."""
    variants: dict[str, set[str]] = {}
    for place in places:
        variants.setdefault(place.defense, set()).add(place.arguments)
    found: dict[str, list[Decided]] = {}
    for place in places:
        alone = place.defense == UNDEFENDED or len(variants[place.defense]) == 1
        name = place.defense if alone else f"{place.defense} {place.arguments}".strip()
        found.setdefault(name, []).append(place)
    return {name: sorted(own, key=inward) for name, own in found.items()}


def _is_told(place: Decided) -> bool:
    return bool(place.summary.identifies) and place.kind != "invalid"


def _worst(own: Sequence[Decided]) -> str:
    return min((place.kind for place in own), key=GRAVITY.index)


def _undefended(own: Sequence[Decided]) -> Line:
    kind = _worst(own)
    seen = any(place.kind == kind and place.cell and place.cell.confirmed >= CONFIRMED_SUCCESSES for place in own)
    come = "private data come back" if seen else "traces of private data come back"
    words = come if kind == "leaks" else _least(own, kind)
    return Line(kind, f"Without a defense, {words}.")


def _leaking(found: dict[str, list[Decided]], defenses: int) -> list[Line]:
    """Return where a single defense leaks, and to whom. Return only their names where several leak."""
    if not found:
        return []
    if len(found) > 1:
        return [Line("leaks", f"{len(found)} of {defenses} defenses leak somewhere: {_names(list(found))}.")]
    ((name, own),) = found.items()
    where = dict.fromkeys(wording.where(place.summary) for place in own if place.kind == "leaks")
    return [Line("leaks", f"{name} leaks {wording.join(list(where))}: it {_least(own, 'leaks')}.")]


def _alike(kind: str, found: dict[str, list[Decided]]) -> list[Line]:
    """A line for all of whom the same may be said."""
    alike: dict[str, list[str]] = {}
    for name, own in found.items():
        alike.setdefault(_least(own, kind), []).append(name)
    lines = [Line(kind, _SENTENCES[kind].format(_names(names), words)) for words, names in alike.items()]
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], Line(kind, f"And {more} more, each for a reason of its own.")]


_SENTENCES = {
    "inconclusive": "About {}, {}.", "resilient": "{} {}.", "impossible": "{}: {}.", "invalid": "{}: {}.",
}  # fmt: skip


def _least(own: Sequence[Decided], kind: str) -> str:
    """Return what claims least for a defense, of what may be said of it at its places."""
    return said(min((place for place in own if place.kind == kind), key=strength))


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return wording.join(list(names) if more <= 0 else [*names[:_MOST_NAMES], f"{more} more"])


# --------------------------------------------------------------------------------------
# The matrix: for each defense what somebody who reads here or there was seen to find out, and what is promised.


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
            return Promise(_NOTHING, "; ".join([said, tag, *_claim(here)]))
        told = text.told(weakest).removeprefix(", ")
        return Promise(said, ", ".join(filter(None, [tag, told, *_claim(here)])))
    if proven:
        least = min(map(_epsilon, proven))
        elsewhere = f"epsilon {least:.3g} holds, but not of what is read here{text.too_large(least)}"
        return Promise(_NOTHING, "; ".join([elsewhere, *_claim(proven)]))
    return Promise(_NOTHING, ", ".join(_claim(cell.privacy)))


def _epsilon(statement: Statement) -> float:
    return statement.epsilon or 0.0


def _claim(statements: list[Statement]) -> list[str]:
    """Return what the defense's paper, or its framework, claims, whether or not it holds."""
    claimed = [one.claimed_epsilon for one in statements if one.claimed_epsilon is not None]
    return [f"claimed epsilon {min(claimed):.3g}"] if claimed else []


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
    told = said(place).removeprefix("not run: ")
    return Entry(
        place.kind, told, *_rate(cell), bool(place.summary.identifies), promise(place), _tried(place), counted,
        tuple(failed), (wording.place(place.summary),), place.run.name, (cell and cell.key) or "",
    )  # fmt: skip


def _counted(checks: Sequence[Control]) -> str:
    """Return how many controls held of those that were run."""
    ran = [check for check in checks if not (check.is_own or check.is_untested)]
    said = [f"{sum(check.held for check in ran)} of {wording.plural(len(ran), 'control')} held"] if ran else []
    untested = sum(check.is_untested for check in checks)
    said += [f"{untested} could not be tested"] if untested else []
    own = len(checks) - len(ran) - untested
    said += [f"{own} not run: without a defense this row is its own control"] if own else []
    return "; ".join(said)


def _failure(cell: CellResult, check: Control) -> str:
    return text.safe(f"{check.name} of {columns.attacker(cell)}: {check.detail}", 160)


def _tried(place: Decided) -> tuple[tuple[str, str], ...]:
    """Return what each attack found, by what its attacker knows."""
    found: dict[str, list[str]] = {}
    for cell in place.cells:
        who = columns.unrun(cell) if cell.not_applicable_reason is not None else cell.tier
        found.setdefault(who, []).append(f"{columns.attacker(cell)} {_success(cell)}".strip())
    order = ("plain", "informed", "tampering", "not whole", "not run", "skipped")
    return tuple((who, ", ".join(found[who])) for who in order if who in found)


def _success(cell: CellResult) -> str:
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
            attack = f"{columns.attacker(cell)} {columns.unrun(cell)}"
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
