"""What was promised: the epsilon a paper's convention claims beside the one that holds for what ran."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.places import Shown
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, epsilon, figure, make, words
from harness.results import Statement

_COLUMNS = (
    Head("defense", choice=True), Head("arguments"), Head("against", choice=True),
    Head("claimed epsilon", number=True), Head("recomputed epsilon", number=True),
    Head("guarantee", choice=True), Head("in plain words", wide=True), Head("delta", number=True),
    Head("of", wide=True), Head("unit"), Head("adjacency"), Head("sampler"), Head("conversion"),
    Head("schedule"), Head("why", wide=True),
)  # fmt: skip


def privacy_table(runs: Sequence[RunData], cells: Iterable[Shown]) -> Table:
    """Each statement once."""
    rows = list(dict.fromkeys([*_evaluated(cells), *_trained(runs)]))
    return make(
        "privacy", "What is promised", _COLUMNS, rows,
        "Claimed: by the paper's own convention, whether or not it holds. Recomputed: the smallest epsilon that is "
        "proven for what ran; none where nothing is. Resilience seen above is no such promise, and a promise need not "
        "stop what was seen above: it covers a view and a unit.",
    )  # fmt: skip


def _evaluated(cells: Iterable[Shown]) -> Iterator[tuple[Value, ...]]:
    for item in cells:
        rounds = f"{item.cell.cohort.get('rounds')} planned rounds"
        if item.trained:
            folder, done = item.trained
            rounds = f"{done} rounds trained ({Path(folder).name})"
        of = words(f"{item.cell.dataset}, {rounds}", 120)
        for statement in item.cell.privacy:
            yield _row(item.defense, item.arguments, of, statement)


def _trained(runs: Iterable[RunData]) -> Iterator[tuple[Value, ...]]:
    for run in runs:
        if run.training is not None:
            settings = run.training.settings
            name, arguments = wording.label(str(settings.get("defense", "?")), _arguments(settings))
            of = words(f"{settings.get('dataset', '?')}, {len(run.training.rounds)} rounds trained ({run.name})", 120)
            for statement in run.training.privacy:
                yield _row(name, arguments, of, statement)


def _arguments(settings: dict[str, object]) -> dict[str, object]:
    given = settings.get("defense_args")
    return given if isinstance(given, dict) else {}


def _row(defense: str, arguments: str, of: Value, statement: Statement) -> tuple[Value, ...]:
    vain = statement.guarantee != "none" and text.too_large(statement.epsilon)
    kind = "nothing" if statement.guarantee == "none" or vain else "promise"
    nothing = Value("none", None, "nothing")
    delta = statement.delta
    return (
        words(defense, 60), words(arguments), words(statement.view, 40),
        nothing if statement.claimed_epsilon is None else figure(statement.claimed_epsilon),
        nothing if statement.epsilon is None else epsilon(statement.epsilon),
        Value(words(statement.guarantee, 40).shown, None, kind),
        Value(wording.VAIN if vain else wording.guarantee(statement.guarantee)),
        words(None if delta is None else f"{delta:.1g}"), of, words(statement.unit, 40), words(statement.adjacency, 40),
        words(statement.sampler, 40), words(statement.conversion, 60), words(statement.schedule, 80),
        words(statement.notes),
    )  # fmt: skip
