"""What judging captures reads, does and takes, told before it is done; and what of it fits into a budget of time.

Nothing is attacked for that. The gradient of a start is timed, against what was sent with its coordinates shuffled.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from harness.attacks import Attack, Attacker, Identifier, reconstructing
from harness.attacks.candidates import require_gradients
from harness.attacks.cpl import CPL
from harness.attacks.engine import seconds_of_row
from harness.attacks.learned import Learned
from harness.base.errors import UsageError
from harness.datasets import Dataset
from harness.evaluation.watching import between, controls_of, work_of
from harness.experiment import CellSettings
from harness.judging.capture import FACTS, Capture, read_capture
from harness.judging.declared import Group, noise_of
from harness.judging.stage import CapturedStage, Kin, SimulatedStage
from harness.judging.without_truth import STAND_INS, observed, shuffled, stand_ins_of
from harness.observation import Observation
from harness.results.arrays import StoredArrays

Seconds = tuple[float, float]
"""As few as are likely, and the most."""

# Look-alikes of a class in a lineup, at most.
_DECOYS = 200
_CANDIDATES = 16
# As `evaluate` gives up starts without hope: fewer gradients than these of one start say nothing of an attack.
_FEWEST_GRADIENTS = 100
# Of fewer captures no lineup tells anything; fewer iterations are rather taken.
_FEWEST_CAPTURES = 8
# Of a budget, what is kept for checks, scores and pictures.
_KEPT = 0.1
_DEEPEST = 3


def folders_of(named: Sequence[Path]) -> list[Path]:
    """Folders of captures; of a folder that is none, those below it, in order."""
    found = list[Path]()
    for folder in named:
        depths = ["/".join([*["*"] * depth, FACTS]) for depth in range(1, _DEEPEST + 1)]
        below = [] if (folder / FACTS).exists() else sorted(one.parent for way in depths for one in folder.glob(way))
        found += below or [folder]
    return found


@dataclass(frozen=True)
class Reading:
    """What is read of one capture; ``problem`` says why it cannot be, and how to mend that.

    Attributes:
        facts: what it says of itself.
        sent: what the client sent, and ``numbers`` how many numbers that is.
        truth: examples whose truth is at hand; None where it was not kept.
    """

    folder: str
    facts: dict[str, Any]
    sent: str | None = None
    numbers: int = 0
    truth: int | None = None
    problem: str | None = None


def readings_of(folders: Sequence[Path], truth: Path | None = None) -> tuple[list[Reading], list[Capture]]:
    """What is read of each folder, and the captures that can be."""
    told, found = list[Reading](), list[Capture]()
    for folder in folders:
        try:
            capture = read_capture(folder, truth)
        except UsageError as problem:
            told.append(Reading(str(folder), {}, problem=str(problem)))
            continue
        said = capture.record.model_dump(mode="json", exclude_none=True, exclude={"format"})
        facts = {name: value for name, value in said.items() if value not in ([], {})}
        known = None if capture.truth is None else next(iter(capture.truth.shapes["images"]), 0)
        told.append(Reading(str(folder), facts, capture.kind, _numbers(capture.moved), known))
        found.append(capture)
    return told, found


def _numbers(arrays: StoredArrays) -> int:
    return sum(math.prod(shape) for shape in arrays.shapes.values())


@dataclass(frozen=True, eq=False)
class Effort:
    """What one attack on one group of clients takes.

    Attributes:
        cell: of the attack on all captures.
        each: seconds of a gradient of one start of a victim; of an attack that descends no loss, of all that it does to
            a victim.
        refused: why it is impossible; None where it may run.
        jobs: processes that share its victims.
    """

    group: Group
    cell: CellSettings
    each: float
    refused: str | None = None
    jobs: int = 1

    @cached_property
    def attack(self) -> Attacker:
        """With its settings."""
        return self.cell.build_attack()

    @property
    def searches(self) -> bool:
        """Whether it descends a loss."""
        return isinstance(self.attack, Attack) and not self.attack.closed_form

    @cached_property
    def _noisy(self) -> bool:
        return noise_of(self.group.captured, self.cell) is not None

    def cell_of(self, captures: int, iterations: int | None) -> CellSettings:
        """The cell on so many captures, with so many iterations; None for all that the attack has.

        With fewer it is no more the suite's.
        """
        cell = self.cell.model_copy(update={"victims": captures})
        if iterations is None:
            return cell
        return cell.model_copy(
            update={"attack_args": {**cell.attack_args, "max_iterations": iterations}, "suite": None}
        )

    def seconds(self, captures: int, iterations: int | None = None) -> Seconds:
        """Of the attack with its controls."""
        cell = self.cell_of(captures, iterations)
        runs = [cell]
        if self.group.captured.images is None:
            stand_ins = cell.model_copy(update={"victims": STAND_INS})
            runs = [cell, cell, stand_ins]
            cell = stand_ins
        noisy = ("positive_sigma0", "noise_x100") if self._noisy else ()
        runs += [one for name, one in controls_of(cell) if name == "positive" or name in noisy]
        least, most = (sum(self._of(one, early) for one in runs) for early in (True, False))
        return least, most

    def _of(self, cell: CellSettings, early: bool) -> float:
        if not self.searches:
            return self.each * cell.victims
        return self.each * work_of(cell, early) / cell.examples / max(1, min(self.jobs, cell.victims // 2))

    def iterations_of(self, gradients: float) -> int:
        """Iterations that take so many gradients."""
        return max(1, math.floor(gradients / getattr(reconstructing(self.attack).optimizer(), "inner_iterations", 1)))


def efforts_of(
    groups: Sequence[Group], kin: Kin | None, data_root: Path, chunk: int, jobs: int = 1
) -> list[Effort]:  # fmt: skip
    """What each attack on each group takes here, timed.

    Args:
        jobs: processes that share an attack's victims.
    """
    found = list[Effort]()
    for group in groups:
        bench = _Bench(group, kin, data_root, chunk)
        for cell in group.cells:
            try:
                each = bench.each(cell)
            except UsageError as problem:
                found.append(Effort(group, cell, 0.0, str(problem)))
            else:
                dealt = cell.device == "cpu" and not bench.alone and getattr(cell.build_attack(), "dealt", False)
                found.append(Effort(group, cell, each, None, jobs if dealt else 1))
    return found


class _Bench:
    """Where attacks on a group are timed."""

    def __init__(self, group: Group, kin: Kin | None, data_root: Path, chunk: int) -> None:
        self._group, self._kin, self._root, self._chunk = group, kin, data_root, chunk
        self.alone = False

    def each(self, cell: CellSettings) -> float:
        """See :attr:`Effort.each`.

        Raises:
            UsageError: the attack is impossible there.
        """
        attack, (seen, dataset) = cell.build_attack(), self._seen(cell)
        if isinstance(attack, Identifier):
            return self._of_identifier(attack, seen, dataset)
        attack = reconstructing(attack)
        if not attack.closed_form:
            return seconds_of_row(attack, seen, self._chunk)
        require_gradients(seen)
        gradients = attack.effort(seen)
        if gradients <= 1:
            one = seen.take(torch.arange(1))
            return _timed(lambda: attack.start(one, [(*key, 0) for key in one.keys]))
        shared = len(seen.target) / len(seen.weights.unique(dim=0)) if isinstance(attack, Learned) else 1
        return gradients / shared * seconds_of_row(CPL(), seen, self._chunk)

    def _seen(self, cell: CellSettings) -> tuple[Observation, Dataset]:
        """What the attacker has, what was sent shuffled, and where look-alikes come from."""
        stage, doubles = self._stage
        scene = stage.set(cell.model_copy(update=doubles))
        seen = scene.observation.known_to(cell.build_attack().tier)
        if doubles:
            seen = observed(self._group.captured, seen, cell)
        self.alone = seen.model.evaluates_alone
        return replace(seen, target=shuffled(seen)), scene.dataset

    @cached_property
    def _stage(self) -> tuple[CapturedStage, dict[str, Any]]:
        """With what differs in the settings of stand-ins, where no truth is known."""
        captured, cell, kin = self._group.captured, self._group.cell, self._kin
        if captured.images is not None:
            known = (kin.look_alikes, kin.public) if kin else (None, None)
            return CapturedStage(self._root, self._chunk, captured, cell, *known), {}
        assert kin is not None
        doubles = stand_ins_of(captured, kin, cell)
        own = {"victims": doubles.clients, "dataset": "stand-ins"}
        declared = cell.model_copy(update=own)
        return SimulatedStage(self._root, self._chunk, doubles, declared, kin.look_alikes, kin.public), own

    def _of_identifier(self, attack: Identifier, seen: Observation, dataset: Dataset) -> float:
        """Of a victim: a lineup for each class among its examples, timed with a few candidates.

        The first look also pays for what is worked out once for a victim.
        """
        first, label = seen.take(torch.arange(1)), torch.zeros(1, dtype=torch.long)
        candidates = dataset.images[:_CANDIDATES].expand(1, -1, *dataset.image_shape)
        looks = [_timed(lambda: attack.distances(first, candidates, label, self._chunk)) for _ in range(2)]
        classes = min(dataset.num_classes, seen.examples)
        each = min(_DECOYS, max(1, len(dataset.labels) // dataset.num_classes))
        return looks[0] + classes * each * looks[1] / candidates.shape[1]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Line:
    """What becomes of one attack on one group of clients.

    Attributes:
        captures: that it attacks, ``of`` all; 0 where it does not run.
        iterations: where they are fewer than its own; None else.
        seconds: of that, and ``whole`` of all captures and iterations.
        reason: why it does not run, or not all of it; None where it does.
    """

    attack: str
    group: str
    captures: int
    of: int
    iterations: int | None
    seconds: Seconds
    whole: Seconds
    reason: str | None = None

    @property
    def said(self) -> str:
        """As a sentence."""
        where = f"{self.attack}{f', {self.group}' if self.group else ''}"
        if not self.captures:
            return f"{where}: left out: {self.reason}"
        few = f" with {self.iterations} iterations" if self.iterations else ""
        said = f"{where}: {self.captures} of {self.of} captures{few}, {between(*self.seconds)}"
        return f"{said}; {self.reason}" if self.reason else said

    def record(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self) | {"said": self.said}


def line_of(effort: Effort, several: bool, captures: int | None = None, iterations: int | None = None) -> Line:
    """The line of an attack that runs on so many captures, by default all."""
    of = effort.cell.victims
    whole, chosen = effort.seconds(of), of if captures is None else captures
    if effort.refused:
        chosen, whole = 0, (0.0, 0.0)
    seconds = effort.seconds(chosen, iterations) if chosen else (0.0, 0.0)
    reason, takes = effort.refused, f"all of it takes {between(*whole)}"
    if reason is None and not chosen:
        reason = f"it takes {between(*whole)}"
    elif reason is None and (chosen < of or iterations is not None):
        reason = takes
    words = effort.group.sizes if several else ""
    return Line(effort.cell.attack, words, chosen, of, iterations, seconds, whole, reason)


def lines_of(efforts: Sequence[Effort]) -> list[Line]:
    """The lines of all attacks as they were asked for."""
    several = len({id(one.group) for one in efforts}) > 1
    return [line_of(one, several) for one in efforts]


def total_of(lines: Sequence[Line]) -> Seconds:
    """Of all that runs."""
    least, most = (sum(line.seconds[part] for line in lines) for part in (0, 1))
    return least, most


def said_in_all(lines: Sequence[Line]) -> str:
    """How long all that runs takes."""
    running = sum(line.captures > 0 for line in lines)
    return f"{running} of {len(lines)} attack(s) run, {between(*total_of(lines))} here"
