"""All that is found out of captured clients: checks of the declared defense, and what attacks make of what was sent."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.attacks import Identifier
from harness.datasets.public import NONE
from harness.errors import UsageError
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.scored import Scored
from harness.experiment import CellSettings
from harness.judging.checks import checks_of, explained
from harness.judging.evidence import Check, Evidence
from harness.judging.federation import CapturedClients
from harness.judging.given_away import GivenAway, given_away
from harness.judging.kin import Kin, kin_of
from harness.judging.no_signal import fits_facts
from harness.judging.place_checks import BUFFERS
from harness.judging.with_truth import judge_with_truth
from harness.judging.without_truth import Guess, guess
from harness.progress import counted
from harness.results import CellResult, ResultDocument, RunFolder, write_atomic


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
        document: with the truth, what ``evaluate`` says of simulated clients; None without it.
        guesses: without the truth, one per attack.
        kin: look-alikes and public data; None where there are none, and then no verdict.
        beside: what running statistics give away; None where they do not travel.
    """

    captured: CapturedClients
    cell: CellSettings
    checks: list[Check]
    document: ResultDocument | None
    guesses: Sequence[Guess]
    kin: Kin | None
    beside: GivenAway | None

    @property
    def doubt(self) -> str | None:
        """Why no verdict and no estimate here is worth anything; None where they may be.

        Controls and stand-ins are simulated as it is declared: where that is violated they say nothing of who sent
        something else.
        """
        violated = [check for check in self.checks if check.outcome == "violated"]
        return f"{violated[0].name}: violated, {violated[0].detail}" if violated else None

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


def chosen_kin(captured: CapturedClients, public: str, data_root: Path) -> Kin | None:
    """Look-alikes and public data; None where ``public`` is ``none``.

    Raises:
        UsageError: they do not fit the clients; or there are none, and no truth either.
    """
    if public != NONE:
        return kin_of(captured, public, data_root)
    if captured.images is None:
        raise UsageError(
            "without the truth it takes data of the same kind, to see what a success looks like; add --prior NAME or "
            "--prior FILE.npz, or the truth as truth.npz"
        )
    return None


def judge_captured(captured: CapturedClients, cells: Sequence[CellSettings], kin: Kin | None, work: Work) -> Judgement:
    """Checks what clients sent against what they declare, and attacks it.

    Args:
        cells: of the declared defense, one for each attack.
        kin: look-alikes and public data; None where there are none, and then the truth is at hand.

    Raises:
        UsageError: every attack is impossible.
    """
    fits = fits_facts(Evidence(captured, cells[0]))
    checks = [fits] if fits else []
    if fits and fits.outcome == "violated":
        # Before the attacks, which may take hours.
        sys.stderr.write(f"harness: {fits.name}: {fits.outcome}, {fits.detail}\n")
    checks += checks_of(captured, cells[0]) if captured.record.defense else []
    captured, cells = _without_covered(captured, cells, checks)
    beside = given_away(captured, cells[0], work.data_root)
    if captured.images is None:
        assert kin is not None
        return Judgement(captured, cells[0], checks, None, _guessed(captured, cells, kin, work), kin, beside)
    told = explained(captured, cells[0], work.data_root, work.chunk)
    document = judge_with_truth(
        captured, cells, kin, work.data_root, work.folder, work.chunk, work.resume, work.draw_cell, work.engine
    )
    judgement = Judgement(captured, cells[0], [*checks, told], document, [], kin, beside)
    if judgement.doubt is None:
        return judgement
    return replace(judgement, document=_withdrawn(document, judgement.doubt, work.folder))


def _without_covered(
    captured: CapturedClients, cells: Sequence[CellSettings], checks: Sequence[Check]
) -> tuple[CapturedClients, Sequence[CellSettings]]:
    """Running statistics with noise on them tell nobody a batch's mean and variance."""
    covered = any(check.name == BUFFERS and check.outcome == "holds" for check in checks)
    if not (covered and captured.running):
        return captured, cells
    return replace(captured, running={}), [cell.model_copy(update={"batch_norm": "hidden"}) for cell in cells]


def _withdrawn(document: ResultDocument, doubt: str, folder: RunFolder) -> ResultDocument:
    """The results without their validity, in the folder too: whoever reads them there may not see the checks."""
    withdrawn = document.model_copy(update={"valid": False, "valid_reason": doubt})
    write_atomic(folder.path / "results.json", withdrawn.model_dump_json(indent=1).encode())
    return withdrawn


def _guessed(captured: CapturedClients, cells: Sequence[CellSettings], kin: Kin, work: Work) -> list[Guess]:
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
