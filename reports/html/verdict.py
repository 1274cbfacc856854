"""The verdict: a line in words for each thing that was found out, and how far it can be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reports.html import evidence, wording
from harness.reports.html.places import GRAVITY, Decided, inward
from harness.reports.html.run_data import RunData
from harness.scoring.multiplicity import over_places
from harness.scoring.verdict import VICTIMS_NEEDED

_UNDEFENDED = "none"
_MOST_NAMES, _MOST_LINES = 4, 4


@dataclass(frozen=True)
class Line:
    """A sentence of the headline, and the kind of verdict it speaks of."""

    kind: str
    words: str

    @property
    def symbol(self) -> str:
        return wording.SYMBOLS[self.kind]


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
    return Overview(tuple(lines), evidence.tried(places) if places else "", tuple(notes), tuple(warnings))


def _headline(places: Sequence[Decided]) -> list[Line]:
    if not places:
        return [Line("untried", "No attack was evaluated in these runs, so nothing can be said about leakage.")]
    found = _by_name(places)
    told = [name for name, own in found.items() if name != _UNDEFENDED and any(_is_told(place) for place in own)]
    lines = [_undefended(found.pop(_UNDEFENDED))] if _UNDEFENDED in found else []
    for kind in GRAVITY:
        some = {name: own for name, own in found.items() if _worst(own) == kind}
        lines += _leaking(some, len(found)) if kind == "leaks" else _alike(kind, some)
    if told:
        words = f"Behind {_names(told)}, an attacker who is shown the true image among look-alikes identifies it."
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
    return evidence.said(min((place for place in own if place.kind == kind), key=evidence.strength))


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return wording.join(list(names) if more <= 0 else [*names[:_MOST_NAMES], f"{more} more"])
