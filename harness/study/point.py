"""One level of noise: what was trained and what was found, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.evaluation.promised import covers
from harness.federation.taps import Tap
from harness.results import CellResult, Statement
from harness.results.frontier import FrontierPoint
from harness.study.judging import Judged
from harness.study.settings import FrontierSettings
from harness.training import TrainDocument


@dataclass(frozen=True)
class Level:
    """A defense at one level of noise on one dataset; ``setting`` None: no defense."""

    dataset: str
    defense: str
    arguments: dict[str, Any]
    setting: str | None = None
    level: float | None = None

    @property
    def name(self) -> str:
        """By which shards tell it from the others."""
        return f"{self.dataset} {self.defense} {self.level}"


def point(
    settings: FrontierSettings, level: Level, document: TrainDocument | None, training: str, judged: Judged
) -> FrontierPoint:
    """The point of a level at one place; ``document``: its training, None where it diverged, in the folder named."""
    row, best = judged.informed, judged.best()
    return FrontierPoint(
        dataset=level.dataset, model=row.model, defense=level.defense, defense_args=row.defense_args,
        setting=level.setting, level=level.level, tap=row.tap, surface=row.surface, attacked=settings.attacked,
        accuracy=document and document.accuracy, test_examples=document.test_examples if document else 0,
        training=training, **_promised(document, Tap(row.tap)),
        verdict=row.verdict, verdict_reason=row.verdict_reason, headline=row.headline, strongest=row.strongest,
        identifies=row.identifies, **({"success": best.asr["strict"]} if best else {}), **_ceiling(judged.cells),
    )  # fmt: skip


def diverged(settings: FrontierSettings, level: Level, tap: Tap) -> FrontierPoint:
    """There is no model to attack; the level is counted all the same."""
    why = "training diverged"
    where: dict[str, Any] = {"tap": tap, "surface": tap.surface}
    return FrontierPoint(
        dataset=level.dataset, model=settings.model, defense=level.defense, defense_args=level.arguments,
        setting=level.setting, level=level.level, **where, attacked=settings.attacked,
        epsilon_reason=why, verdict="inconclusive", verdict_reason=f"{why}, so that there is no model to attack",
        ceiling_reason=why,
    )  # fmt: skip


def _promised(document: TrainDocument | None, tap: Tap) -> dict[str, Any]:
    """The smallest epsilon of this run that covers what is read there, or why there is none."""
    if document is None:
        return {"epsilon_reason": "training diverged"}
    covering = [one for one in document.privacy if covers(one, tap) and one.epsilon is not None]
    if not covering:
        return {"epsilon_reason": _why_none(document.privacy)}
    found = min(covering, key=lambda one: one.epsilon or 0.0)
    return {
        "epsilon": found.epsilon, "delta": found.delta, "unit": found.unit, "guarantee": found.guarantee,
        "epsilon_reason": found.notes,
    }  # fmt: skip


def _why_none(statements: Sequence[Statement]) -> str:
    server = next((one for one in statements if one.view == "server"), None)
    if server is None:
        return "no privacy statement is made"
    return server.notes if server.guarantee == "none" else "what is promised does not cover what is read there"


def _ceiling(cells: Sequence[CellResult]) -> dict[str, Any]:
    """What a theorem says of strict images; it is the same for all attacks at a place."""
    bounds = [cell.bound for cell in cells if cell.bound]
    events = [event for bound in bounds for event in bound.events if event.event == "strict image"]
    if not events:
        return {"ceiling_reason": "no attack that reconstructs was possible"}
    known = next((event for event in events if event.ceiling is not None), None)
    if known:
        return {"ceiling": known.ceiling}
    return {"ceiling_reason": bounds[0].reason or events[0].reason or ""}
