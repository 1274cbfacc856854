"""Tables about the runs themselves: environment, exact settings, and what was left out."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.reports.html import wording
from harness.reports.html.places import Shown
from harness.reports.html.runs import RunData
from harness.reports.html.table import Head, Table, Value, make, words


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
    """Everything that determines the numbers: of each cell as it was asked for, and as it was built."""
    rows = [_cell(item) for item in cells]
    for run in runs:
        if run.training is None:
            continue
        defense = str(run.training.settings.get("defense", "?"))
        empty = words(None)
        rows.append(
            (
                words(run.name), Value("training"), words(defense, 60), empty, empty, empty, empty, empty,
                words(_json(run.training.settings), 1200),
            )
        )  # fmt: skip
    titles = (
        Head("run"), Head("cell"), Head("defense", choice=True), Head("attack", choice=True),
        Head("surface", choice=True), Head("defense arguments", wide=True), Head("attack arguments", wide=True),
        Head("cohort", wide=True), Head("as asked for", wide=True),
    )  # fmt: skip
    return make("settings", "Exact settings", titles, rows)


def _cell(item: Shown) -> tuple[Value, ...]:
    cell = item.cell
    return (
        words(item.run.name), words(cell.key, 64), words(item.defense), words(cell.attack, 40),
        Value(wording.surface(cell)), words(_json(cell.defense_args)), words(_json(cell.attack_args)),
        words(_json(cell.cohort)), words(_json(item.run.settings.get(cell.key or ""))),
    )  # fmt: skip


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, default=str)


def left_out_table(runs: Sequence[RunData]) -> Table:
    """What could not be used."""
    rows = [(words(run.name), words(reason, 300)) for run in runs for reason in run.left_out]
    return make("left-out", "What was left out", (Head("run"), Head("what and why", wide=True)), rows)
