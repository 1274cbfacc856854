"""The verdict: a line in words for each thing that was found out, and how far it can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.places import GRAVITY, Decided, inward
from harness.reports.html.run_data import RunData
from harness.results import AttackStanding, CellResult
from harness.results.record import UNDEFENDED
from harness.scoring.strongest import over_places
from harness.scoring.summarise import TELLS, UNFIT
from harness.scoring.verdict import VICTIMS_NEEDED

# What is said of one place in words: what was found out there, and never more.


def said(place: Decided) -> str:
    """A few words that go on after the defense's name, such as ``withstood 2 attacks, ...``."""
    return "; ".join(filter(None, (_found(place), text.after_rounds(place.summary))))


def _found(place: Decided) -> str:
    if place.kind == "invalid":
        return f"no verdict, as the run is {place.run.state}"
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
    """Why neither may be claimed: an attack that does not work says nothing of the defense."""
    row = place.summary
    reason = text.safe(row.verdict_reason, 200)
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
    """How much a place says for its defense: that only who knows it came through, whether somebody informed was
    withstood, and how many attacks were."""
    withstood, leaking = _withstood(place), [one for one in place.summary.attacks if one.verdict == "leaks"]
    informed = any(one.tier != "plain" for one in withstood)
    spared = [one for one in place.summary.attacks if one.skipped]
    return all(one.tier != "plain" for one in [*leaking, *spared]), informed, len(withstood)


def tried(places: Sequence[Decided]) -> str:
    """How many attacks were tried at all, and what the strongest of their attackers know."""
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
    return f"{wording.plural(len(names), 'attack')} tried ({listed}): {who}."


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
        f"Run {run.name} is {run.state.upper()} and its verdicts must not be used: {run.fault}"
        for run in runs
        if run.cells and not run.valid
    ]
    notes = [f"Run {run.name}: {line}." for run in runs for line in run.told]
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
    """By the defense's name, with its arguments where another has the same name."""
    variants: dict[str, set[str]] = {}
    for place in places:
        variants.setdefault(place.defense, set()).add(place.arguments)
    found: dict[str, list[Decided]] = {}
    for place in places:
        name = place.defense if len(variants[place.defense]) == 1 else f"{place.defense} {place.arguments}".strip()
        found.setdefault(name, []).append(place)
    return {name: sorted(own, key=inward) for name, own in found.items()}


def _is_told(place: Decided) -> bool:
    return bool(place.summary.identifies) and place.kind != "invalid"


def _worst(own: Sequence[Decided]) -> str:
    return min((place.kind for place in own), key=GRAVITY.index)


def _undefended(own: Sequence[Decided]) -> Line:
    kind = _worst(own)
    words = "private data come back" if kind == "leaks" else _least(own, kind)
    return Line(kind, f"Without a defense, {words}.")


def _leaking(found: dict[str, list[Decided]], defenses: int) -> list[Line]:
    """Where a single one leaks, and to whom; of several only which."""
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
    """Of what may be said of a defense at its places, what claims least for it."""
    return said(min((place for place in own if place.kind == kind), key=strength))


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return wording.join(list(names) if more <= 0 else [*names[:_MOST_NAMES], f"{more} more"])
