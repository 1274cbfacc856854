"""The verdict in words: which defense leaks where, a sentence each, and how far it can be trusted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.places import Decided
from harness.reports.html.runs import RunData

_GRAVITY = {"leaks": 0, "inconclusive": 1, "resilient": 2}
_PHRASES = {"leaks": "private data come back", "inconclusive": "undecided", "resilient": "no leak found"}


@dataclass(frozen=True)
class Sentence:
    """What was seen of one defense. ``kind`` is its worst verdict; ``parts`` are (verdict, words) by place."""

    defense: str
    kind: str
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Verdict:
    """``headline`` in one line, a sentence per defense, and ``warnings`` that stand above all of it."""

    headline: str
    sentences: tuple[Sentence, ...]
    warnings: tuple[str, ...]


def verdict(runs: Sequence[RunData], places: Sequence[Decided]) -> Verdict:
    """The verdict over all runs."""
    warnings = [
        f"Run {run.name} is invalid and its verdicts must not be used: "
        f"{text.safe(run.valid_reason or 'a negative control failed', 300)}"
        for run in runs
        if run.cells and not run.valid
    ]
    by_defense: dict[str, list[Decided]] = defaultdict(list)
    for place in places:
        by_defense[place.defense].append(place)
    sentences = [_sentence(name, members) for name, members in by_defense.items()]
    return Verdict(_headline(sentences), tuple(sentences), tuple(warnings))


def _headline(sentences: Sequence[Sentence]) -> str:
    if not sentences:
        return "No attack was evaluated in these runs, so nothing can be said about leakage."
    leaking = [sentence.defense for sentence in sentences if sentence.kind == "leaks" and sentence.defense != "none"]
    defended = [sentence.defense for sentence in sentences if sentence.defense != "none"]
    clean = [sentence.defense for sentence in sentences if sentence.kind == "resilient"]
    if not defended:
        leaks = sentences[0].kind == "leaks"
        return "Without a defense, private data come back." if leaks else "Without a defense, no leak is shown here."
    first = f"{len(leaking)} of {wording.plural(len(defended), 'defense')} {'leaks' if len(leaking) == 1 else 'leak'}"
    second = (
        f"{wording.join(clean[:4])} withstood every attack tried"
        if clean
        else "no defense is shown to withstand every attack"
    )
    return f"{first} somewhere; {second}."


def _sentence(name: str, places: Sequence[Decided]) -> Sentence:
    """Places by verdict, the worst first; settings are counted where they disagree."""
    by_surface: dict[str, list[str]] = defaultdict(list)
    for place in sorted(places, key=_from_the_client_on):
        by_surface[_where(place)].append(place.summary.verdict)
    found: dict[str, list[str]] = defaultdict(list)
    for where, verdicts in by_surface.items():
        worst = min(verdicts, key=_GRAVITY.__getitem__)
        same = sum(verdict == worst for verdict in verdicts)
        found[worst].append(where if same == len(verdicts) else f"{where} ({same} of {len(verdicts)} cases)")
    parts = [(kind, f"{_PHRASES[kind]} {wording.join(found[kind])}") for kind in _GRAVITY if kind in found]
    return Sentence(name, parts[0][0], tuple(parts))


def _from_the_client_on(place: Decided) -> tuple[bool, int]:
    surface = place.summary.surface
    return surface is None, -(surface or 0)


def _where(place: Decided) -> str:
    surface = place.summary.surface
    return wording.SURFACES[surface] if surface is not None else f"at {text.safe(place.summary.tap, 20)}"
