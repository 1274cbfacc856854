"""One run, as far as it could be read.

Files of a run folder are read with care: inside the folder, of a bounded size, never unpickled.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from harness.reports import text
from harness.reports.html.judged import Judged
from harness.results import CellResult, StoredCell, SummaryRow, VictimRecord, files
from harness.results.training import TrainDocument


@dataclass
class RunData:
    """One run: the cells of ``harness evaluate``, the document of ``harness train``, or both.

    Attributes:
        name: the folder's name, told apart where several runs share it.
        judged: what ``harness judge`` says of captures beside the cells; without a truth there are none.
        complete: whether all its cells are there.
        written: when, in seconds since 1970.
        settings: the exact settings of each cell by its key, where its own file has them.
        files: these files, without victims.
        left_out: what could not be used, a sentence each.
        told: verdicts of other rules than today's, and those that nothing bears out, a sentence each.
    """

    name: str
    folder: Path
    environment: dict[str, Any] = field(default_factory=dict)
    valid: bool = True
    valid_reason: str | None = None
    complete: bool = True
    cells: list[CellResult] = field(default_factory=list)
    summary: list[SummaryRow] = field(default_factory=list)
    victims: dict[str, list[VictimRecord]] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, StoredCell] = field(default_factory=dict)
    training: TrainDocument | None = None
    judged: Judged | None = None
    written: float | None = None
    left_out: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def skip(self, what: str) -> None:
        """Notes something that is left out."""
        self.left_out.append(text.safe(what, 300))

    def tell(self, what: str) -> None:
        """Notes something about its verdicts."""
        self.told.append(text.safe(what, 300))

    @property
    def unproven(self) -> list[str]:
        """Return what its rows say and no file beside them bears out, as a sentence; what was judged is no row."""
        possible = [cell for cell in self.cells if cell.not_applicable_reason is None]
        bare = [cell for cell in possible if cell.key not in self.files]
        if not bare or self.judged:
            return []
        rows = f"{len(bare)} of {len(possible)} rows"
        return [f"settings, epsilon and guarantee of {rows} not checked: their files in cells/ are missing or damaged"]

    @property
    def state(self) -> str:
        """Return what it is if it is not valid, in a word."""
        return "invalid" if self.complete else "unfinished"

    @property
    def no_verdict(self) -> str:
        """Return what stands in the place of its verdicts if it is not valid."""
        return f"no verdict, as the run is {self.state}"

    @property
    def fault(self) -> str:
        """Reason why nothing of an invalid run may be used."""
        return text.safe(self.valid_reason or "a negative control failed", 300)

    def by_key(self) -> dict[str, CellResult]:
        """Cells by their keys, the first of each."""
        return {cell.key: cell for cell in reversed(self.cells) if cell.key is not None}


_LONGEST_LINE = 2**20
# Beyond it a whole number is no longer exact as a JSON number, and no count of ours.
_LARGEST = 2**53


class UnreadableRun(Exception):
    """Reason why a file cannot be used, as a half-sentence; ``absent`` where it is simply not there."""

    def __init__(self, reason: str, absent: bool = False) -> None:
        super().__init__(reason)
        self.absent = absent


def inside(folder: Path, *parts: str) -> Path:
    """The file of these parts below ``folder``.

    Raises:
        UnreadableRun: it is absent, or a link that leaves the folder.
    """
    file = folder.joinpath(*parts)
    try:
        if not file.exists():
            raise UnreadableRun("is not there", absent=True)
        if not file.resolve().is_relative_to(_resolved(folder.absolute())):
            raise UnreadableRun("is a link that leaves the folder")
    except (OSError, ValueError, RuntimeError) as error:
        raise UnreadableRun(f"cannot be opened ({_problem(error)})") from error
    return file


@lru_cache(maxsize=16)
def _resolved(folder: Path) -> Path:
    """Found out once for thousands of files; were the folder moved meanwhile, they would be refused."""
    return folder.resolve()


def read_bytes(folder: Path, *parts: str) -> bytes:
    """The content of a file below ``folder``. Raises UnreadableRun."""
    try:
        return files.read_bytes(inside(folder, *parts), files.MOST_OF_A_DOCUMENT)
    except files.Unreadable as problem:
        raise UnreadableRun(problem.reason) from problem


def read_json(folder: Path, *parts: str, only: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object of a file below ``folder``, or ``only`` these entries of it. Raises UnreadableRun."""
    content = read_bytes(folder, *parts)
    if not content.strip():
        raise UnreadableRun("is empty")
    try:
        parsed = from_json(content)
    except ValueError as error:
        raise UnreadableRun("is not complete JSON") from error
    if not isinstance(parsed, dict):
        raise UnreadableRun("is JSON of another kind")
    return tame({name: entry for name, entry in parsed.items() if not only or name in only})


def read_lines(folder: Path, *parts: str) -> Iterator[bytes]:
    """The lines of a file below ``folder``; one that is absurdly long comes cut. Raises UnreadableRun."""
    try:
        with files.open_file(inside(folder, *parts), files.MOST_OF_A_DOCUMENT) as stream:
            while line := stream.readline(_LONGEST_LINE):
                yield line
    except files.Unreadable as problem:
        raise UnreadableRun(problem.reason) from problem
    except OSError as error:
        raise UnreadableRun(f"cannot be read ({_problem(error)})") from error


def tame(value: Any) -> Any:
    """Return the JSON value with null for every whole number that is too large to be one of ours."""
    kind = type(value)  # of JSON: there are no subclasses, and documents have a million values
    if kind is dict:
        return {name: tame(entry) for name, entry in value.items()}
    if kind is list:
        return [tame(entry) for entry in value]
    return None if kind is int and abs(value) > _LARGEST else value


def _problem(error: Exception) -> str:
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
