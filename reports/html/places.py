"""Places of cells and their runs: what the matrix, the figures and the gallery are made of."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.reports import columns, text
from harness.reports.html import wording
from harness.reports.html.run_data import RunData
from harness.results import CellResult, SummaryRow

_CANONICAL = json.JSONEncoder(sort_keys=True, default=str)
#: The worst first: what counts where a defense does differently at several places.
GRAVITY = ("invalid", "leaks", "inconclusive", "resilient", "impossible", "skipped")


@dataclass(frozen=True)
class Shown:
    """A cell with its run, and the names of its defense and setting on the page.

    ``defense`` is told apart from other rows of the same setting by its arguments and, where they agree, its run.
    """

    run: RunData
    cell: CellResult
    setting: str
    defense: str
    arguments: str

    @property
    def row(self) -> tuple[str, str]:
        """The row of a matrix this cell belongs to."""
        return self.defense, self.arguments

    @property
    def kind(self) -> str:
        """The verdict; ``impossible`` where it could not be run, ``skipped`` where its place was settled before,
        ``invalid`` where it must not be used."""
        if self.cell.not_applicable_reason is not None:
            return "skipped" if self.cell.settled_by else "impossible"
        return self.cell.verdict_alone if self.run.valid else "invalid"

    @property
    def trained(self) -> tuple[str, int] | None:
        """Folder and finished rounds of the training run whose model was attacked; None where none was named."""
        run = self.run.settings.get(self.cell.key or "", {}).get("trained")
        folder, rounds = (run.get("folder"), run.get("rounds")) if isinstance(run, dict) else (None, None)
        return (folder, rounds) if isinstance(folder, str) and isinstance(rounds, int) else None


@dataclass(frozen=True)
class Decided:
    """A summary row with its run and names, the cell of its strongest attack, where there is one, and all its cells."""

    run: RunData
    summary: SummaryRow
    setting: str
    defense: str
    arguments: str
    cell: CellResult | None
    cells: tuple[CellResult, ...]

    @property
    def refused(self) -> list[CellResult]:
        """Cells that were asked for and could not be run."""
        return [cell for cell in self.cells if cell.not_applicable_reason is not None and not cell.settled_by]

    @property
    def kind(self) -> str:
        """The verdict; ``impossible`` where nothing could be run, ``invalid`` where it must not be used."""
        if self.cells and len(self.refused) == len(self.cells):
            return "impossible"
        return self.summary.shown if self.run.valid else "invalid"

    @property
    def why(self) -> str:
        """Return what was found out, in words: nothing where the verdict must not be used."""
        return self.run.no_verdict if self.kind == "invalid" else text.headed(self.summary)


def shown_cells(runs: Sequence[RunData]) -> list[Shown]:
    """Every cell that was asked for, not its controls."""
    names = _Names(runs)
    return [
        Shown(run, cell, wording.setting(cell), *names.of(run, cell))
        for run in runs
        for cell in run.cells
        if cell.role == "cell"
    ]


def decided_places(runs: Sequence[RunData]) -> list[Decided]:
    """Every summary row."""
    names = _Names(runs)
    return [
        Decided(run, row, wording.setting(row), *names.of(run, row), _strongest_cell(known, row), _cells(known, row))
        for run in runs
        for known in [run.by_key()]
        for row in run.summary
    ]


def inward(place: Decided) -> tuple[bool, int]:
    """Places in the order from the client on, those that are no surface last."""
    surface = place.summary.surface
    return surface is None, -(surface or 0)


def _strongest_cell(known: Mapping[str, CellResult], row: SummaryRow) -> CellResult | None:
    """The cell of the strongest attack, else of the first that was possible."""
    found = [columns.strongest(row, known), *_cells(known, row)]
    return next((cell for cell in found if cell is not None and cell.not_applicable_reason is None), None)


def _cells(known: Mapping[str, CellResult], row: SummaryRow) -> tuple[CellResult, ...]:
    found = (known.get(standing.cell or "") for standing in row.attacks)
    return tuple(cell for cell in found if cell is not None)


class _Names:
    """Names of defenses that differ wherever the defenses do."""

    def __init__(self, runs: Sequence[RunData]) -> None:
        self._arguments: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
        self._runs: dict[tuple[str, str, str, str], dict[str, None]] = defaultdict(dict)
        self._labels: dict[tuple[str, str], tuple[str, str]] = {}
        for run in runs:
            for cell in [*run.cells, *run.summary]:
                if getattr(cell, "role", "cell") == "cell":
                    alike, canonical = self._alike(cell)
                    variants = self._arguments[alike]
                    variants.setdefault(canonical, len(variants) + 1)
                    self._runs[(*alike, canonical)][run.name] = None

    def of(self, run: RunData, cell: wording.Placed) -> tuple[str, str]:
        """The name, and the arguments with what tells them apart from others that look the same."""
        alike, canonical = self._alike(cell)
        _, name, arguments = alike
        variants = self._arguments[alike]
        parts = [arguments] if arguments else []
        if len(variants) > 1:
            parts.append(f"variant {variants[canonical]}")
        if len(self._runs[(*alike, canonical)]) > 1:
            parts.append(f"run {run.name}")
        return name, ", ".join(parts)

    def _alike(self, cell: wording.Placed) -> tuple[tuple[str, str, str], str]:
        """Return what cells that look the same have in common, and what tells them apart."""
        canonical = _CANONICAL.encode(cell.defense_args)
        defense = cell.defense, canonical
        if defense not in self._labels:
            self._labels[defense] = wording.label(cell.defense, cell.defense_args)
        return (wording.setting(cell), *self._labels[defense]), canonical


def grouped(items: Iterable[Shown]) -> dict[tuple[str, str], list[Shown]]:
    """Cells by setting and attacker, in their order."""
    groups: dict[tuple[str, str], list[Shown]] = defaultdict(list)
    for item in items:
        groups[item.setting, columns.attacker(item.cell)].append(item)
    return groups
