"""All that is found out of captured clients: checks of the declared defense, and what attacks make of what was sent."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.attacks import Identifier
from harness.datasets.public import NONE
from harness.errors import UsageError
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.scored import Scored
from harness.experiment import CellSettings
from harness.judging.checks import checks_of, explained
from harness.judging.evidence import Check
from harness.judging.federation import CapturedClients
from harness.judging.given_away import GivenAway, given_away
from harness.judging.kin import Kin, kin_of
from harness.judging.with_truth import judge_with_truth
from harness.judging.without_truth import Guess, guess
from harness.progress import counted
from harness.results import CellResult, ResultDocument, RunFolder


@dataclass(frozen=True)
class Work:
    """How captured clients are judged.

    Attributes:
        data_root: where datasets are.
        folder: where results go.
        chunk: most clients attacked together.
        resume: use what an earlier run left in the folder.
        draw_cell, draw_guess: draw what an attack made, with the truth beside it and without.
        engine: what attacks.
    """

    data_root: Path
    folder: RunFolder
    chunk: int
    resume: bool
    draw_cell: Callable[[Scored, CellResult], None] | None = None
    draw_guess: Callable[[Guess], None] | None = None
    engine: Engine = in_one_process


@dataclass(frozen=True)
class Judgement:
    """What was found out.

    Attributes:
        cell: what was asked for, of the first attack.
        checks: of the declared defense, and of the truth where it is at hand.
        doubt: why no verdict here is worth anything, since the truth does not explain what was sent; or None.
        document: with the truth, what ``evaluate`` says of simulated clients; None without it.
        guesses: without the truth, one per attack.
        kin: look-alikes and public data; None where there are none, and then no verdict.
        beside: what running statistics give away; None where they do not travel.
    """

    captured: CapturedClients
    cell: CellSettings
    checks: list[Check]
    doubt: str | None
    document: ResultDocument | None
    guesses: Sequence[Guess]
    kin: Kin | None
    beside: GivenAway | None

    @property
    def valid(self) -> bool:
        """Whether its verdicts may be read."""
        return self.doubt is None and (self.document is None or self.document.valid)

    def record(self) -> dict[str, Any]:
        """The judgement as plain JSON."""
        captured, beside = self.captured, self.beside
        return {
            "valid": self.valid, "prior": self.cell.prior, "update_model": self.cell.update_model,
            "captures": captured.clients, "images_each": captured.examples,
            "record": captured.record.model_dump(mode="json"), "checks": [asdict(check) for check in self.checks],
            "estimates": [made.record() for made in self.guesses],
            "results": self.document and json.loads(self.document.model_dump_json()),
        } | ({"running_statistics": asdict(beside)} if beside else {})  # fmt: skip


def judge_captured(captured: CapturedClients, cells: Sequence[CellSettings], public: str, work: Work) -> Judgement:
    """Checks what clients sent against what they declare, and attacks it.

    Args:
        cells: of the declared defense, one for each attack.
        public: data of the same kind that no client holds, ``none`` where there are none.

    Raises:
        UsageError: every attack is impossible; or there are neither truth nor public data.
    """
    kin = kin_of(captured, public, work.data_root) if public != NONE else None
    checks = checks_of(captured, cells[0]) if captured.record.defense else []
    beside = given_away(captured, cells[0], work.data_root)
    if captured.images is None:
        guesses = _guessed(captured, cells, kin, work)
        return Judgement(captured, cells[0], checks, None, None, guesses, kin, beside)
    told = explained(captured, cells[0], work.data_root, work.chunk)
    # Controls on another client than the captured one say nothing of it.
    doubt = told.detail if told.outcome == "violated" else None
    document = judge_with_truth(
        captured, cells, kin, work.data_root, work.folder, work.chunk, work.resume, work.draw_cell, work.engine
    )
    return Judgement(captured, cells[0], [*checks, told], doubt, document, [], kin, beside)


def _guessed(
    captured: CapturedClients, cells: Sequence[CellSettings], kin: Kin | None, work: Work
) -> list[Guess]:  # fmt: skip
    if kin is None:
        raise UsageError(
            "without the truth it takes data of the same kind, to see what a success looks like; add --prior NAME or "
            "--prior FILE.npz, or the truth as truth.npz"
        )
    able = [cell for cell in cells if not isinstance(cell.build_attack(), Identifier)]
    if not able:
        raise UsageError(f"attack {cells[0].attack!r} tells known images apart, so needs the truth; use --attack cpl")
    found = []
    for cell in counted(able, "attack"):
        made = guess(captured, cell, kin, work.data_root, work.folder, work.chunk, work.resume, work.engine)
        found.append(made)
        if made.images is not None and work.draw_guess:
            work.draw_guess(made)
    return found
