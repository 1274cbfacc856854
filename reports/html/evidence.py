"""The tables of the assurance report: attackers that were tried and that were not, and what is proven or only claimed.

Goals, capabilities and knowledge are in the terms of NIST AI 100-2, "Adversarial Machine Learning". What was not tried
is all that the registry of attacks has minus what ran, so that leaving an attack out only makes the list longer.
Questions about proofs are those of NIST SP 800-226.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.attacks import ATTACKS, SUITES, Attacker
from harness.base.presence import FALSE_ALARMS, told_apart
from harness.base.version import __version__
from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.harms import Examined, Field, Files, Sentence, filled, merged, plain, sentence, together
from harness.results import CellResult, Control, Statement
from harness.results.record import BLIND
from harness.scoring.derived import first_in_lineup, reconstructed

_ABOUT = "registry/attacks#/{}"
_WITHOUT = {"positive": "without the defense", "positive_sigma0": "without its noise"}
# Every attacker is a white box one: it holds the network and its weights.
_KNOWS = {
    "plain": "the network, not the noise", "informed": "the network, the defense and its settings",
    "tampering": "the network, the defense and its settings",
}  # fmt: skip
_MAY = {
    "plain": "Observes", "informed": "Observes", "tampering": "Sends weights of its own making (model control)",
}  # fmt: skip
_CLAIMS = "claims.json#/rows/{}/{}"
#: What a question is answered by: words in what the file of claims remarks.
_REMARKED = {"Is the noise made so that nobody can compute it?": ("seed", "floating"),
             "Are metrics and counts protected too?": ("metrics", "number of examples")}  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """One row: the attack, what it wants, may do and knows, what it reached at each place, and its controls."""

    attack: Sentence
    goal: Sentence
    knows: Sentence
    reached: tuple[Sentence, ...]
    controls: tuple[Sentence, ...]


def tried(places: Sequence[Examined]) -> list[Tried]:
    """A row for each attack that ran anywhere; a second run, with labels known, is a row of its own."""
    found: dict[tuple[str, str], list[tuple[Examined, CellResult]]] = {}
    for place in places:
        for cell in place.place.cells:
            if cell.not_applicable_reason is None:
                found.setdefault((cell.attack, cell.labels), []).append((place, cell))
    return [_row(own, len(places)) for own in found.values()]


def _row(own: Sequence[tuple[Examined, CellResult]], places: int) -> Tried:
    first, cell = own[0]
    files = first.files
    name = "{name}, with labels known" if cell.labels == "known" else "{name}"
    goal = "data reconstruction" if cell.identified is None else "membership inference"
    prior = "; {public}" if cell.tier != "plain" and cell.prior else ""
    public = plain(f"public data: {cell.prior.name}" if cell.prior else "", files.cell(cell, "prior"))
    return Tried(
        sentence(name, name=plain(cell.attack, files.cell(cell, "attack"))),
        sentence("{goal}", goal=Field(goal, files.cell(cell, "identified"))),
        sentence("{may}; knows {knows} (white-box)" + prior, may=Field(_MAY[cell.tier], files.cell(cell, "tier")),
                 knows=Field(_KNOWS[cell.tier], files.cell(cell, "tier")), public=public),
        tuple(_reached(own, places)), tuple(_controls(own)),
    )  # fmt: skip


def _reached(own: Sequence[tuple[Examined, CellResult]], places: int) -> Iterator[Sentence]:
    """What the attack reached; places at which it reached the same share a sentence."""
    same: dict[str, list[tuple[Examined, Sentence]]] = {}
    for place, cell in own:
        made = _count(place, cell)
        same.setdefault(made.words, []).append((place, made))
    for group in same.values():
        where, count = together([place.where for place, _ in group]), merged([made for _, made in group])
        shown = "at every place" if len(group) == places else where.words
        words = f"{shown}: {count.words}" if places > 1 else count.words
        yield Sentence(words, (*where.sources, *count.sources))


def _count(place: Examined, cell: CellResult) -> Sentence:
    victims = place.place.run.victims[cell.key or ""]
    source = place.files.victims(cell)
    if cell.identified is not None:
        count = first_in_lineup(victims)
        return sentence("{hit} of {of} picked", hit=Field(str(count.hit), source), of=Field(str(count.records), source))
    count, first = reconstructed([victims]), first_in_lineup(victims)
    of, hit = (count.clients, count.touched) if count.hit is None else (count.records, count.hit)
    unit = " clients" if count.hit is None else ""
    near = ", {near} of {lined} nearest to the truth" if first.records else ""
    numbers = {"hit": hit, "of": of, "near": first.hit, "lined": first.records}
    shown = {name: Field(str(value), source) for name, value in numbers.items()}
    return filled("{hit} of {of}" + unit + " reconstructed" + near, shown)


def _controls(own: Iterable[tuple[Examined, CellResult]]) -> list[Sentence]:
    """Each control once: what the same attack does where nothing protects."""
    said: dict[str, list[tuple[Sentence, Sentence]]] = {}
    for place, cell in own:
        known = place.place.run.by_key()
        for at, check in enumerate(cell.controls):
            if check.kind == "positive":
                name = _WITHOUT.get(check.name, text.safe(check.name, 40))
                without = sentence("{name}", name=Field(name, place.files.cell(cell, "controls", at, "name")))
                did = _control(place.files, cell, at, check, [known[key] for key in check.cells if key in known])
                said.setdefault(did.words, []).append((without, did))
    made = []
    for group in said.values():
        without, did = together([one for one, _ in group]), merged([one for _, one in group])
        made.append(Sentence(without.words + did.words, (*without.sources, *did.sources), did.kind))
    return made


def _control(files: Files, cell: CellResult, at: int, check: Control, made: Sequence[CellResult]) -> Sentence:
    """What the attack does there, as the end of a sentence."""
    if not check.held or not made:
        state = "failed: {detail}" if not check.held else "{detail}"
        detail = plain(check.detail or check.name, files.cell(cell, "controls", at, "detail"), 160)
        return sentence(": " + state, "" if check.held else "failed", detail=detail)
    control = made[0]
    strict = control.asr.get("strict")
    if control.identified is not None:
        rate, names, verb = control.identified.rate, ("identified", "rate"), "picks"
    elif strict is not None and strict.successes:
        rate, names, verb = strict.rate, ("asr", "strict", "rate"), "reconstructs"
    else:
        rate, names, verb = control.lineup.rate, ("lineup", "rate"), "is nearest to the truth for"
    return sentence(
        " it " + verb + " {rate} of the records of {of}",
        rate=Field(text.percent(rate), files.cell(control, *names)),
        of=Field(wording.plural(control.victims, "client"), files.cell(control, "victims")),
    )  # fmt: skip


def not_tried(places: Sequence[Examined]) -> list[Sentence]:
    """What could have been tried and was not, a line each."""
    ran = {cell.attack for place in places for cell in place.place.cells if cell.not_applicable_reason is None}
    lines = [*_surfaces(places)]
    groups: dict[str, dict[str, str]] = {}
    for name in ATTACKS:
        if name not in ran and name != BLIND:
            reason, source = _why(name, places)
            groups.setdefault(reason, {})[name] = source
    for reason, names in groups.items():
        sources = [one for name, source in names.items() for one in (_ABOUT.format(name), source)]
        listed = Field(wording.join(list(names)), sources[0])
        lines.append(sentence("{names}: {reason}.", because=sources, names=listed, reason=Field(reason, sources[1])))
    return [*lines, *_families(places)]


def _why(name: str, places: Sequence[Examined]) -> tuple[str, str]:
    """Why an attack of the registry did not run, and where that stands."""
    for place in places:
        for cell in place.place.cells:
            if cell.attack == name and cell.not_applicable_reason is not None:
                source = place.files.cell(cell, "not_applicable_reason")
                if cell.settled_by:
                    return f"skipped, since {text.safe(cell.settled_by, 40)} already succeeded there", source
                return f"not possible here: {text.safe(without_advice(cell.not_applicable_reason), 160)}", source
    kind: type[Attacker] = ATTACKS[name]
    texts = any("text_exact" in cell.metrics for place in places for cell in place.place.cells)
    if kind.reads == ("images" if texts else "texts"):
        return f"reads {kind.reads} only", _ABOUT.format(name)
    if kind.tier == "tampering":
        return "not asked for; the server would send weights of its own making (tampering)", _ABOUT.format(name)
    return "not asked for", _ABOUT.format(name)


def without_advice(reason: str) -> str:
    """A reason without the options of commands that would change it, which say nothing to who reads a report."""
    kept = [part for part in reason.split("; ") if "--" not in part and not part.startswith("use ")]
    return "; ".join(kept) or reason


def _surfaces(places: Sequence[Examined]) -> list[Sentence]:
    """The surfaces at which nothing was attacked."""
    there = {place.place.summary.surface for place in places}
    sources = [place.files.row(place.place.summary, "surface") for place in places]
    return [
        sentence("The place {where} (surface {number}): nothing was attacked there.", because=sources,
                 where=Field(wording.SURFACES[number], sources[0]), number=Field(str(number), sources[0]))
        for number in sorted({*wording.SURFACES} - there, reverse=True)
    ]  # fmt: skip


def _families(places: Sequence[Examined]) -> list[Sentence]:
    """Attackers that are more than one attack of the registry."""
    first = places[0]
    single = [place for place in places if columns.rounds_seen(place.place.summary) == 1]
    version = Field(__version__, "registry/version#/harness")
    lines = []
    if len(single) == len(places):
        lines.append(sentence(
            "Attackers that combine several rounds: each record was observed in 1 round.",
            because=[place.files.row(place.place.summary, "rounds_tried") for place in single],
        ))  # fmt: skip
    else:
        most = max(places, key=lambda place: columns.rounds_seen(place.place.summary))
        lines.append(sentence(
            "Attackers that combine more than {rounds} rounds, or rounds with other examples.",
            rounds=Field(str(columns.rounds_seen(most.place.summary)),
                         most.files.row(most.place.summary, "options", "rounds_seen")),
        ))  # fmt: skip
    lines.append(sentence(
        "Colluding clients and generative priors: no attack of harness {version} uses them.", version=version,
    ))  # fmt: skip
    suites = dict.fromkeys(place.place.summary.suite for place in places if place.place.summary.suite)
    source = first.files.row(first.place.summary, "suite")
    if suites:
        names = Field(wording.join([text.safe(name or "", 40) for name in suites]), source)
        lines.append(sentence("Attacks that suite {suite} does not contain.", suite=names))
    else:
        names = Field(wording.join(list(SUITES)), "registry/suites#")
        lines.append(sentence("The suites {suites}: no suite ran here, attacks were named one by one.", suites=names,
                              because=[source]))  # fmt: skip
    return [*lines, sentence("All attacks published after harness {version}.", version=version)]


# What is proven, and what is only claimed.


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


def proofs(places: Sequence[Examined], claims: Claims) -> Proofs:
    """What theorems cover, and what is only said."""
    stated: dict[Statement, Promise] = {}
    for place in places:
        for cell in place.place.cells:
            for at, statement in enumerate(cell.privacy):
                source = place.files.cell(cell, "privacy", at)
                rounds = plain(cell.cohort.get("rounds", "?"), place.files.cell(cell, "cohort", "rounds"))
                # What differs between places is whether it covers what is read there, which stands in its notes.
                stated.setdefault(statement, _stated(statement, source, rounds))
    rows = [*stated.values(), *(_claimed(at, row) for at, row in enumerate(claims.rows))]
    return Proofs(tuple(rows), tuple(_questions(places, claims)), _rounds(places, claims))


def _rounds(places: Sequence[Examined], claims: Claims) -> Sentence:
    """Over how many rounds epsilons are stated, and whether anything says it over one."""
    row, files = places[0].place.summary, places[0].files
    rounds = plain(row.cohort.get("rounds", "?"), files.row(row, "cohort", "rounds"))
    single = [at for at, one in enumerate(claims.rows) if one.get("rounds") == 1]
    if single:
        return sentence(
            "The file of claims states epsilon over 1 round too.", because=[_CLAIMS.format(single[0], "rounds")]
        )
    return sentence(
        "Epsilon over a single round is not stated; the runs state it over all {rounds} rounds.", rounds=rounds
    )


def _stated(one: Statement, source: str, rounds: Field) -> Promise:
    unit = plain(one.unit or "no unit", f"{source}/unit")
    relation = plain(one.adjacency or "no relation", f"{source}/adjacency")
    view = plain(one.view, f"{source}/view")
    notes = [sentence("{notes}.", notes=plain(one.notes.rstrip("."), f"{source}/notes", 400))]
    if one.sampler or one.conversion:
        how = {name: plain(getattr(one, name) or "none", f"{source}/{name}") for name in ("sampler", "conversion")}
        notes.append(filled("Sampler: {sampler}; conversion: {conversion}.", how))
    if one.covers is False:
        notes.append(sentence("It does not cover what was read at the attacked place.", because=[f"{source}/covers"]))
    return Promise(
        sentence("{view}: each {unit}, {relation}" if one.unit else "{view}", view=view, unit=unit, relation=relation),
        _epsilon("nothing", one.claimed_epsilon, None, f"{source}/claimed_epsilon"),
        _proven(one.epsilon, one.delta, f"{source}/epsilon", rounds, one.guarantee),
        _told(source, one.epsilon, one.delta, one.mu, one.told_apart), tuple(notes),
    )  # fmt: skip


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
        sentence("{view}: each {unit}, {relation} ({defense}, from the file of claims)", view=of("view"),
                 unit=of("unit"), relation=of("adjacency"), defense=of("defense")),
        _epsilon("nothing", row.get("claimed_epsilon"), row.get("claimed_delta"),
                 _CLAIMS.format(at, "claimed_epsilon")),
        _proven(row.get("epsilon"), row.get("delta"), _CLAIMS.format(at, "epsilon"), of("rounds"), "none"),
        _told(f"claims.json#/rows/{at}", row.get("epsilon"), row.get("delta"), row.get("mu")), tuple(notes),
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
        yield question, _remarked(words, covered, claims, nothing)


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
