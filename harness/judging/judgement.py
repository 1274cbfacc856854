"""All that is found out of captured clients: checks of the declared defense, and what attacks make of what was sent."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.attacks import Identifier
from harness.base.errors import UsageError
from harness.base.progress import counted
from harness.datasets.public import NONE
from harness.evaluation.attacking import Engine, in_one_process
from harness.evaluation.scored import Scored
from harness.judging.checks import checks_of, explained
from harness.judging.declared import Group
from harness.judging.evidence import Check, Evidence, pooled
from harness.judging.federation import CapturedClients
from harness.judging.given_away import GivenAway, given_away
from harness.judging.kin import Kin, kin_of
from harness.judging.no_signal import FACTS, fits_facts
from harness.judging.noise_checks import GIVE_SIZE
from harness.judging.place_checks import BUFFERS
from harness.judging.with_truth import judge_with_truth
from harness.judging.without_truth import Guess, guess
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
        groups: of clients whose batches are of the same sizes, with what was asked for.
        checks: of the declared defense, and of the truth where it is at hand.
        document: with the truth, what ``evaluate`` says of simulated clients; None without it.
        guesses: without the truth, one per attack and group.
        kin: look-alikes and public data; None where there are none, and then no verdict.
        beside: of each group, what running statistics give away; None where they do not travel.
    """

    groups: Sequence[Group]
    checks: list[Check]
    document: ResultDocument | None
    guesses: Sequence[Guess]
    kin: Kin | None
    beside: Sequence[GivenAway | None]

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

    @property
    def of_all(self) -> str | None:
        """Over all groups, of how many clients each attack brings an image back; None of a single group."""
        if self.document is None or len(self.groups) == 1:
            return None
        counts: dict[str, list[int]] = {}
        for cell in self.document.cells:
            if cell.role == "cell" and cell.identified is None:
                found = counts.setdefault(cell.attack, [0, 0])
                found[0], found[1] = found[0] + cell.outcomes.success, found[1] + cell.victims
        return "all clients together: " + ", ".join(
            f"{attack} brings images of {found} of {count} back" for attack, (found, count) in counts.items()
        )

    def record(self) -> dict[str, Any]:
        """The judgement as plain JSON."""
        first, cell = self.groups[0].captured, self.groups[0].cell
        document = {
            "valid": self.valid, "prior": cell.prior, "update_model": cell.update_model,
            "captures": sum(group.captured.clients for group in self.groups), "images_each": first.trained_on,
            "record": first.record.model_dump(mode="json"), "checks": [asdict(check) for check in self.checks],
            "estimates": [made.record() for made in self.guesses],
            "results": self.document and json.loads(self.document.model_dump_json()),
        }  # fmt: skip
        if len(self.groups) > 1:
            document["groups"] = [
                {"captures": one.captured.clients, "images_each": one.captured.trained_on, "batches": one.sizes}
                for one in self.groups
            ]
        known = [asdict(one) for one in self.beside if one]
        return document | ({"running_statistics": known if len(self.groups) > 1 else known[0]} if known else {})


def chosen_kin(clients: Sequence[CapturedClients], public: str, data_root: Path) -> Kin | None:
    """Look-alikes and public data; None where ``public`` is ``none``.

    Raises:
        UsageError: they do not fit the clients; or there are none, and no truth either.
    """
    if public != NONE:
        return kin_of(clients, public, data_root)
    if clients[0].images is None:
        raise UsageError(
            "without the truth it takes data of the same kind, to see what a success looks like; add --prior NAME or "
            "--prior FILE.npz, or the truth as truth.npz"
        )
    return None


def judge_captured(groups: Sequence[Group], kin: Kin | None, work: Work) -> Judgement:
    """Checks what clients sent against what they declare, and attacks it.

    Args:
        groups: of captured clients, with cells of the declared defense, one for each attack.
        kin: look-alikes and public data; None where there are none, and then the truth is at hand.

    Raises:
        UsageError: every attack is impossible.
    """
    found = [checks_without_truth(group) for group in groups]
    checks = pooled([(group.sizes, made) for group, made in zip(groups, found, strict=True)])
    for fits in checks:
        if fits.name == FACTS and fits.outcome == "violated":
            # Before the attacks, which may take hours.
            sys.stderr.write(f"harness: {fits.name}: {fits.outcome}, {fits.detail}\n")
    groups = [_without_covered(group, made) for group, made in zip(groups, found, strict=True)]
    beside = [given_away(group.captured, group.cell, work.data_root) for group in groups]
    if groups[0].captured.images is None:
        assert kin is not None
        named = [group.sizes if len(groups) > 1 else "" for group in groups]
        guesses = [
            made
            for group, own, words in zip(groups, found, named, strict=True)
            for made in _guessed(group, own, words, kin, work)
        ]
        return Judgement(groups, checks, None, guesses, kin, beside)
    told = pooled([
        (group.sizes, [explained(group.captured, group.cell, work.data_root, work.chunk)]) for group in groups
    ])  # fmt: skip
    document = judge_with_truth(
        groups, kin, work.data_root, work.folder, work.chunk, work.resume, work.draw_cell, work.engine
    )
    judgement = Judgement(groups, [*checks, *told], document, [], kin, beside)
    if judgement.doubt is None:
        return judgement
    return replace(judgement, document=_withdrawn(document, judgement.doubt, work.folder))


def checks_without_truth(group: Group) -> list[Check]:
    """All that updates alone tell of what is declared."""
    captured, cell = group.captured, group.cell
    # What Adam sends is no sum of gradients, whose ranks are known.
    fits = fits_facts(Evidence(captured, cell)) if captured.record.optimizer != "adam" else None
    return [*([fits] if fits else []), *(checks_of(captured, cell) if captured.record.defense else [])]


def _without_covered(group: Group, checks: Sequence[Check]) -> Group:
    """Running statistics with noise on them tell nobody a batch's mean and variance."""
    covered = any(check.name == BUFFERS and check.outcome == "holds" for check in checks)
    if not (covered and group.captured.running):
        return group
    cells = [cell.model_copy(update={"batch_norm": "hidden"}) for cell in group.cells]
    return Group(replace(group.captured, running={}), cells)


def _withdrawn(document: ResultDocument, doubt: str, folder: RunFolder) -> ResultDocument:
    """The results without their validity, in the folder too: whoever reads them there may not see the checks."""
    withdrawn = document.model_copy(update={"valid": False, "valid_reason": doubt})
    write_atomic(folder.path / "results.json", withdrawn.model_dump_json(indent=1).encode())
    return withdrawn


def _guessed(group: Group, checks: Sequence[Check], words: str, kin: Kin, work: Work) -> list[Guess]:
    able = [cell for cell in group.cells if not isinstance(cell.build_attack(), Identifier)]
    if not able:
        raise UsageError(f"attack {group.cell.attack!r} tells known images apart, so needs the truth; use --attack cpl")
    drawn = group.captured.sampling == "poisson" or any(GIVE_SIZE in check.detail for check in checks)
    found = []
    for cell in counted(able, "attack"):
        made = guess(group.captured, cell, kin, work.data_root, work.folder, work.chunk, work.resume, work.engine)
        made = replace(made.of_unknown_size(GIVE_SIZE) if drawn else made, group=words)
        found.append(made)
        if made.images is not None and work.draw_guess:
            work.draw_guess(made)
    return found
