"""Tables about the runs themselves: environment, exact settings, and what was left out."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness.reports.html.places import Shown
from harness.reports.html.run_data import RunData
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
    """What could not be used, and what is told of verdicts."""
    rows = [(words(run.name), words(reason, 300)) for run in runs for reason in [*run.told, *run.left_out]]
    titles = (Head("run"), Head("what and why", wide=True))
    return make("left-out", "What was left out, and notes on verdicts", titles, rows)
