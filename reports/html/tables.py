"""Every table of the report, in the order of the page."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.reports import text
from harness.reports.html import wording
from harness.reports.html.cell_tables import cell_table, control_summary, control_table, resilience_table
from harness.reports.html.judged import Estimate
from harness.reports.html.places import Decided, Shown, decided_places, grouped, shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.html.table import Head, Table, Value, epsilon, figure, make, words
from harness.reports.html.training import round_table, training_table
from harness.reports.html.trend import trend_table
from harness.results import Statement
from harness.scoring.verdict import traces_p

# Tables of what `harness judge` found out of captures.

_MOST = 400


def check_table(runs: Sequence[RunData]) -> Table:
    """Return whether what was sent is what is declared, check by check."""
    rows = [
        (
            words(run.name), words(check.name, 80),
            Value(f"{wording.SYMBOLS[check.kind]} {check.outcome}", None, check.kind), words(check.detail, 300),
        )
        for run in runs
        if run.judged
        for check in run.judged.checks
    ]  # fmt: skip
    titles = (Head("run"), Head("check"), Head("outcome", choice=True), Head("evidence", wide=True))
    return make(
        "checks", "Do the updates match what is declared?", titles, rows,
        "From the updates alone, or from the truth if it is known; the probability of a false alarm is at most one in "
        "100,000 for each check.",
    )  # fmt: skip


def estimate_table(runs: Sequence[RunData]) -> Table:
    """Return what each attack makes of each capture."""
    rows = [
        (words(run.name), words(one.attack, 40), Value(str(number + 1), float(number + 1)), *_capture(one, number))
        for run in runs
        if run.judged
        for one in run.judged.estimates
        for number in range(len(one.estimates))
    ]  # fmt: skip
    titles = (
        Head("run"), Head("attack", choice=True), Head("capture", number=True), Head("estimate", choice=True),
        Head("loss left", number=True), Head("left when shuffled", number=True),
        Head("left by successes, at most", number=True), Head("labels inferred"),
    )  # fmt: skip
    reasons = dict.fromkeys(
        f" {text.safe(one.attack, 40)}: {text.safe(one.reason, 300)}."
        for run in runs
        if run.judged
        for one in run.judged.estimates
    )
    more = f" Of {len(rows)} rows the first {_MOST}." if len(rows) > _MOST else ""
    return make(
        "estimates", "What comes back, by estimate", titles, rows[:_MOST],
        "No truth was known: a capture counts as plausibly reconstructed where simulated stand-ins come back and it is "
        f"matched as those are, and as a shuffled update is not. Loss left: a share of the first loss; of attackers "
        f"who know the noise or solve for what comes back, their loss itself.{''.join(reasons)}{more}",
    )  # fmt: skip


def _capture(one: Estimate, number: int) -> tuple[Value, ...]:
    def entry(values: Sequence | None):
        return values[number] if values is not None and number < len(values) else None

    labels = entry(one.labels)
    return (
        words(one.estimates[number]), _loss(entry(one.left)), _loss(entry(one.left_shuffled)), _loss(one.left_usually),
        words(None if labels is None else ", ".join(map(str, labels[:32]))),
    )  # fmt: skip


def _loss(value: float | None) -> Value:
    """Losses differ by orders of magnitude."""
    return figure(None) if value is None else Value(f"{value:.3g}", value)


# Tables about the runs themselves: environment, exact settings, and what was left out.


def environment_table(runs: Sequence[RunData]) -> Table:
    """A row per fact, a column per run."""
    facts = {run.name: dict(_flat(_environment(run))) for run in runs}
    names = list(dict.fromkeys(name for own in facts.values() for name in own))
    rows = [(words(name, 60), *(words(own.get(name), 120) for own in facts.values())) for name in names[:60]]
    titles = [Head("what"), *(Head(name) for name in facts)]
    return make("environment", "Environment", titles, rows)


def _environment(run: RunData) -> dict[str, Any]:
    return run.environment or (run.training.environment if run.training else {})


def _flat(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def settings_table(runs: Sequence[RunData], cells: Iterable[Shown]) -> Table:
    """Everything that determines the numbers, once for each defense, each attack, and all they have in common."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for what, name, settings, run in [*_of_cells(cells), *_of_trainings(runs)]:
        found.setdefault((what, name, _json(settings)), []).append(run)
    rows = [
        (Value(what), words(name, 60), words(settings, 1200), words(", ".join(dict.fromkeys(names)), 200))
        for (what, name, settings), names in sorted(found.items(), key=lambda entry: _KINDS.index(entry[0][0]))
    ]
    titles = (Head("of", choice=True), Head("name"), Head("settings", wide=True), Head("run"))
    return make("settings", "Exact settings", titles, rows, "Those of each cell are in the folders cells of the runs.")


_KINDS = ("defense", "attack", "federation", "everything else", "training")
# What a table of cells says of each, or another row here.
_SAID = {"dataset", "model", "defense", "defense_args", "attack", "attack_args", "tap", "surface", "suite", "control"}


def _of_cells(cells: Iterable[Shown]) -> Iterator[tuple[str, str, Any, str]]:
    for item in cells:
        cell, run = item.cell, item.run.name
        yield "defense", cell.defense, cell.defense_args, run
        yield "attack", cell.attack, cell.attack_args, run
        yield "federation", "", cell.cohort, run
        if asked := item.run.settings.get(cell.key or ""):
            yield "everything else", "", {name: asked[name] for name in asked if name not in _SAID}, run


def _of_trainings(runs: Iterable[RunData]) -> Iterator[tuple[str, str, Any, str]]:
    for run in runs:
        if run.training is not None:
            yield "training", str(run.training.settings.get("defense", "?")), run.training.settings, run.name


# One for all of ten thousands of values: json.dumps makes one for each.
_json = json.JSONEncoder(ensure_ascii=False, default=str).encode


def left_out_table(runs: Sequence[RunData]) -> Table:
    """Return what could not be used, and what is told of verdicts."""
    rows = [
        (words(run.name), words(reason, 300)) for run in runs for reason in [*run.told, *run.unproven, *run.left_out]
    ]
    titles = (Head("run"), Head("what and why", wide=True))
    return make("left-out", "What was left out, and notes on verdicts", titles, rows)


# The papers' layout: defenses side by side, a line per surface and measure, a table per setting and attack.

_LETTERS = {"leaks": "N", "resilient": "Y", "inconclusive": "?", "invalid": "!"}
_MISSING = Value(text.MISSING)


def paper_tables(cells: Sequence[Shown]) -> list[Table]:
    """A table per setting and attack that was possible."""
    groups = grouped(item for item in cells if item.cell.not_applicable_reason is None)
    return [
        _table(number, setting, attack, members)
        for number, ((setting, attack), members) in enumerate(groups.items(), start=1)
    ]


def _table(number: int, setting: str, attack: str, members: Sequence[Shown]) -> Table:
    names = list(dict.fromkeys(item.row for item in members))
    at = {(item.row, item.cell.tap): item for item in members}
    taps = sorted({(-(item.cell.surface or 0), item.cell.tap): item.cell for item in members}.items())
    rows = [
        (Value(wording.surface(first)), Value(title), *(_entry(at.get((name, first.tap)), show) for name in names))
        for _, first in taps
        for title, show in _MEASURES
    ]
    titles = [Head("surface"), Head("measure"), *(Head(" ".join(filter(None, name)), number=True) for name in names)]
    return make(
        f"paper-{number}", f"{text.safe(attack, 60)}: {setting}", titles, rows,
        "Y resilient, N leaks, ? undecided, ! of an invalid run: the verdict with its controls, not a pixel threshold. "
        "ASR: attack success rate; distance: median RMSE; iterations: mean over all victims, failures at the cap.",
    )  # fmt: skip


def _entry(item: Shown | None, show: Callable[[Shown], Value]) -> Value:
    return _MISSING if item is None else show(item)


def _letter(item: Shown) -> Value:
    return Value(_LETTERS[item.kind] + (wording.traces(traces_p(item.cell)) if item.kind == "leaks" else ""))


def _success(item: Shown) -> Value:
    rate = item.cell.asr.get("strict")
    return Value(text.rate(rate), rate and rate.rate)


def _median(item: Shown) -> Value:
    metrics = item.cell.metrics
    return figure(getattr(metrics.get("rmse") or metrics.get("continuous_rmse"), "median", None), 4)


_MEASURES: tuple[tuple[str, Callable[[Shown], Value]], ...] = (
    ("resilient", _letter),
    ("ASR", _success),
    ("distance", _median),
    ("iterations", lambda item: figure(getattr(item.cell.metrics.get("tau"), "mean", None), 0)),
)


# What was promised: the epsilon a paper's convention claims beside the one that holds for what ran.

_COLUMNS = (
    Head("defense", choice=True), Head("arguments"), Head("against", choice=True),
    Head("claimed epsilon", number=True), Head("recomputed epsilon", number=True),
    Head("TPR at 1% FPR", number=True), Head("why", long=True), Head("guarantee", choice=True),
    Head("in plain words", wide=True), Head("delta", number=True), Head("mu", number=True), Head("of", wide=True),
    Head("unit"), Head("adjacency"), Head("sampler"), Head("conversion"), Head("schedule"),
)  # fmt: skip


def privacy_table(runs: Sequence[RunData], cells: Iterable[Shown]) -> Table:
    """Each statement once."""
    rows = list(dict.fromkeys([*_evaluated(cells), *_trained(runs)]))
    return make(
        "privacy", "What is promised", _COLUMNS, rows,
        "Claimed: by the paper or the framework, whether or not it holds. Recomputed: the smallest epsilon that is "
        "proven for what ran; none where nothing is. TPR at 1% FPR: the most present records that any "
        "attacker recognizes while it takes 1% of absent ones for present. Resilience seen above is no such promise, "
        "and a promise need not stop what was seen above: it covers a view and a unit.",
    )  # fmt: skip


def _evaluated(cells: Iterable[Shown]) -> Iterator[tuple[Value, ...]]:
    for item in cells:
        planned = item.cell.cohort.get("rounds")
        rounds = "" if planned is None else wording.plural(planned, "planned round")
        if item.trained:
            folder, done = item.trained
            rounds = f"{wording.plural(done, 'round')} trained ({Path(folder).name})"
        of = words(", ".join(filter(None, (item.cell.dataset, rounds))), 120)
        for statement in item.cell.privacy:
            yield _row(item.defense, item.arguments, of, statement)


def _trained(runs: Iterable[RunData]) -> Iterator[tuple[Value, ...]]:
    for run in runs:
        if run.training is not None:
            settings = run.training.settings
            name, arguments = wording.label(str(settings.get("defense", "?")), _arguments(settings))
            rounds = wording.plural(len(run.training.rounds), "round")
            of = words(f"{settings.get('dataset', '?')}, {rounds} trained ({run.name})", 120)
            for statement in run.training.privacy:
                said = filter(None, (statement.notes, run.training.careless(statement)))
                yield _row(name, arguments, of, replace(statement, notes="; ".join(said)))


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
        nothing if statement.epsilon is None else epsilon(statement.epsilon), _told(statement), words(statement.notes),
        Value(words(statement.guarantee, 40).shown, None, kind),
        Value(wording.VAIN if vain else wording.guarantee(statement.guarantee)),
        words(None if delta is None else f"{delta:.1g}"), figure(statement.mu), of,
        words(statement.unit, 40), words(statement.adjacency, 40),
        words(statement.sampler, 40), words(statement.conversion, 60), words(statement.schedule, 80),
    )  # fmt: skip


def _told(statement: Statement) -> Value:
    told = statement.told_apart
    return Value("", None) if told is None else Value(text.percent_up(told), told)


def unread(earlier: Sequence[RunData]) -> list[RunData]:
    """The earlier runs that have no place in the trend; the others need no more than their results."""
    return [run for run in earlier if not run.cells]


def all_tables(runs: Sequence[RunData], earlier: Sequence[RunData] = ()) -> list[Table]:
    """Tables that have rows; of ``earlier`` runs only the trend, and those that could not be read."""
    return tables_of(runs, earlier, decided_places(runs), shown_cells(runs))


def tables_of(
    runs: Sequence[RunData], earlier: Sequence[RunData], places: Sequence[Decided], cells: Sequence[Shown]
) -> list[Table]:
    """Return the tables of :func:`all_tables` for who has found out already what stands where in ``runs``."""
    trend, missing = trend_table([*earlier, *runs]), left_out_table([*unread(earlier), *runs])
    made = [
        check_table(runs), estimate_table(runs), resilience_table(places), trend, *paper_tables(cells),
        cell_table(cells), training_table(runs), round_table(runs), privacy_table(runs, cells), control_summary(runs),
        control_table(runs), environment_table(runs), settings_table(runs, cells), missing,
    ]  # fmt: skip
    return [table for table in made if table.rows]
