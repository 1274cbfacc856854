"""One line of the table: what an attack brought back of an observation, beside what was published or is promised."""

from typing import Any

from harness.reports import text
from harness.reports.theorem import event_of
from harness.results import CellResult


def row_of(cell: CellResult, clients: int, noise: str, published: str, verdict: str) -> dict[str, Any]:
    """A line of the table; ``clients``: behind one observation."""
    strict, luck, first = cell.asr.get("strict"), cell.kappa, event_of(cell, "first in its lineup")
    possible = cell.not_applicable_reason is None and strict is not None
    return {
        "attack": cell.attack, "server": "tampers" if cell.tier == "tampering" else "honest",
        "data": cell.dataset, "batch": cell.batch_size, "clients": clients, "noise": noise,
        "strict": f"{strict.successes}/{strict.n}" if possible and strict else "not possible",
        "share [95%]": text.rate(strict) if possible and strict else text.MISSING,
        "blind": text.percent(luck.rate) if luck else text.MISSING,
        "first in lineup": text.percent(first.measured.rate) if first else text.MISSING,
        "at most": text.percent(first.ceiling) if first and first.ceiling is not None else "no bound",
        "s per victim": _seconds(cell), "promised or published": published, "verdict": verdict if possible else "-",
    }  # fmt: skip


def _seconds(cell: CellResult) -> str:
    return text.MISSING if cell.seconds is None else f"{cell.seconds / cell.victims:.2f}"
