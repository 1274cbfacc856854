"""Results as an object: what Python and notebooks have of a run, in memory or from its folder."""

import base64
import io
import os
import tempfile
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from harness.base.errors import UsageError
from harness.reports import columns, text
from harness.reports.cell_picture import save_cell_picture
from harness.reports.headline import PROMISE
from harness.reports.html import wording
from harness.reports.html.export import rows_of
from harness.reports.html.page import make_page
from harness.reports.html.places import GRAVITY, Decided, decided_places, shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.html.runs import read_runs, with_trainings
from harness.results import (
    CellResult,
    ResultDocument,
    RunFolder,
    StoredCell,
    SummaryRow,
    VictimRecord,
    read_results,
    require_writable,
    write_atomic,
)

# Beyond that a run keeps no images for pictures: 256 MiB of float32.
_MOST_KEPT = 2**26
_WIDTH = 80
_HEADS = ("verdict", "defense", "surface", "strongest attack", "success [95%]", "why")


@dataclass(frozen=True)
class OneCell:
    """One attack at one place: ``result`` has the numbers, ``victims`` a record for each example.

    Every field of :class:`harness.results.CellResult` is an attribute of this object too.
    """

    result: CellResult
    victims: tuple[VictimRecord, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.result, name)


@dataclass(frozen=True)
class Pictures:
    """Truth beside reconstructions, as PNG files by the key of their cell; a notebook shows them."""

    titles: tuple[str, ...] = ()
    images: tuple[bytes, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.images)

    def save(self, folder: str | Path) -> list[Path]:
        """Write each as ``1.png``, ``2.png``, ... into a folder, which is made. Returns the files."""
        files = [Path(folder, f"{number}.png") for number in range(1, len(self.images) + 1)]
        for file, image in zip(files, self.images, strict=True):
            write_atomic(file, image)
        return files

    def _repr_html_(self) -> str:
        return (
            "".join(
                f'<figure><figcaption>{escape(title)}</figcaption><img alt="{escape(title)}" '
                f'src="data:image/png;base64,{base64.b64encode(image).decode()}"></figure>'
                for title, image in zip(self.titles, self.images, strict=True)
            )
            or "<p>There are no pictures.</p>"
        )


class Outcome:
    """The results of a run.

    ``run["fed_cdp", "cpl", 2]`` is one attack at one place: a defense, an attack, and a surface or a tap; those that
    leave no choice may be left out. It prints as a short table.

    Attributes:
        document: all numbers, as ``results.json`` has them.
        folder: where the files are; None where none were written.
    """

    def __init__(
        self, data: RunData, document: ResultDocument, folder: Path | None, scored: Iterable[Any] = ()
    ) -> None:
        self.document, self.folder = document, folder
        self._data, self._scored = data, list(scored)

    @property
    def verdict(self) -> str:
        """The gravest of all places: ``invalid``, ``leaks``, ``inconclusive``, ``resilient`` or ``impossible``."""
        found = {place.kind for place in self.places}
        return next(kind for kind in GRAVITY if kind in found) if found else "inconclusive"

    @property
    def valid(self) -> bool:
        """Return whether its verdicts may be used; ``document.valid_reason`` says why not."""
        return self.document.valid

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and the machine."""
        return self.document.environment

    @property
    def cells(self) -> list[CellResult]:
        """Every attack at every place, and their controls."""
        return self.document.cells

    @property
    def summary(self) -> list[SummaryRow]:
        """The verdict over all attacks for each defense at each place."""
        return self.document.summary

    @property
    def places(self) -> list[Decided]:
        """Verdicts over all attacks for each defense at each place, with names that tell them apart."""
        return decided_places([self._data])

    @property
    def victims(self) -> list[VictimRecord]:
        """A record for each attacked example of every cell."""
        return [one for records in self._data.victims.values() for one in records]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every attack at a place as plain values, with the columns of ``harness export --to csv``."""
        return [dict(row) for row in rows_of(shown_cells([self._data]))]

    def __getitem__(self, place: str | tuple[str | int, ...]) -> OneCell:
        wanted = place if isinstance(place, tuple) else (place,)
        asked = [cell for cell in self.cells if cell.role == "cell"]
        found = [cell for cell in asked if all(part in _names(cell) for part in wanted)]
        if len(found) != 1:
            known = "; ".join(dict.fromkeys(f"{one.defense}, {one.attack}, {columns.surface(one)}" for one in asked))
            raise KeyError(f"{len(found)} cells are of {', '.join(map(str, wanted))}; there are: {known}")
        return OneCell(found[0], tuple(self._data.victims.get(found[0].key or "", ())))

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a row per attack at a place, with the columns of ``harness export --to csv``.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise UsageError("this needs pandas; pip install pandas") from error
        return pandas.DataFrame(self.rows)

    def report(self, out: str | Path) -> Path:
        """Write the page of ``harness report``. Returns its path."""
        path = Path(out)
        if os.path.isdir(path):
            raise UsageError(f"{str(path)!r} is a folder; name a file such as {str(path / 'report.html')!r}")
        require_writable(path, "out")
        if self.folder is not None and not self._scored:
            page = make_page(with_trainings(read_runs([self.folder])), [])
        else:
            with tempfile.TemporaryDirectory() as folder:
                place = RunFolder(Path(folder, self._data.name))
                place.write_results(self.document, self.victims)
                self._draw(place)
                page = make_page([replace(self._data, folder=place.path)], [])
        write_atomic(path, page.encode(), "out")
        return path

    def gallery(self) -> Pictures:
        """Truth beside reconstructions of each attack that reconstructs; none of a run that kept no images."""
        keys = {cell.key: cell for cell in self.cells if cell.role == "cell"}
        with tempfile.TemporaryDirectory() as folder:
            place = RunFolder(folder) if self._scored or self.folder is None else RunFolder(self.folder)
            self._draw(place)
            found = [(cell, place.picture(key)) for key, cell in keys.items() if key]
            there = [(cell, file.read_bytes()) for cell, file in found if file.is_file()]
        titles = tuple(
            f"{cell.defense}, {columns.attacker(cell)}, surface {columns.surface(cell)}" for cell, _ in there
        )
        return Pictures(titles, tuple(image for _, image in there))

    def _draw(self, place: RunFolder) -> None:
        for scored, cell in self._scored:
            save_cell_picture(place, scored, cell)

    def __eq__(self, other: object) -> bool:
        """Return whether all numbers are the same, whatever time they took."""
        return isinstance(other, Outcome) and self._compared() == other._compared()

    __hash__ = None  # type: ignore[assignment]  # a document can change

    def _compared(self) -> tuple[Any, ...]:
        cells = [cell.model_copy(update={"seconds": None}) for cell in self.cells]
        victims = sorted(self.victims, key=lambda one: (one.cell, one.seed, one.victim, one.image))
        return cells, self.summary, victims, self.document.valid

    def __getstate__(self) -> dict[str, Any]:
        """Numbers and names; images stay behind."""
        return self.__dict__ | {"_scored": []}

    def __repr__(self) -> str:
        """A short table; ``run.document`` has everything, ``run.report(FILE)`` shows it."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for head in _HEADS[:-1]:
            table.add_column(head, overflow="fold")
        why = dict[str, None]()
        for place in self.places:
            *entries, reason = _row(place)
            table.add_row(*entries)
            why[textwrap.fill(f"{entries[0][0]} {entries[1]}: {reason}", _WIDTH, subsequent_indent="  ")] = None
        made = io.StringIO()
        console = Console(file=made, width=_WIDTH, no_color=True, force_jupyter=False, force_terminal=False)
        console.print(table)
        first = [self._warning] if self._warning else []
        shown = "\n".join(line.rstrip() for line in made.getvalue().rstrip().splitlines())
        return "\n".join([*first, self._headline, PROMISE, shown, "", *why])

    def _repr_html_(self) -> str:
        """Return the short table of :meth:`__repr__` for a notebook."""
        rows = (_cells_of("td", _row(place)) for place in self.places)
        warning = f"<p><strong>{escape(self._warning)}</strong></p>" if self._warning else ""
        return (
            f"{warning}<p><strong>{escape(self._headline)}</strong> {PROMISE}</p>"
            f"<table><thead>{_cells_of('th', _HEADS)}</thead><tbody>{''.join(rows)}</tbody></table>"
        )

    @property
    def _headline(self) -> str:
        """The gravest verdict, and where."""
        kinds = [place.kind for place in self.places]
        count = f" at {kinds.count(self.verdict)} of {len(kinds)} places" if len(kinds) > 1 else ""
        return f"{wording.SYMBOLS[self.verdict]} {wording.WORDS[self.verdict]}{count}."

    @property
    def _warning(self) -> str:
        return "" if self.valid else f"Do not use these verdicts: {self._data.fault}"


def _cells_of(tag: str, entries: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(entry)}</{tag}>" for entry in entries) + "</tr>"


def _row(place: Decided) -> tuple[str, ...]:
    row = place.summary
    return (
        f"{wording.SYMBOLS[place.kind]} {wording.WORDS[place.kind]}",
        " ".join(filter(None, (place.defense, place.arguments))), wording.surface(row), row.strongest or text.MISSING,
        columns.success_rate(place.cell) if place.cell else text.MISSING,
        place.why,
    )  # fmt: skip


def _names(cell: CellResult) -> tuple[str | int | None, ...]:
    return cell.defense, cell.attack, cell.surface, cell.tap, cell.dataset, cell.model


def read_outcome(folder: Path) -> Outcome:
    """The results of a run folder. Raises UsageError where there are none, or a verdict is not that of its victims."""
    document = read_results(folder)
    (data,) = read_runs([folder])
    return Outcome(data, document, data.folder)


@dataclass
class Kept:
    """Images of the cells that a run keeps for its object, as long as they are few."""

    scored: list[Any] = field(default_factory=list)
    size: int = 0

    def draw(self, scored: Any, cell: CellResult) -> None:
        """Keeps what a picture needs: not what was read, which is as large as the network."""
        self.size += scored.scene.truth.images.numel()
        if self.size < _MOST_KEPT:
            self.scored.append((replace(scored, scene=replace(scored.scene, observation=None)), cell))

    def outcome(self, document: ResultDocument, stored: Iterable[StoredCell], out: str | Path | None) -> Outcome:
        """The object of a finished run."""
        made = {one.cell.key: one for one in stored if one.cell.key}
        folder = None if out is None else Path(out)
        data = RunData(
            folder.resolve().name if folder else "run", folder or Path("run"), document.environment, document.valid,
            document.valid_reason, document.complete, list(document.cells), list(document.summary),
            {key: list(one.victims) for key, one in made.items()},
            {key: dict(one.settings) for key, one in made.items()},
        )  # fmt: skip
        return Outcome(data, document, folder, self.scored)
