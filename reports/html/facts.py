"""What was tested, when, with what and on which machine, as the assurance report says it."""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from harness.base.errors import UsageError
from harness.reports.columns import kinds_of
from harness.reports.html import wording
from harness.reports.html.harms import Examined, Field, Files, Sentence, filled, plain, sentence
from harness.reports.html.run_data import RunData, UnreadableRun, read_bytes

_UNTOLD = "not stated"


def versions_of(run: RunData) -> dict:
    """The versions that a run was made with."""
    found = run.environment.get("versions")
    return found if isinstance(found, dict) else {}


def facts_of(
    runs: Sequence[RunData], files: dict[int, Files], places: Sequence[Examined]
) -> Iterator[tuple[str, Sentence]]:
    """Each fact with its title."""
    first = places[0]
    row, of = first.place.summary, first.files
    seen = dict.fromkeys((place.place.defense, place.place.arguments) for place in places)
    names = "; ".join(" ".join(filter(None, one)) for one in seen)
    cell = first.place.cells[0] if first.place.cells else None
    yield "Data and network", sentence(
        "{dataset} ({many}), {model}", dataset=plain(row.dataset, of.row(row, "dataset")),
        many=Field(kinds_of(first.place.cells).many, of.row(row, "dataset")),
        model=plain(row.model, of.row(row, "model")),
    )  # fmt: skip
    yield "Defense", sentence("{defense}", defense=Field(names, of.row(row, "defense")))
    yield "Federation", _federation(first)
    # An option that the row does not name is at its default.
    named = ("options", "optimizer") if "optimizer" in row.options else ()
    optimizer = plain(row.settings.get("optimizer", "sgd"), of.row(row, *named))
    yield "Local training", sentence(
        "{steps} of {records}, optimizer {optimizer}", optimizer=optimizer,
        steps=Field(wording.plural(row.local_steps, "local step"), of.row(row, "local_steps")),
        records=Field(wording.plural(row.batch_size, "record"), of.row(row, "batch_size")),
    )  # fmt: skip
    captured = next((run for run in runs if run.judged), None)
    if captured and captured.judged:
        yield (
            "Captured",
            sentence(
                "{captured}; attacks ran on the captured updates",
                captured=Field(captured.judged.captured, files[id(captured)].judged("record")),
            ),
        )
    else:
        yield (
            "Simulated",
            sentence(
                "the harness played the clients and the server; no update of a live federation was captured",
                because=[of.row(row, "tap")],
            ),
        )
    if cell is not None:
        clients = f"{row.victims} attacked clients, random seed {', '.join(map(str, row.seeds[:8]))}"
        yield "Attacked", sentence("{clients}", clients=Field(clients, of.row(row, "victims")))
    for run in runs:
        yield from _run_facts(run, files[id(run)], len(runs) > 1)


def _federation(place: Examined) -> Sentence:
    """Clients and rounds: as they were played, or as captures declare them."""
    row, of = place.place.summary, place.files
    names = ("clients", "clients_per_round", "rounds")
    words = "{clients} clients, {clients_per_round} in each of {rounds} rounds"
    judged = place.place.run.judged
    if judged is None:
        return filled(words, {name: plain(row.cohort.get(name, "?"), of.row(row, "cohort", name)) for name in names})
    told = {name: getattr(judged.record, name) for name in names}
    if not any(told.values()):
        return sentence("its clients and rounds are not declared with the captures", because=[of.judged("record")])
    words = "{clients} clients, of whom {clients_per_round} in each of {rounds} rounds"
    unknown = {"clients_per_round": "an unknown number"}
    return filled(words, {
        name: plain(value or unknown.get(name, "an unknown number of"), of.judged("record", name))
        for name, value in told.items()
    })  # fmt: skip


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
