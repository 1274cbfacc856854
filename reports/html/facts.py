"""Facts of a test, as the assurance report says them: what was tested, when, with what and on which machine."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.attacks import ATTACKS, SUITES, Attacker
from harness.base.errors import UsageError
from harness.base.version import __version__
from harness.reports import columns, text
from harness.reports.columns import kinds_of
from harness.reports.html import wording
from harness.reports.html.harms import (
    Examined,
    Field,
    Files,
    Sentence,
    filled,
    listed,
    merged,
    plain,
    plainer,
    sentence,
    together,
)
from harness.reports.html.run_data import RunData, UnreadableRun, read_bytes
from harness.results import CellResult, Control
from harness.results.record import BLIND
from harness.scoring.harms import first_in_lineup, reconstructed

_UNTOLD = "not stated"


def versions_of(run: RunData) -> dict:
    """The versions that a run was made with."""
    found = run.environment.get("versions")
    return found if isinstance(found, dict) else {}


def facts_of(
    runs: Sequence[RunData], files: dict[int, Files], places: Sequence[Examined]
) -> Iterator[tuple[str, Sentence]]:
    """Each fact with its title; of places that differ in it, all that they have."""
    first = places[0]
    row, of = first.place.summary, first.files
    seen = dict.fromkeys((place.place.defense, place.place.arguments) for place in places)
    names = "; ".join(" ".join(filter(None, one)) for one in seen)
    yield "Data and network", listed(map(_data, places))
    yield "Defense", sentence("{defense}", defense=Field(names, of.row(row, "defense")))
    yield "Federation", listed(map(_federation, places))
    yield "Local training", listed(map(_local, places))
    captured = [(run.judged, files[id(run)]) for run in runs if run.judged]
    if captured:
        shown = listed(
            sentence("{captured}", captured=Field(one.captured, file.judged("record"))) for one, file in captured
        )
        yield "Captured", Sentence(f"{shown.words}; attacks ran on the captured updates", shown.sources)
    if len(captured) < len(runs):
        rest = "in the other runs " if captured else ""
        none = "" if captured else "; no update of a live federation was captured"
        yield (
            "Simulated",
            sentence(f"{rest}the harness played the clients and the server{none}", because=[of.row(row, "tap")]),
        )
    if any(place.place.cells for place in places):
        yield "Attacked", listed(_attacked(place) for place in places if place.place.cells)
    for run in runs:
        yield from _run_facts(run, files[id(run)], len(runs) > 1)


def _data(place: Examined) -> Sentence:
    row, of = place.place.summary, place.files
    return sentence(
        "{dataset} ({many}), {model}", dataset=plain(row.dataset, of.row(row, "dataset")),
        many=Field(kinds_of(place.place.cells).many, of.row(row, "dataset")),
        model=plain(row.model, of.row(row, "model")),
    )  # fmt: skip


def _local(place: Examined) -> Sentence:
    row, of = place.place.summary, place.files
    # An option that the row does not name is at its default.
    named = ("options", "optimizer") if "optimizer" in row.options else ()
    # Rows lack the learning rate, and the cells' own files have it, where they are at hand.
    asked = ((cell, place.place.run.settings.get(cell.key or "", {})) for cell in place.place.cells)
    rate: dict[str, Any] = next((
        {"rate": plain(own["learning_rate"], of.own(cell, "settings", "learning_rate"))}
        for cell, own in asked if own.get("learning_rate") is not None
    ), {})  # fmt: skip
    return sentence(
        "{steps} of {records}, optimizer {optimizer}" + (", learning rate {rate}" if rate else ""), **rate,
        optimizer=plain(row.settings.get("optimizer", "sgd"), of.row(row, *named)),
        steps=Field(wording.plural(row.local_steps, "local step"), of.row(row, "local_steps")),
        records=Field(wording.plural(row.batch_size, "record"), of.row(row, "batch_size")),
    )  # fmt: skip


def _attacked(place: Examined) -> Sentence:
    row = place.place.summary
    seeds = f"random seed{'s' * (len(row.seeds) > 1)} {wording.seeds(row)}"
    words = f"{wording.victims(row.victims, wording.summed(row))}, {seeds}"
    return sentence("{clients}", clients=Field(words, place.files.row(row, "victims")))


def _federation(place: Examined) -> Sentence:
    """Clients and rounds: as they were played, or as captures declare them."""
    row, of, judged = place.place.summary, place.files, place.place.run.judged
    names = ("clients", "clients_per_round", "rounds")
    if judged is None:
        told, where = {name: row.cohort.get(name, "?") for name in names}, of.row(row, "cohort")
    else:
        told, where = {name: getattr(judged.record, name) for name in names}, of.judged("record")
        if not any(told.values()):
            return sentence("its clients and rounds are not declared with the captures", because=[where])
    shown = {name: _counted(told[name], noun) for name, noun in zip(names, ("client", None, "round"), strict=True)}
    words = "{clients}, " + ("of whom " if judged else "") + "{clients_per_round} in each of {rounds}"
    return filled(words, {name: plain(value, f"{where}/{name}") for name, value in shown.items()})


def _counted(value: Any, noun: str | None) -> str:
    if noun is None:
        return str(value or "an unknown number")
    if not isinstance(value, int):
        return f"{value or 'an unknown number of'} {noun}s"
    return wording.plural(value, noun)


def _run_facts(run: RunData, of: Files, several: bool) -> Iterator[tuple[str, Sentence]]:
    name = f" ({run.name})" if several else ""
    environment = run.environment
    made = {
        "version": plain(versions_of(run).get("harness", _UNTOLD), of.result("environment", "versions", "harness")),
        "commit": plain(environment.get("git") or _UNTOLD, of.result("environment", "git")),
    }
    yield f"Tested with{name}", filled("harness {version}, commit {commit}", made)
    machine = {
        what: plain(environment.get(what) or _UNTOLD, of.result("environment", what))
        for what in ("machine", "processor", "device")
    }
    yield f"Machine{name}", filled("{machine}, processor {processor}, device {device}", machine)
    if run.written is not None:
        day = datetime.fromtimestamp(run.written, UTC)
        yield (
            f"Results written{name}",
            sentence("{day} (the time of the file)", day=Field(f"{day.day} {day:%B %Y}", of.result())),
        )
    yield f"Evidence{name}", sentence("SHA-256 {digest}", digest=Field(digest(run), of.result()))


def digest(run: RunData) -> str:
    """The hash of a run's evidence: of ``results.json``, and of ``victims.jsonl`` behind it."""
    found = hashlib.sha256()
    for name in ("results.json", "victims.jsonl"):
        try:
            found.update(read_bytes(run.folder, name))
        except UnreadableRun as problem:
            raise UsageError(f"{str(run.folder)!r}: {name} {problem}; run harness evaluate again") from problem
    return found.hexdigest()


# --------------------------------------------------------------------------------------
# The attackers of the assurance report: those that were tried, and those that were not.
#
# Goals, capabilities and knowledge are in the terms of NIST AI 100-2, "Adversarial Machine Learning". What was not
# tried is all that the registry of attacks has minus what ran, so that leaving an attack out only makes the list
# longer.


_ABOUT = "registry/attacks#/{}"
_WITHOUT = {"positive": "without the defense", "positive_sigma0": "without its noise"}
# Every attacker is a white box one: it holds the network and its weights.
_KNOWS = {
    "plain": "the network, not the noise", "informed": "the network, the defense and its settings",
    "tampering": "the network, the defense and its settings",
}  # fmt: skip
_MAY = {
    "plain": "Observes", "informed": "Observes", "tampering": "Sends manipulated weights (model control)",
}  # fmt: skip


def threat_model(cell: CellResult) -> str:
    """The letter of an attack's threat model, by what it knows.

    After the table of models in Carletti et al., "SoK: Gradient Inversion Attacks in Federated Learning" (USENIX
    Security 2025). All attacks know the network and the training, so none is A or B; none chooses clients (H).
    """
    if cell.tier == "tampering":
        return "G" if cell.prior else "F"
    if cell.batch_norm == "sent":
        return "E"
    return "D" if cell.tier != "plain" and cell.prior else "C"


@dataclass(frozen=True)
class Tried:
    """One row: the attack, what it wants, may do and knows, what it reached at each place, and its controls."""

    attack: Sentence
    goal: Sentence
    model: Sentence
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
    return [_row(own, places) for own in found.values()]


def _row(own: Sequence[tuple[Examined, CellResult]], places: Sequence[Examined]) -> Tried:
    first, cell = own[0]
    files = first.files
    name = "{name}, with labels known" if cell.labels == "known" else "{name}"
    goal = "data reconstruction" if cell.identified is None else "membership inference"
    prior = "; {public}" if cell.tier != "plain" and cell.prior else ""
    public = plain(f"public data: {cell.prior.name}" if cell.prior else "", files.cell(cell, "prior"))
    return Tried(
        sentence(name, name=plain(cell.attack, files.cell(cell, "attack"))),
        sentence("{goal}", goal=Field(goal, files.cell(cell, "identified"))),
        sentence("{model}", model=Field(threat_model(cell), files.cell(cell, "tier"))),
        sentence("{may}; knows {knows} (white-box)" + prior, may=Field(_MAY[cell.tier], files.cell(cell, "tier")),
                 knows=Field(_KNOWS[cell.tier], files.cell(cell, "tier")), public=public),
        tuple(_reached(own, places)), tuple(_controls(own)),
    )  # fmt: skip


def _reached(own: Sequence[tuple[Examined, CellResult]], places: Sequence[Examined]) -> Iterator[Sentence]:
    """Yield what the attack reached; places at which it reached the same share a sentence."""
    same: dict[str, list[tuple[Examined, Sentence]]] = {}
    for place, cell in own:
        made = _count(place, cell)
        same.setdefault(made.words, []).append((place, made))
    for group in same.values():
        count = merged([made for _, made in group])
        if len(places) == 1:
            yield count
            continue
        sources = [source for place, _ in group for one in (place.where, place.system) for source in one.sources]
        shown = _where([place for place, _ in group], places)
        yield Sentence(f"{shown}: {count.words}", (*dict.fromkeys(sources), *count.sources))


def _where(group: Sequence[Examined], places: Sequence[Examined]) -> str:
    """Some of all places in few words, with their system where there are several."""
    if len(group) == len(places):
        return "at every place"
    systems: dict[str, list[Examined]] = {}
    for place in group:
        systems.setdefault(place.system.words, []).append(place)
    several = len({place.system.words for place in places}) > 1
    parts = []
    for system, own in systems.items():
        rows = [place.place.summary for place in own]
        short = [f"surface {row.surface}" if row.surface is not None else text.safe(row.tap, 40) for row in rows]
        names = wording.join(list(dict.fromkeys(short)))
        everywhere = len(own) == sum(place.system.words == system for place in places)
        parts.append((f"{system}, everywhere" if everywhere else f"{system}, {names}") if several else names)
    return "; ".join(parts)


def _count(place: Examined, cell: CellResult) -> Sentence:
    victims = place.place.run.victims[cell.key or ""]
    source = place.files.victims(cell)
    if cell.identified is not None:
        count = first_in_lineup(victims)
        return sentence("{hit} of {of} picked", hit=Field(str(count.hit), source), of=Field(str(count.records), source))
    count, first = reconstructed([victims]), first_in_lineup(victims)
    of, hit = (count.clients, count.touched) if count.hit is None else (count.records, count.hit)
    unit = ""
    if count.hit is None:
        unit = f" {'clients' if wording.summed(cell) == 1 else 'rounds'} with a record"
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
    """Return what the attack does there, as the end of a sentence."""
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
        of=Field(wording.victims(control.victims, wording.summed(control)), files.cell(control, "victims")),
    )  # fmt: skip


def not_tried(places: Sequence[Examined]) -> list[Sentence]:
    """Return what could have been tried and was not, a line each."""
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
    """Return why an attack of the registry did not run, and where that stands."""
    for place in places:
        for cell in place.place.cells:
            if cell.attack == name and cell.not_applicable_reason is not None:
                source = place.files.cell(cell, "not_applicable_reason")
                if cell.settled_by:
                    return f"skipped, since {text.safe(cell.settled_by, 40)} already succeeded there", source
                return f"not possible here: {text.safe(plainer(cell.not_applicable_reason), 160)}", source
    kind: type[Attacker] = ATTACKS[name]
    texts = any("text_exact" in cell.metrics for place in places for cell in place.place.cells)
    if kind.reads == ("images" if texts else "texts") and not (texts and kind.by_vectors):
        return f"for {kind.reads} only", _ABOUT.format(name)
    if kind.tier == "tampering":
        return "not chosen for this test; the server would send manipulated weights (tampering)", _ABOUT.format(name)
    return "not chosen for this test", _ABOUT.format(name)


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
        looks = max(place.place.summary.observations for place in places)
        anew = f", up to {looks} times with new noise" if looks > 1 else ""
        lines.append(sentence(
            f"Attackers that combine several rounds: each record was observed in 1 round{anew}.",
            because=[place.files.row(place.place.summary, "rounds_tried") for place in single],
        ))  # fmt: skip
    else:
        most = max(places, key=lambda place: columns.rounds_seen(place.place.summary))
        lines.append(sentence(
            "Attackers that combine more than {rounds} rounds, or rounds with other examples.",
            rounds=Field(str(columns.rounds_seen(most.place.summary)),
                         most.files.row(most.place.summary, "options", "rounds_seen")),
        ))  # fmt: skip
    letters = {threat_model(cell) for place in places for cell in place.place.cells} | {"A", "B"}
    missing = Field(wording.join(sorted(set("CDEFGH") - letters)), first.files.row(first.place.summary, "attacks"))
    lines.append(sentence(
        "Threat models {missing}; a server that also chooses clients (H) is in no attack of harness {version}.",
        missing=missing, version=version,
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
