"""What is said of one place in words: what was found out there, and never more."""

from collections.abc import Sequence

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.places import Decided
from harness.results import AttackStanding, CellResult
from harness.scoring.headline import TELLS, UNFIT


def said(place: Decided) -> str:
    """A few words that go on after the defense's name, such as ``withstood 2 attacks, ...``."""
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
    return f"{who} {there}"


def _fails(cell: CellResult) -> str:
    failed = {check.name for check in cell.controls if not check.held}
    return "through this defense even without its noise" if failed == {"positive_sigma0"} else "on this model"


def strength(place: Decided) -> tuple[bool, bool, int]:
    """How much a place says for its defense: that only who knows it came through, whether somebody informed was
    withstood, and how many attacks were."""
    withstood, leaking = _withstood(place), [one for one in place.summary.attacks if one.verdict == "leaks"]
    informed = any(one.tier != "plain" for one in withstood)
    return all(one.tier != "plain" for one in leaking), informed, len(withstood)


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
