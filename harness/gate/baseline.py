"""The committed baseline: compact JSON, one line per cell, so that a diff of it shows which cells moved."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.base.errors import UsageError
from harness.base.version import SCHEMA_VERSION
from harness.gate.cells import GateCell, Victim
from harness.gate.settings import Settings
from harness.results import write_atomic
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, Damaged, Unreadable, checked, parse_json, read_bytes

_FORMAT = 1
_Share = Annotated[float, Field(ge=0, le=1)]
_Distance = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Setting = str | int | float | bool | None


def _scaled(settings: dict[str, _Setting]) -> dict[str, _Setting]:
    scale = settings.get("noise_scale", 1.0)
    if not isinstance(scale, int | float) or not 0 <= scale < math.inf:
        raise ValueError("noise_scale is no number of at least 0")
    return settings


_Settings = Annotated[dict[str, _Setting], AfterValidator(_scaled)]


@dataclass(frozen=True)
class Baseline:
    """Cells to hold runs to, and the versions they were made with."""

    versions: dict[str, Any]
    cells: Sequence[GateCell]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _StoredCell(_Strict):
    """One line: settings that not all cells share, and the victims' numbers side by side."""

    settings: _Settings
    victims: list[str]
    ranks: list[_Share | None]
    rmses: list[_Distance]
    successes: list[_Share]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lengths = {len(self.victims), len(self.ranks), len(self.rmses), len(self.successes), len(set(self.victims))}
        if len(lengths) > 1:
            raise ValueError("a cell's victims, ranks, rmses and successes differ in number")
        return self


class _Document(_Strict):
    kind: Literal["harness gate baseline"]
    format: Literal[1]
    schema_version: int
    versions: dict[str, str | None]
    common: _Settings
    cells: list[_StoredCell]


def as_baseline(cells: Sequence[GateCell], versions: dict[str, Any]) -> Baseline:
    """Cells of a run as a baseline."""
    return Baseline(versions, sorted(cells, key=lambda cell: (cell.place, sorted(map(repr, cell.settings.items())))))


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write the file, whole or not at all.

    Raises:
        UsageError: the folder cannot be written.
    """
    common = _common([cell.settings for cell in baseline.cells])
    head = {
        "kind": "harness gate baseline", "format": _FORMAT, "schema_version": SCHEMA_VERSION,
        "versions": baseline.versions, "common": common,
    }  # fmt: skip
    lines = [json.dumps(_stored(cell, common), separators=(",", ":"), allow_nan=False) for cell in baseline.cells]
    whole = (
        json.dumps(head, separators=(",", ":"), allow_nan=False)[:-1] + ',"cells":[\n' + ",\n".join(lines) + "\n]}\n"
    )
    write_atomic(path, whole.encode(), "--baseline")


def _common(settings: Sequence[Settings]) -> Settings:
    first = settings[0] if settings else {}
    return {name: value for name, value in first.items() if all((name, value) in s.items() for s in settings)}


def _stored(cell: GateCell, common: Settings) -> dict[str, Any]:
    return {
        "settings": {name: value for name, value in cell.settings.items() if name not in common},
        "victims": list(cell.victims),
        "ranks": [victim.rank for victim in cell.victims.values()],
        "rmses": [victim.rmse for victim in cell.victims.values()],
        "successes": [victim.success for victim in cell.victims.values()],
    }


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        UsageError: there is none, or it is half-written, of another format or schema, or not a baseline.
    """
    try:
        content = read_bytes(path, MOST_OF_A_DOCUMENT)
    except Absent as error:
        raise UsageError(f"there is no baseline {str(path)!r}; add --update to make it from these runs") from error
    except Unreadable as problem:
        raise UsageError(f"the baseline {str(path)!r} {problem.reason}; check --baseline") from problem
    try:
        return _parse(path, parse_json(content))
    except Damaged as problem:
        raise UsageError(f"the baseline {str(path)!r} {problem}; {_MEND}") from problem


def _parse(path: Path, document: Any) -> Baseline:
    if not isinstance(document, dict) or document.get("kind") != "harness gate baseline":
        raise UsageError(f"{str(path)!r} is not a baseline of harness check; {_MEND}")
    for name, ours in (("format", _FORMAT), ("schema_version", SCHEMA_VERSION)):
        if document.get(name) != ours:
            raise UsageError(f"the baseline {str(path)!r} has another {name} than this harness ({ours}); {_MEND}")
    stored = checked(_Document, document)
    return Baseline(stored.versions, [_cell(line, stored.common) for line in stored.cells])


_MEND = "restore it, or make it again with --update"


def _cell(line: _StoredCell, common: dict[str, _Setting]) -> GateCell:
    numbers = zip(line.victims, line.ranks, line.rmses, line.successes, strict=True)
    return GateCell(
        common | line.settings,
        {name: Victim(rank=rank, rmse=rmse, success=success) for name, rank, rmse, success in numbers},
    )
