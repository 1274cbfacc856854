"""The assurance report: what was tested, what came back, with which confidence, what is proven, what was not tried.

Readers are people who sign: data-protection officers, and lawyers beside them. Each sentence has a field of the results
behind it, which the page notes beside it. What the operator states is marked, and is the only other text.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from harness.base.errors import UsageError
from harness.base.version import __version__
from harness.reports import text
from harness.reports.columns import kinds_of
from harness.reports.html import commands, wording
from harness.reports.html.facts import Tried, facts_of, not_tried, tried, versions_of
from harness.reports.html.harms import (
    HARMS,
    RECOGNISED,
    RECONSTRUCTED,
    TOLD,
    Examined,
    Field,
    Files,
    Harm,
    Sentence,
    examined,
    merged,
    plain,
    plainer,
    sentence,
    together,
)
from harness.reports.html.page import render
from harness.reports.html.places import Decided, decided_places, inward, shown_cells
from harness.reports.html.proofs import Claims, Proofs, proofs
from harness.reports.html.run_data import RunData
from harness.scoring.harms import CONFIDENCE
from harness.scoring.verdict import LEAK_P

_AGAIN = ("harness site RUN --out board", "harness verify board/cards/NAME.json")


@dataclass(frozen=True)
class Stated:
    """Statements of the operator, in their own words; empty where they make none."""

    system: str = ""
    by: str = ""
    review_by: str = ""


@dataclass(frozen=True)
class Assurance:
    """Contents that the template shows, in its order."""

    stated: Stated
    answers: tuple[tuple[Sentence, ...], ...]
    facts: tuple[tuple[str, Sentence], ...]
    places: tuple[Examined, ...]
    confidence: tuple[Sentence, ...]
    tried: tuple[Tried, ...]
    not_tried: tuple[Sentence, ...]
    proofs: Proofs
    hazards: tuple[Sentence, ...]
    expiry: tuple[Sentence, ...]
    commands: tuple[str, ...]
    captured: bool
    glossary: tuple[tuple[str, str], ...]
    harms: dict[str, str] = field(default_factory=lambda: HARMS)

    @property
    def groups(self) -> list[tuple[Sentence, Sentence, dict[str, Harm]]]:
        """Rows of the table: where, of which system, and the harms; places with the same words share a row."""
        same: dict[tuple[str, ...], list[Examined]] = {}
        for one in self.places:
            words = (said.words for harm in one.harms.values() for said in harm.sentences)
            same.setdefault((one.system.words, *words), []).append(one)
        return [
            (
                together([one.where for one in group]),
                merged([one.system for one in group]),
                {name: _common([one.harms[name] for one in group]) for name in self.harms},
            )
            for group in same.values()
        ]

    @property
    def alone(self) -> Sentence | None:
        """Sentence on which places were attacked, where one row would say no more than the answer does; else None."""
        groups = self.groups
        if len(groups) > 1 or self.several:
            return None
        where = groups[0][0]
        if len(self.places) == 1:
            words = f"One place was attacked: {where.words}. What came back there stands at the top of this report."
        else:
            same = "What came back is the same at each, and stands at the top of this report."
            words = f"{len(self.places)} places were attacked: {where.words}. {same}"
        return Sentence(words, where.sources)

    @property
    def several(self) -> bool:
        """Return whether places are of more than one system."""
        return len({one.system.words for one in self.places}) > 1


def require_whole(runs: Sequence[RunData]) -> None:
    """Raise UsageError for runs that nothing may be concluded from: unfinished, damaged, edited, or without a truth."""
    for run in runs:
        name = repr(text.safe(str(run.folder), 200))
        if not run.complete:
            raise UsageError(f"{name} is unfinished: {run.fault}; add --resume to the command that began it")
        for line in (*run.left_out, *run.told):
            raise UsageError(f"{name}: {line}; run harness evaluate again")
        if not run.cells and run.judged:
            raise UsageError(f"{name} has estimates only, as no truth was known; give harness judge a truth.npz")
        if not run.summary:
            raise UsageError(f"{name} holds no result of an attack; give folders of harness evaluate or judge")


def fault_of(runs: Sequence[RunData]) -> str | None:
    """Return why there is no assurance at all; None where there may be."""
    return next((f"run {run.name}: {run.fault}" for run in runs if not run.valid), None)


def require_alike(
    runs: Sequence[RunData], by: Collection[str] = ("versions of the harness", "suites", "systems"),
    how: str = "evaluate each into a folder of its own, or add --mixed",
) -> None:  # fmt: skip
    """Raise UsageError, which says ``how`` to go on, where runs differ in one of the things named in ``by``."""
    rows = [(run, row) for run in runs for row in run.summary]
    kinds = {
        "versions of the harness": {str(versions_of(run).get("harness")) for run in runs},
        "suites": {row.suite or "none" for _, row in rows},
        "systems": {" ".join(filter(None, (row.dataset, row.model, *wording.label(row.defense, row.defense_args))))
                    for _, row in rows},
    }  # fmt: skip
    for what in by:
        if len(kinds[what]) > 1:
            names = text.safe(", ".join(sorted(kinds[what])), 200)
            raise UsageError(f"the runs are of several {what} ({names}); {how}")


def require_own_claims(runs: Sequence[RunData], claims: Claims) -> None:
    """Raise UsageError for claims of a defense that was not tested."""
    tested = {row.defense for run in runs for row in run.summary}
    for row in claims.rows:
        if row.get("defense") not in tested:
            other, own = text.safe(str(row.get("defense")), 60), text.safe(", ".join(sorted(tested)), 120)
            raise UsageError(f"--claims is about {other}, and the runs test {own}; give the claims of that defense")


def make_assurance(runs: Sequence[RunData], stated: Stated, claims: Claims) -> str:
    """The page as HTML. Raises UsageError for runs that nothing may be concluded from."""
    require_whole(runs)
    files = {id(run): Files(number, run) for number, run in enumerate(runs, 1)}
    decided = sorted(decided_places(runs), key=inward)
    places = tuple(examined(place, files[id(place.run)], decided) for place in decided)
    captured = all(run.judged for run in runs)  # a card holds no captures
    page = Assurance(
        stated, _answer(places), tuple(facts_of(runs, files, places)), places, tuple(_confidence(places)),
        tuple(tried(places)), tuple(not_tried(places)), proofs(places, claims),
        tuple(_hazards(runs, files, claims)), tuple(_expiry(places)),
        (*commands.evaluate_commands(shown_cells(runs)), *(() if captured else _AGAIN)), captured,
        tuple(_glossary(decided)),
    )  # fmt: skip
    kind = kinds_of(cell for place in decided for cell in place.cells)
    return render("assurance.html.j2", kind, page=page, confidence=f"{CONFIDENCE:.0%}")


def _common(own: Sequence[Harm]) -> Harm:
    """One harm whose words are the same at several places, with the fields of them all."""
    lines = zip(*(harm.sentences for harm in own), strict=True)
    return Harm(own[0].name, own[0].state, tuple(merged(line) for line in lines))


# The answer: what succeeded comes first, each harm by itself and with its denominator.

_DID = {
    RECONSTRUCTED: "training records were reconstructed",
    RECOGNISED: "records were recognised among look-alikes",
    TOLD: "who took part in the training was told",
}  # fmt: skip
_ORDER = ("succeeded", "not settled", "not found", "not tested")


def _answer(places: Sequence[Examined]) -> tuple[tuple[Sentence, ...], ...]:
    """The sentence that answers, and the lines below it: a harm each, at the place that does worst."""
    found = {name: [place.harms[name] for place in places] for name in HARMS}
    done = [name for name, own in found.items() if any(harm.state == "succeeded" for harm in own)]
    sources = [place.files.row(place.place.summary, "verdict") for place in places]
    settled = [place for place in places if place.place.kind == "resilient"]
    of = f"{len(places)} places tested" if len(places) > 1 else f"place tested, {places[0].where.words}"
    open_ = [HARMS[name].lower() for name, own in found.items() if any(harm.state != "not found" for harm in own)]
    if done:
        opening = sentence(f"An attack succeeded: {wording.join([_DID[name] for name in done])}.", "leaks", sources)
    elif any(place.place.kind == "leaks" for place in places):
        opening = sentence("An attack succeeded, by the verdict of the run.", "leaks", sources)
    elif len(settled) == len(places) and open_:
        words = f"No attack that was tried succeeded at the {of}, but not everything is settled: {wording.join(open_)}."
        opening = sentence(words, "inconclusive", sources)
    elif len(settled) == len(places):
        opening = sentence(f"No attack that was tried succeeded at the {of}; other attacks may.", "resilient", sources)
    else:
        how_many = (f"{len(places) - len(settled)} of the" if settled else "all") if len(places) > 1 else "the"
        count = f"count {'it' if len(places) - len(settled) == 1 else 'them'} as untested"
        words = f"The tests leave the question open at {how_many} {of}: {count}."
        opening = sentence(words, "inconclusive", sources)
    lines = sorted((_worst(own) for own in found.values()), key=lambda line: _ORDER.index(line[0].state))
    return (opening,), *(_line(harm, count, len(places)) for harm, count in lines)


def _worst(own: Sequence[Harm]) -> tuple[Harm, int]:
    """The harm at the place that does worst, and at how many it is in that state."""
    worst = min(own, key=lambda harm: _ORDER.index(harm.state))
    return worst, sum(harm.state == worst.state for harm in own)


def _line(harm: Harm, count: int, places: int) -> tuple[Sentence, ...]:
    where = f", at {count} of {places} places" if places > 1 else ""
    title = sentence(f"{HARMS[harm.name]}: {harm.word}{where}.", harm.kind, harm.sentences[0].sources)
    return (title, *harm.sentences)


# What the numbers mean, what was seen beside them, and how long this stands.


def _confidence(places: Sequence[Examined]):
    lines = [
        place.files.victims(cell) for place in places for cell in place.place.cells
        if cell.not_applicable_reason is None
    ]  # fmt: skip
    lines = lines or [place.files.row(place.place.summary, "attacks") for place in places]
    yield sentence(
        f"All bounds are one-sided {CONFIDENCE:.0%} Clopper-Pearson bounds. The records of one client count as one "
        "trial, however many they are.", because=lines,
    )  # fmt: skip
    yield sentence(
        "Recognition and membership count as successes only if guesses alone would do as well with a probability "
        f"below {LEAK_P:g}.",
        because=lines,
    )
    sums = [place for place in places if wording.summed(place.place.summary) > 1]
    if sums:
        yield sentence(
            "Where only the sum of a round's clients is read, all their records count as one trial.",
            because=[place.files.row(place.place.summary, "tap") for place in sums],
        )
    shared = [place for place in places if place.place.summary.shared_weights]
    if shared:
        yield sentence(
            "All clients had the same network: the bounds hold for this network and no other.",
            because=[place.files.row(place.place.summary, "shared_weights") for place in shared],
        )


def _hazards(runs: Sequence[RunData], files: dict[int, Files], claims: Claims) -> list[Sentence]:
    """Weaknesses and failed checks, each once."""
    found: list[Sentence] = []
    for run in runs:
        of = files[id(run)]
        if str(run.environment.get("git") or "").endswith("-dirty"):
            found.append(
                sentence("The harness had changes that no commit holds.", because=[of.result("environment", "git")])
            )
        found += [sentence("Not all is checked: {text}.", text=plain(one, of.result("cells"))) for one in run.unproven]
        for cell in run.cells:
            for name in ("warnings", "flags"):
                found += [
                    sentence("{attack}: {text}.", attack=plain(cell.attack, of.cell(cell, "attack")),
                             text=plain(plainer(one), of.cell(cell, name, at)))
                    for at, one in enumerate(getattr(cell, name)) if cell.role == "cell"
                ]  # fmt: skip
        found += _open_checks(run, of)
        for at, check in enumerate(run.judged.checks if run.judged else ()):
            if check.outcome not in ("holds", "cannot tell"):
                found.append(sentence(
                    "Check '{name}': {outcome}. {detail}.", name=plain(check.name, of.judged("checks", at, "name")),
                    outcome=plain(check.outcome, of.judged("checks", at, "outcome")),
                    detail=plain(check.detail, of.judged("checks", at, "detail")),
                ))  # fmt: skip
        for at, one in enumerate(run.judged.measured if run.judged else ()):
            found.append(sentence("{said}.", said=plain(one.said.rstrip("."), of.judged("measured", at, "said"), 400)))
    for at, row in enumerate(claims.rows):
        for name in ("warnings", "remarks"):
            found += [
                sentence("{defense}: {text}.", defense=plain(row.get("defense"), f"claims.json#/rows/{at}/defense"),
                         text=plain(one, f"claims.json#/rows/{at}/{name}/{place}"))
                for place, one in enumerate(row.get(name) or ())
            ]  # fmt: skip
    if not found:
        sources = [of.result("cells") for of in files.values()]
        found.append(sentence("None: no attack has a warning, and no check failed.", because=sources))
    return list({one.words: one for one in reversed(found)}.values())[::-1]


def _open_checks(run: RunData, of: Files) -> list[Sentence]:
    """The checks of captures that say nothing, by why they do not."""
    why: dict[str, list[tuple[int, str]]] = {}
    for at, check in enumerate(run.judged.checks if run.judged else ()):
        if check.outcome == "cannot tell":
            why.setdefault(check.detail, []).append((at, check.name))
    made = []
    for detail, own in why.items():
        sources = [of.judged("checks", at, name) for at, _ in own for name in ("name", "outcome", "detail")]
        names = Field(wording.join([f"'{text.safe(name, 80)}'" for _, name in own]), sources[0])
        made.append(sentence("No check could tell of {names}: {detail}.", names=names, because=sources,
                             detail=plain(detail.rstrip("."), sources[2])))  # fmt: skip
    return made


def _expiry(places: Sequence[Examined]):
    suites = dict.fromkeys(text.safe(place.place.summary.suite or "", 40) for place in places)
    named = [name for name in suites if name]
    source = places[0].files.row(places[0].place.summary, "suite")
    what = f"suite {wording.join(named)} of " if named else ""
    yield sentence("Attacks that are newer than {what}harness {version} are not covered.", what=Field(what, source),
                   version=Field(__version__, "registry/version#/harness"))  # fmt: skip
    yield sentence(
        "A change of the system, its network, its data or its defense makes this report void.",
        because=[places[0].files.row(places[0].place.summary, name) for name in ("model", "dataset", "defense")],
    )


def _glossary(places: Sequence[Decided]):
    kind = kinds_of(cell for place in places for cell in place.cells)
    yield "Record", f"One example of the training data, here one {kind.one}."
    yield "Update", "What a client sends in a round of the training, or computes on the way to it."
    yield "Place", "Where somebody can read: inside the client (surface 2), on the way (1), or at the server (0)."
    yield "Look-alikes", "Other records of the same class, among which the true one has to be found."
    yield "Reconstructed", f"The record came back: {kind.success}."
    yield "Control", "The same attack with the defense off, where it must succeed. It shows that the attack works."
    yield (
        "Confidence",
        f"If the test were made 100 times, about {CONFIDENCE * 100:.0f} of its bounds or more would be right.",
    )
    yield (
        "Epsilon, delta",
        (
            "What a proof allows: no outcome becomes more than e^epsilon times as likely through one record, up to a "
            "chance of delta."
        ),
    )
