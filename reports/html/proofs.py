"""Proofs of a run's defense, and what is only claimed of it, as the assurance report says them.

Questions about proofs are those of NIST SP 800-226.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.base.presence import FALSE_ALARMS, told_apart
from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.harms import Examined, Field, Sentence, filled, listed, plain, sentence, together
from harness.results import Statement

_CLAIMS = "claims.json#/rows/{}/{}"
#: What a question is answered by: words in what the file of claims remarks.
_REMARKED = {"Is the noise made so that nobody can compute it?": ("seed", "floating"),
             "Are metrics and counts protected too?": ("metrics", "number of examples")}  # fmt: skip


@dataclass(frozen=True)
class Promise:
    """One row: who is protected from whom, what is claimed, what is proven, and what presence that lets be told."""

    about: Sentence
    claimed: Sentence
    proven: Sentence
    told: Sentence
    notes: tuple[Sentence, ...]


@dataclass(frozen=True)
class Proofs:
    """``rows``: of the runs' statements and of the file of claims; ``questions``: each with its answer.

    ``lead``: in short, what is proven of the attacked places; None where no run says what its statements cover.
    """

    lead: Sentence | None
    rows: tuple[Promise, ...]
    questions: tuple[tuple[str, Sentence], ...]
    rounds: Sentence | None


@dataclass(frozen=True)
class Claims:
    """The document of ``harness claims --json``: its rows as they are."""

    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def proofs(places: Sequence[Examined], claims: Claims) -> Proofs:
    """Return what theorems cover, and what is only said."""
    stated: dict[tuple[str, ...], tuple[Promise, list[Examined], list[Examined]]] = {}
    for place in places:
        for cell in place.place.cells:
            for at, statement in enumerate(cell.privacy):
                source = place.files.cell(cell, "privacy", at)
                rounds = _over(place, cell.cohort.get("rounds", "?"), place.files.cell(cell, "cohort", "rounds"))
                made = _stated(statement, source, rounds)
                # What differs between places is whether it covers what is read there, which stands in its notes.
                same = (one.words for one in (made.about, made.claimed, made.proven, made.told, *made.notes))
                _, own, bare = stated.setdefault(tuple(same), (made, [], []))
                own.append(place)
                bare += [place] if statement.covers is False else []
    several = len({place.system.words for place in places}) > 1
    rows = [
        *(replace(made, notes=(*made.notes, *_of_places(own, bare, several))) for made, own, bare in stated.values()),
        *(_claimed(at, row) for at, row in enumerate(claims.rows)),
    ]
    proven = any(one.epsilon is not None for place in places for cell in place.place.cells for one in cell.privacy)
    over = _rounds(places, claims) if claims.rows or proven else None
    return Proofs(_lead(places), tuple(rows), tuple(_questions(places, claims)), over)


def _of_places(own: Sequence[Examined], bare: Sequence[Examined], several: bool) -> Iterator[Sentence]:
    """Return the systems that a statement is of, where there are several, and the places of which it says nothing."""
    if several:
        systems = listed(one.system for one in own)
        yield Sentence(f"Of: {systems.words}.", systems.sources)
    if bare:
        where = together([one.where for one in bare])
        everywhere = {id(one) for one in bare} == {id(one) for one in own}
        here = "any attacked place" if len(own) > 1 else "the attacked place"
        yield Sentence(f"It does not cover what was read {f'at {here}' if everywhere else where.words}.", where.sources)


def _lead(places: Sequence[Examined]) -> Sentence | None:
    """Return what is proven of whoever reads at the attacked places, by the statements that say whether they cover
    it."""
    sources, proven = list[str](), dict[str, None]()
    unproven = False
    for place in places:
        said = [
            (place.files.cell(cell, "privacy", at), one)
            for cell in place.place.cells for at, one in enumerate(cell.privacy)
        ]  # fmt: skip
        if not said or any(one.covers is None and one.epsilon is not None for _, one in said):
            return None
        sources += [f"{source}/{name}" for source, _ in said for name in ("covers", "epsilon")]
        holds = [_in_brackets(one.epsilon) for _, one in said if one.covers and one.epsilon is not None]
        proven |= dict.fromkeys(holds)
        unproven = unproven or not holds
    where = "the attacked place" if len(places) == 1 else "the attacked places"
    if not proven:
        return sentence(f"Nothing is proven about what can be read at {where}.", "failed", because=sources)
    some = " at some of them, and nothing at the others" if unproven else ""
    shown = Field(wording.join(list(proven)), " ".join(dict.fromkeys(sources)))
    return sentence(f"About what can be read at {where}, {{proven}} is proven{some}.", proven=shown)


def _in_brackets(epsilon: float) -> str:
    """An epsilon within a sentence that goes on."""
    vain = text.too_large(epsilon).removeprefix(", ")
    return f"epsilon {epsilon:.3g}" + (f" ({vain})" if vain else "")


def _over(place: Examined, rounds: object, source: str) -> Field:
    """The rounds that epsilons are over; captures need not say how many there are."""
    judged = place.place.run.judged
    return plain(f"{rounds} assumed" if judged and judged.record.rounds is None else rounds, source)


def _rounds(places: Sequence[Examined], claims: Claims) -> Sentence:
    """Over how many rounds epsilons are stated, and whether anything says it over one."""
    found = [
        _over(place, row.cohort.get("rounds", "?"), place.files.row(row, "cohort", "rounds"))
        for place in places for row in [place.place.summary]
    ]  # fmt: skip
    single = [at for at, one in enumerate(claims.rows) if one.get("rounds") == 1]
    if single:
        return sentence(
            "The file of claims states epsilon over 1 round too.", because=[_CLAIMS.format(single[0], "rounds")]
        )
    sources = tuple(dict.fromkeys(one.source for one in found))
    counts = list(dict.fromkeys(one.shown for one in found))
    if counts == ["1"]:
        return Sentence("The runs state epsilon over a single round.", sources)
    over = f"all {counts[0]} rounds" if len(counts) == 1 else f"{' or '.join(counts)} rounds"
    return Sentence(f"Epsilon over a single round is not stated; the runs state it over {over}.", sources)


def _stated(one: Statement, source: str, rounds: Field) -> Promise:
    unit = plain(one.unit or "no unit", f"{source}/unit")
    relation = plain(one.adjacency, f"{source}/adjacency")
    view = plain(one.view, f"{source}/view")
    notes = [sentence("{notes}.", notes=plain(one.notes.rstrip("."), f"{source}/notes", 400))]
    if one.sampler or one.conversion:
        how = {name: plain(getattr(one, name) or "none", f"{source}/{name}") for name in ("sampler", "conversion")}
        notes.append(filled("Sampler: {sampler}; conversion: {conversion}.", how))
    return Promise(
        sentence(_of_whom(one), view=view, unit=unit, relation=relation),
        _epsilon("nothing", one.claimed_epsilon, None, f"{source}/claimed_epsilon"),
        _proven(one.epsilon, one.delta, f"{source}/epsilon", rounds, one.guarantee),
        _told(source, one.epsilon, one.delta, one.mu, one.told_apart), tuple(notes),
    )  # fmt: skip


def _of_whom(one: Statement) -> str:
    """Against whom, for whom, and what two neighbouring sets of data are, as far as it is stated."""
    if not one.unit:
        return "{view}"
    return "{view}: each {unit} (neighbours: {relation})" if one.adjacency else "{view}: each {unit}"


def _claimed(at: int, row: Mapping[str, Any]) -> Promise:
    def of(name: str, longest: int = 300) -> Field:
        return plain(row.get(name), _CLAIMS.format(at, name), longest)

    conditions = row.get("conditions") or {}
    notes = [sentence("{notes}.", notes=of("notes", 400))] if row.get("notes") else []
    for name, template in (("fails", "Not met: {text}."), ("unknown", "Holds only if {text}.")):
        notes += [
            sentence(template, text=plain(one, f"claims.json#/rows/{at}/conditions/{name}/{place}"))
            for place, one in enumerate(conditions.get(name, ()))
        ]
    if row.get("holds") is not None:
        verdict = "The claim holds." if row["holds"] else "The claim is not what is proven."
        notes.append(sentence(verdict, because=[_CLAIMS.format(at, "holds")]))
    if row.get("sampler"):
        notes.append(sentence("Sampler: {sampler}.", sampler=of("sampler")))
    return Promise(
        sentence("{view}: each {unit} (neighbours: {relation}; {defense}, from the file of claims)", view=of("view"),
                 unit=of("unit"), relation=of("adjacency"), defense=of("defense")),
        _epsilon("nothing", row.get("claimed_epsilon"), row.get("claimed_delta"),
                 _CLAIMS.format(at, "claimed_epsilon")),
        _proven(row.get("epsilon"), row.get("delta"), _CLAIMS.format(at, "epsilon"), of("rounds"), "none"),
        _told(f"claims.json#/rows/{at}", row.get("epsilon"), row.get("delta"), row.get("mu")), tuple(notes),
    )  # fmt: skip


def _epsilon(nothing: str, epsilon: float | None, delta: float | None, source: str) -> Sentence:
    if epsilon is None:
        return sentence(nothing, because=[source])
    at = "" if delta is None else f", delta {_small(delta)}"
    return sentence("epsilon {epsilon}", epsilon=Field(f"{epsilon:.3g}{at}", source))


def _proven(epsilon: float | None, delta: float | None, source: str, rounds: Field, guarantee: str) -> Sentence:
    if epsilon is None:
        return sentence("nothing", "failed", because=[source])
    over = "1 round" if rounds.shown == "1" else f"{rounds.shown} rounds"
    at = "" if delta is None else f", delta {_small(delta)}"
    tag = "" if guarantee == "none" else f" ({text.safe(guarantee, 40)})"
    shown = Field(f"{epsilon:.3g}{at}", source)
    vain = text.too_large(epsilon)
    return sentence("epsilon {epsilon}, over {rounds}" + tag + vain, epsilon=shown, rounds=Field(over, rounds.source))


def _small(delta: float) -> str:
    """A delta as people write it, unless that takes a line of zeros."""
    return f"{delta:.9f}".rstrip("0").rstrip(".") if delta >= 1e-7 else f"{delta:.1g}"


def _told(
    source: str, epsilon: float | None, delta: float | None, mu: float | None, known: float | None = None
) -> Sentence:
    """The largest chance that presence is told, as ``known`` or by its numbers; without a proof there is no limit."""
    if epsilon is None and mu is None:
        return sentence("no limit is proven", "failed", because=[f"{source}/epsilon"])
    if mu is None and known is not None:
        return sentence("at most {chance}", chance=Field(_up(known), f"{source}/told_apart"))
    if mu is not None:
        chance = told_apart(FALSE_ALARMS, mu=mu)
        return sentence("at most {chance} (mu {mu})", chance=Field(_up(chance), f"{source}/mu"),
                        mu=Field(f"{mu:.3g}", f"{source}/mu"))  # fmt: skip
    chance = told_apart(FALSE_ALARMS, epsilon=epsilon, delta=delta or 0.0)
    return sentence("at most {chance}", chance=Field(_up(chance), f"{source}/epsilon"))


def _up(share: float) -> str:
    return text.percent_up(share) if share < 0.9995 else "100%, so this limits nothing"


def _questions(places: Sequence[Examined], claims: Claims) -> Iterator[tuple[str, Sentence]]:
    """Questions of NIST SP 800-226, answered yes, no or not examined."""
    covered = [(place.files.cell(cell, "privacy", at), one) for place in places for cell in place.place.cells
               for at, one in enumerate(cell.privacy)]  # fmt: skip
    first = places[0]
    nothing = first.files.row(first.place.summary, "attacks")
    proven = [(source, one) for source, one in covered if one.epsilon is not None]
    sources = [f"{source}/epsilon" for source, _ in covered[:1]] or [nothing]
    yield "Is the protected unit stated?", (
        sentence("Yes: {unit}.", unit=plain(proven[0][1].unit, f"{proven[0][0]}/unit")) if proven
        else sentence("No: nothing is proven of any unit.", because=sources)
    )  # fmt: skip
    small = [(source, one) for source, one in proven if not text.too_large(one.epsilon)]
    yield "Is the proven epsilon small (10 or less)?", (
        sentence("Yes, against: {views}.", views=_views(small)) if small
        else sentence("No: it is larger." if proven else "No epsilon is proven.", because=sources)
    )  # fmt: skip
    yield "Against whom does it hold?", (
        sentence("{views}.", views=_views(proven)) if proven
        else sentence("Against nobody.", because=sources)
    )  # fmt: skip
    yield "Was the implementation checked against what it declares?", _implementation(places, nothing)
    for question, words in _REMARKED.items():
        yield question, _remarked(words, covered, claims, nothing)


def _views(stated: Sequence[tuple[str, Statement]]) -> Field:
    names = dict.fromkeys(text.safe(one.view, 40) for _, one in stated)
    return Field(", ".join(names), " ".join(dict.fromkeys(f"{source}/view" for source, _ in stated)))


def _implementation(places: Sequence[Examined], nothing: str) -> Sentence:
    judged = {id(place.place.run): (place.place.run.judged, place.files) for place in places if place.place.run.judged}
    checks = [check for one, _ in judged.values() if one for check in one.checks]
    if judged:
        held = sum(check.outcome == "holds" for check in checks)
        sources = " ".join(files.judged("checks") for _, files in judged.values())
        counts = Field(f"{held} of {wording.plural(len(checks), 'check')} held", sources)
        every = all(place.place.run.judged for place in places)
        word = "Yes" if checks and held == len(checks) and every else "In part"
        return sentence(word + ": {counts} on captured updates.", counts=counts)
    return sentence("Not examined: the updates were simulated, not captured.", because=[nothing])


def _remarked(words: Sequence[str], covered: Sequence[tuple[str, Statement]], claims: Claims, nothing: str) -> Sentence:
    """No, where the file of claims or the notes of a statement say so; else nobody looked."""
    said = [
        (str(one), f"claims.json#/rows/{at}/remarks/{place}")
        for at, row in enumerate(claims.rows) for place, one in enumerate(row.get("remarks") or ())
    ]  # fmt: skip
    said += [(note, f"{source}/notes") for source, one in covered for note in one.notes.split("; ")]
    for remark, source in said:
        if any(word in remark for word in words):
            return sentence("No: {remark}.", remark=plain(remark.rstrip("."), source))
    return sentence("Not examined.", because=[nothing])
