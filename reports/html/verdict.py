"""The verdict: a headline in words, which defense leaks where at a glance, and how far it can be trusted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.places import Decided
from harness.reports.html.runs import RunData
from harness.scoring.verdict import VICTIMS_NEEDED

_UNDEFENDED = "none"
_GRAVITY = {"leaks": 0, "inconclusive": 1, "resilient": 2}


@dataclass(frozen=True)
class Spot:
    """What was seen of one defense at one place: its worst verdict, and in how many of its cases, where not in all."""

    kind: str
    share: str = ""


@dataclass(frozen=True)
class DefenseLine:
    """One defense: its worst verdict anywhere, and a spot per place."""

    defense: str
    kind: str
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class Overview:
    """``headline`` in one line; ``lines`` of the overview, a column for each of ``places``; ``notes`` below it;
    ``warnings`` that stand above all of it."""

    headline: str
    places: tuple[str, ...]
    lines: tuple[DefenseLine, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def verdict(runs: Sequence[RunData], places: Sequence[Decided]) -> Overview:
    """The verdict over all runs."""
    warnings = [
        f"Run {run.name} is invalid and its verdicts must not be used: "
        f"{text.safe(run.valid_reason or 'a negative control failed', 300)}"
        for run in runs
        if run.cells and not run.valid
    ]
    names = tuple(dict.fromkeys(_where(place) for place in sorted(places, key=_from_the_client_on)))
    by_defense: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        by_defense[place.defense][_where(place)].append(place.summary.verdict)
    lines = [_line(defense, [found[name] for name in names]) for defense, found in by_defense.items()]
    notes = []
    if shares := [spot.share for line in lines for spot in line.spots if spot.share]:
        notes.append(f"{shares[0]}: in so many of the cases below, which differ in dataset, network or settings.")
    victims = max((place.summary.victims for place in places), default=VICTIMS_NEEDED)
    if victims < VICTIMS_NEEDED:
        notes.append(
            f"Nothing can be resilient here: {victims} victims are too few to show resilience ({VICTIMS_NEEDED} are "
            "needed). Undecided then says that no leak was found, and no more."
        )
    return Overview(
        _headline(lines) + _told(places), names, tuple(sorted(lines, key=_gravest)), tuple(notes), tuple(warnings)
    )


def _headline(lines: Sequence[DefenseLine]) -> str:
    if not lines:
        return "No attack was evaluated in these runs, so nothing can be said about leakage."
    leaking = [line.defense for line in lines if line.kind == "leaks" and line.defense != _UNDEFENDED]
    defended = [line.defense for line in lines if line.defense != _UNDEFENDED]
    clean = [line.defense for line in lines if line.kind == "resilient"]
    if not defended:
        leaks = lines[0].kind == "leaks"
        return "Without a defense, private data come back." if leaks else "Without a defense, no leak is shown here."
    first = f"{len(leaking)} of {wording.plural(len(defended), 'defense')} {'leaks' if len(leaking) == 1 else 'leak'}"
    second = (
        f"{wording.join(clean[:4])} withstood every attack tried"
        if clean
        else "no defense is shown to withstand every attack"
    )
    return f"{first} somewhere; {second}."


def _told(places: Sequence[Decided]) -> str:
    """Which defenses do not keep one of several known images from being told, where that was tried."""
    told = dict.fromkeys(place.defense for place in places if place.summary.identifies and place.defense != _UNDEFENDED)
    if not told:
        return ""
    names = wording.join(list(told)[:4])
    return f" Behind {names}, an attacker who is shown the true image among look-alikes identifies it."


def _line(defense: str, verdicts: Sequence[Sequence[str]]) -> DefenseLine:
    """One defense from its verdicts by place; a place where it was not tried has none."""
    spots = tuple(_spot(found) if found else Spot("untried") for found in verdicts)
    tried = [spot.kind for spot in spots if spot.kind in _GRAVITY]
    return DefenseLine(defense, min(tried, key=_GRAVITY.__getitem__), spots)


def _spot(verdicts: Sequence[str]) -> Spot:
    worst = min(verdicts, key=_GRAVITY.__getitem__)
    same = sum(verdict == worst for verdict in verdicts)
    return Spot(worst, "" if same == len(verdicts) else f"{same} of {len(verdicts)}")


def _gravest(line: DefenseLine) -> tuple[bool, int, int]:
    """No defense at all first, then by how many places leak."""
    kinds = [spot.kind for spot in line.spots]
    return line.defense != _UNDEFENDED, -kinds.count("leaks"), -kinds.count("inconclusive")


def _from_the_client_on(place: Decided) -> tuple[bool, int]:
    surface = place.summary.surface
    return surface is None, -(surface or 0)


def _where(place: Decided) -> str:
    surface = place.summary.surface
    return wording.SURFACES[surface] if surface is not None else f"at {text.safe(place.summary.tap, 20)}"
