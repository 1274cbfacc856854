"""What is proven and what is only claimed, row by row, and the questions of NIST SP 800-226 with their answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.reports import text
from harness.reports.html.harms import Examined
from harness.reports.html.sourced import Field, Sentence, plain, sentence
from harness.results import Statement

#: How well presence is told at a rate of false alarms, from mu, or from epsilon and delta.
Told = Callable[..., float]
FALSE_ALARMS = 0.01
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
    """``rows``: of the runs' statements and of the file of claims; ``questions``: each with its answer."""

    rows: tuple[Promise, ...]
    questions: tuple[tuple[str, Sentence], ...]
    rounds: Sentence


@dataclass(frozen=True)
class Claims:
    """The document of ``harness claims --json``: its rows as they are."""

    rows: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def proofs(places: Sequence[Examined], claims: Claims, told: Told) -> Proofs:
    """What theorems cover, and what is only said."""
    stated: dict[Statement, Promise] = {}
    for place in places:
        for cell in place.place.cells:
            for at, statement in enumerate(cell.privacy):
                source = place.files.cell(cell, "privacy", at)
                rounds = plain(cell.cohort.get("rounds", "?"), place.files.cell(cell, "cohort", "rounds"))
                # What differs between places is whether it covers what is read there, which stands in its notes.
                stated.setdefault(statement, _stated(statement, source, rounds, told))
    rows = [*stated.values(), *(_claimed(at, row, told) for at, row in enumerate(claims.rows))]
    return Proofs(tuple(rows), tuple(_questions(places, claims)), _rounds(places, claims))


def _rounds(places: Sequence[Examined], claims: Claims) -> Sentence:
    """Over how many rounds epsilons are stated, and whether anything says it over one."""
    row, files = places[0].place.summary, places[0].files
    rounds = plain(row.cohort.get("rounds", "?"), files.row(row, "cohort", "rounds"))
    single = [at for at, one in enumerate(claims.rows) if one.get("rounds") == 1]
    if single:
        return sentence("The file of claims states epsilon over 1 round too.", because=[_CLAIMS.format(single[0], "rounds")])
    return sentence("Epsilon over a single round is not stated; the runs state it over all {rounds} rounds.", rounds=rounds)


def _stated(one: Statement, source: str, rounds: Field, told: Told) -> Promise:
    unit = plain(one.unit or "no unit", f"{source}/unit")
    relation = plain(one.adjacency or "no relation", f"{source}/adjacency")
    view = plain(one.view, f"{source}/view")
    notes = [sentence("{notes}.", notes=plain(one.notes.rstrip("."), f"{source}/notes", 400))]
    if one.sampler or one.conversion:
        how = {name: plain(getattr(one, name) or "none", f"{source}/{name}") for name in ("sampler", "conversion")}
        notes.append(sentence("Sampler: {sampler}; conversion: {conversion}.", **how))
    if one.covers is False:
        notes.append(sentence("It does not cover what was read at the attacked place.", because=[f"{source}/covers"]))
    return Promise(
        sentence("{view}: each {unit}, {relation}" if one.unit else "{view}", view=view, unit=unit, relation=relation),
        _epsilon("nothing", one.claimed_epsilon, None, f"{source}/claimed_epsilon"),
        _proven(one.epsilon, one.delta, f"{source}/epsilon", rounds, one.guarantee),
        _told(told, source, one.epsilon, one.delta, None), tuple(notes),
    )  # fmt: skip


def _claimed(at: int, row: Mapping[str, Any], told: Told) -> Promise:
    def of(name: str, longest: int = 300) -> Field:
        return plain(row.get(name), _CLAIMS.format(at, name), longest)

    conditions = row.get("conditions") or {}
    notes = [sentence("{notes}.", notes=of("notes", 400))] if row.get("notes") else []
    for name, template in (("fails", "Not met: {text}."), ("unknown", "Holds only if {text}.")):
        notes += [
            sentence(template, text=plain(one, f"claims.json#/rows/{at}/conditions/{name}/{place}"))
            for place, one in enumerate(conditions.get(name, ()))
        ]
    verdict = {True: "The claim holds.", False: "The claim is not what is proven."}.get(row.get("holds"))
    notes += [sentence(verdict, because=[_CLAIMS.format(at, "holds")])] if verdict else []
    if row.get("sampler"):
        notes.append(sentence("Sampler: {sampler}.", sampler=of("sampler")))
    return Promise(
        sentence("{view}: each {unit}, {relation} ({defense}, from the file of claims)", view=of("view"),
                 unit=of("unit"), relation=of("relation"), defense=of("defense")),
        _epsilon("nothing", row.get("claimed_epsilon"), row.get("claimed_delta"), _CLAIMS.format(at, "claimed_epsilon")),
        _proven(row.get("proven"), row.get("delta"), _CLAIMS.format(at, "proven"), of("rounds"), "none"),
        _told(told, f"claims.json#/rows/{at}", row.get("proven"), row.get("delta"), row.get("mu")), tuple(notes),
    )  # fmt: skip


def _epsilon(nothing: str, epsilon: float | None, delta: float | None, source: str) -> Sentence:
    if epsilon is None:
        return sentence(nothing, because=[source])
    at = "" if delta is None else f", delta {delta:g}"
    return sentence("epsilon {epsilon}", epsilon=Field(f"{epsilon:.3g}{at}", source))


def _proven(epsilon: float | None, delta: float | None, source: str, rounds: Field, guarantee: str) -> Sentence:
    if epsilon is None:
        return sentence("nothing", "failed", because=[source])
    over = "1 round" if rounds.shown == "1" else f"{rounds.shown} rounds"
    at = "" if delta is None else f", delta {delta:.1g}"
    tag = "" if guarantee == "none" else f" ({text.safe(guarantee, 40)})"
    shown = Field(f"{text.epsilon(epsilon)}{at}", source)
    return sentence("epsilon {epsilon}, over {rounds}" + tag, epsilon=shown, rounds=Field(over, rounds.source))


def _told(told: Told, source: str, epsilon: float | None, delta: float | None, mu: float | None) -> Sentence:
    """The largest chance that presence is told; without a proof there is no limit."""
    if epsilon is None and mu is None:
        return sentence("no limit is proven", "failed", because=[f"{source}/epsilon"])
    if mu is not None:
        chance = told(FALSE_ALARMS, mu=mu)
        return sentence("at most {chance} (mu {mu})", chance=Field(_up(chance), f"{source}/mu"),
                        mu=Field(f"{mu:.3g}", f"{source}/mu"))  # fmt: skip
    chance = told(FALSE_ALARMS, epsilon=epsilon, delta=delta or 0.0)
    return sentence("at most {chance}", chance=Field(_up(chance), f"{source}/epsilon"))


def _up(share: float) -> str:
    return text.percent(min(1.0, share + 0.0005)) if share < 0.9995 else "100%, so this limits nothing"


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
    yield "Is epsilon small enough to bound anything (10 or less)?", (
        sentence("Yes, against: {views}.", views=_views(small)) if small
        else sentence("No.", because=sources)
    )  # fmt: skip
    yield "Against whom does it hold?", (
        sentence("{views}.", views=_views(proven)) if proven
        else sentence("Against nobody.", because=sources)
    )  # fmt: skip
    yield "Was the implementation checked against what it declares?", _implementation(places, nothing)
    for question, words in _REMARKED.items():
        yield question, _remarked(words, claims, nothing)


def _views(stated: Sequence[tuple[str, Statement]]) -> Field:
    names = dict.fromkeys(text.safe(one.view, 40) for _, one in stated)
    return Field(", ".join(names), " ".join(dict.fromkeys(f"{source}/view" for source, _ in stated)))


def _implementation(places: Sequence[Examined], nothing: str) -> Sentence:
    for place in places:
        if judged := place.place.run.judged:
            held = sum(check.outcome == "holds" for check in judged.checks)
            counts = Field(f"{held} of {len(judged.checks)} checks held", place.files.judged("checks"))
            word = "Yes" if judged.checks and held == len(judged.checks) else "In part"
            return sentence(word + ": {counts} on captured updates.", counts=counts)
    return sentence("Not examined: the updates were simulated, not captured.", because=[nothing])


def _remarked(words: Sequence[str], claims: Claims, nothing: str) -> Sentence:
    for at, row in enumerate(claims.rows):
        for place, remark in enumerate(row.get("remarks") or ()):
            if any(word in str(remark) for word in words):
                return sentence("No: {remark}.", remark=plain(remark, f"claims.json#/rows/{at}/remarks/{place}"))
    return sentence("Not examined.", because=[nothing])
