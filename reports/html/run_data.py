"""One run, as far as it could be read."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.reports import text
from harness.reports.html.judged import Judged
from harness.results import CellResult, SummaryRow, VictimRecord
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
    def state(self) -> str:
        """What it is if it is not valid, in a word."""
        return "invalid" if self.complete else "unfinished"

    @property
    def fault(self) -> str:
        """Why nothing of an invalid run may be used."""
        return text.safe(self.valid_reason or "a negative control failed", 300)

    def by_key(self) -> dict[str, CellResult]:
        """Cells by their keys, the first of each."""
        return {cell.key: cell for cell in reversed(self.cells) if cell.key is not None}
