"""Plan of judging captures, told in advance: what it reads, does and takes, and what of it fits into a budget of time.

Nothing is attacked for that. The gradient of a start is timed, against what was sent with its coordinates shuffled.
"""

import math
import re
import time
from bisect import bisect_left
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
from harness.base.kinds import plural
from harness.datasets import Dataset
from harness.evaluation.watching import between, controls_of, work_of
from harness.experiment import CellSettings
from harness.judging.beside import ALONE
from harness.judging.capture import FACTS, Capture, read_capture
from harness.judging.declared import Group, noise_of
from harness.judging.stage import CapturedStage, PublicSplit, SimulatedStage, of_captures
from harness.judging.without_truth import STAND_INS, observed, shuffled, stand_ins_of
from harness.observation import Observation
from harness.results.arrays import StoredArrays
from harness.scoring import LpipsScorer
from harness.scoring.lineup import lineup_test, swap_control
from harness.scoring.strongest import IN_PART, NO_TIME

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
_KEPT = 0.2
# Of the rest, what attacks on clients of one step may take.
_OF_CONTROLS = 1 / 3
_DEEPEST = 3


def folders_of(named: Sequence[Path]) -> list[Path]:
    """Folders of captures; of a folder that is none, those below it, in order. Their records stand for them."""
    found = list[Path]()
    for folder in (one.parent if one.name == FACTS and one.is_file() else one for one in named):
        depths = ["/".join([*["*"] * depth, FACTS]) for depth in range(1, _DEEPEST + 1)]
        below = [] if (folder / FACTS).exists() else sorted(one.parent for way in depths for one in folder.glob(way))
        found += below or [folder]
    return found


@dataclass(frozen=True)
class Reading:
    """Facts that are read of one capture; ``problem`` says why it cannot be read, and how to fix that.

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
    """Return what is read of each folder, and the captures that can be."""
    told, found = list[Reading](), list[Capture]()
    for folder in folders:
        try:
            capture = read_capture(folder, truth)
        except UsageError as problem:
            told.append(Reading(str(folder), {}, problem=str(problem)))
            continue
        said = capture.record.model_dump(mode="json", exclude_none=True, exclude={"format"})
        facts = {name: value for name, value in said.items() if value not in ([], {})}
        known = None if capture.truth is None else capture.truths
        told.append(Reading(str(folder), facts, capture.kind, _numbers(capture.moved), known))
        found.append(capture)
    return told, found


def _numbers(arrays: StoredArrays) -> int:
    return sum(math.prod(shape) for shape in arrays.shapes.values())


@dataclass(frozen=True, eq=False)
class Effort:
    """Time that one attack on one group of clients takes.

    Attributes:
        cell: of the attack on all captures.
        each: seconds of a gradient of one start of a victim; of an attack that descends no loss, of all that it does to
            a victim.
        refused: why it is impossible; None where it may run.
        jobs: processes that share its victims.
        scoring: seconds that a run takes beside its attack.
    """

    group: Group
    cell: CellSettings
    each: float
    refused: str | None = None
    jobs: int = 1
    scoring: float = 0.0

    @cached_property
    def attack(self) -> Attacker:
        """Attack with its settings."""
        return self.cell.build_attack()

    @property
    def searches(self) -> bool:
        """Return whether it descends a loss."""
        return isinstance(self.attack, Attack) and not self.attack.closed_form

    @property
    def is_control(self) -> bool:
        """Return whether it is of clients of one step, made to see whether an attack works."""
        return self.group.name == ALONE

    @cached_property
    def _noisy(self) -> bool:
        return noise_of(self.group.captured, self.cell) is not None

    @property
    def _twice(self) -> bool:
        """Return whether it may run again with labels known, where those that it infers are at chance."""
        own = self.cell.suite is not None and self.group.captured.images is not None
        return own and getattr(self.attack, "uses_labels", False)

    @property
    def fewest(self) -> int | None:
        """Iterations below which it says nothing; None where none are saved."""
        if not self.searches:
            return None
        attack = reconstructing(self.attack)
        each = getattr(attack.optimizer(), "inner_iterations", 1)
        return min(attack.max_iterations, math.ceil(_FEWEST_GRADIENTS / each))

    @property
    def needed(self) -> float:
        """Seconds at most of the least of it that says anything."""
        return self.seconds(1, self.fewest)[1]

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
        """Return the seconds of the attack with its controls."""
        cell = self.cell_of(captures, iterations)
        runs = [cell]
        if self.group.captured.images is None:
            stand_ins = cell.model_copy(update={"victims": STAND_INS})
            runs = [cell, cell, stand_ins]
            cell = stand_ins
        noisy = ("positive_sigma0", "noise_x100") if self._noisy else ()
        runs += [one for name, one in controls_of(cell) if name == "positive" or name in noisy]
        least, most = (sum(self.scoring + self._of(one, early) for one in runs) for early in (True, False))
        return least, most * (2 if self._twice and iterations is None else 1)

    def _of(self, cell: CellSettings, early: bool) -> float:
        if not self.searches:
            return self.each * cell.victims
        return self.each * work_of(cell, early) / cell.examples / max(1, min(self.jobs, cell.victims // 2))


def efforts_of(
    groups: Sequence[Group], split: PublicSplit | None, data_root: Path, chunk: int, jobs: int = 1
) -> list[Effort]:  # fmt: skip
    """Return what each attack on each group takes here, timed.

    Args:
        jobs: processes that share an attack's victims.
    """
    found = list[Effort]()
    for group in groups:
        bench = _Bench(group, split, data_root, chunk)
        for cell in group.cells:
            try:
                each = bench.each(cell)
            except UsageError as problem:
                found.append(Effort(group, cell, 0.0, of_captures(str(problem))))
            else:
                dealt = cell.device == "cpu" and not bench.alone and getattr(cell.build_attack(), "dealt", False)
                found.append(Effort(group, cell, each, None, jobs if dealt else 1, bench.scoring))
    return found


class _Bench:
    """Bench on which attacks on one group are timed."""

    def __init__(self, group: Group, split: PublicSplit | None, data_root: Path, chunk: int) -> None:
        self._group, self._split, self._root, self._chunk = group, split, data_root, chunk
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

    @cached_property
    def scoring(self) -> float:
        """Seconds in which a run sets its scene and tests what an attack made, were all of it right."""
        (stage, doubles), cell = self._stage, self._group.cell

        def work() -> None:
            scene = stage.set(cell.model_copy(update=doubles))
            among = scene.truth.indices, scene.dataset.images, scene.dataset.labels, cell.seeds[0]
            for test in (lineup_test, swap_control):
                test(scene.truth.images, *among)

        return _timed(work)

    def _seen(self, cell: CellSettings) -> tuple[Observation, Dataset]:
        """Return what the attacker has, what was sent shuffled, and where look-alikes come from."""
        stage, doubles = self._stage
        scene = stage.set(cell.model_copy(update=doubles))
        seen = scene.observation.known_to(cell.build_attack().tier)
        if doubles:
            seen = observed(self._group.captured, seen, cell)
        self.alone = seen.model.evaluates_alone
        return replace(seen, target=shuffled(seen)), scene.dataset

    @cached_property
    def _stage(self) -> tuple[CapturedStage, dict[str, Any]]:
        """Stage of the group, with what differs in the settings of stand-ins where no truth is known."""
        captured, cell, split = self._group.captured, self._group.cell, self._split
        if captured.images is not None:
            known = (split.look_alikes, split.public) if split else (None, None)
            return CapturedStage(self._root, self._chunk, captured, cell, *known), {}
        assert split is not None
        doubles = stand_ins_of(captured, split)
        own = {"victims": doubles.clients, "dataset": "stand-ins"}
        declared = cell.model_copy(update=own)
        return SimulatedStage(self._root, self._chunk, doubles, declared, split.look_alikes, split.public), own

    def _of_identifier(self, attack: Identifier, seen: Observation, dataset: Dataset) -> float:
        """Return the seconds of one victim: a lineup for each class among its examples, timed with a few candidates.

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
    """Plan for one attack on one group of clients.

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
    def cut(self) -> bool:
        """Return whether time is why it does not run, or not all of it."""
        return self.reason is not None and self.whole[1] > 0

    @property
    def said(self) -> str:
        """Plan as a sentence."""
        where = f"{self.attack}{f', {self.group}' if self.group else ''}"
        if not self.captures:
            return f"{where}: left out: {self.reason}"
        said = f"{where}: {self._ran}, {between(*self.seconds)}"
        return f"{said}; {self.reason}" if self.reason else said

    @property
    def late(self) -> str:
        """Words on the cell of all captures and iterations, which did not run."""
        return f"{IN_PART}: {self._ran} ran; {self.reason}" if self.captures else f"{NO_TIME}: {self.reason}"

    @property
    def _ran(self) -> str:
        few = f" with {self.iterations} iterations" if self.iterations else ""
        return f"{self.captures} of {self.of} captures{few}"

    def record(self) -> dict[str, Any]:
        """Return the plan as plain JSON."""
        return asdict(self) | {"said": self.said}


@dataclass(frozen=True, eq=False)
class Share:
    """Part of an attack that runs: on so many captures, 0 for none, and with fewer iterations than its own or None.

    ``alone``: the budget in seconds into which all of it fits, where no other attack is asked for.
    """

    effort: Effort
    captures: int
    iterations: int | None = None
    alone: float = 0.0

    @property
    def seconds(self) -> Seconds:
        """Return what that takes."""
        return self.effort.seconds(self.captures, self.iterations) if self.captures else (0.0, 0.0)

    @property
    def cell(self) -> CellSettings:
        """Its cell."""
        return self.effort.cell_of(self.captures or self.effort.cell.victims, self.iterations)

    def line(self, several: bool) -> Line:
        """Return the share in words, with its group where that has a name or there are ``several``."""
        effort, of = self.effort, self.effort.cell.victims
        words = effort.group.name or (effort.group.sizes if several else "")
        if effort.refused:
            return Line(effort.cell.attack, words, 0, of, None, (0.0, 0.0), (0.0, 0.0), effort.refused)
        whole, reason = effort.seconds(of), None
        if self.captures < of or self.iterations is not None:
            least = "" if self.captures else f", the least that says anything {between(0, effort.needed)}"
            alone = written(self.alone)
            reason = f"all of it takes {between(*whole)}{least}; alone it fits into --budget {alone}"
        return Line(effort.cell.attack, words, self.captures, of, self.iterations, self.seconds, whole, reason)


def whole_of(efforts: Sequence[Effort]) -> list[Share]:
    """All of everything that is possible."""
    return [Share(one, 0 if one.refused else one.cell.victims) for one in efforts]


def shares_of(efforts: Sequence[Effort], budget: float | None, data_root: Path, began: float) -> list[Share]:
    """All work, or what fits into a budget in seconds that counts from ``began`` (of ``time.monotonic``)."""
    if budget is None:
        return whole_of(efforts)
    LpipsScorer.load(data_root)  # takes of the budget too, and is kept
    return fitted(efforts, budget, time.monotonic() - began)


def fitted(efforts: Sequence[Effort], budget: float, spent: float = 0.0) -> list[Share]:
    """Return what of the attacks fits into a budget by their forecasts at most, in the order of the attacks.

    First are tests of membership, each in half of the time at most; then controls of one step, the quickest first, in a
    part of it: one that leaks is enough. Then come attacks that descend no loss. Each gets as many captures as an equal
    part of what is left allows; where these would be too few for a lineup, fewer iterations.

    Args:
        budget: seconds, of which ``spent`` are gone.

    Raises:
        UsageError: every attack is impossible, or the budget is too small for any; it names the smallest that helps.
    """
    asked = [one for one in efforts if not one.group.name]
    possible = [one for one in asked if not one.refused]
    if not possible:
        raise UsageError(next((one.refused for one in asked if one.refused), "there is no attack to plan"))
    left, found = budget * (1 - _KEPT) - spent, dict[Effort, Share]()
    beside = [one for one in efforts if one.group.name and not one.refused]
    tests = [one for one in [*possible, *beside] if isinstance(one.attack, Identifier)]
    controls = [one for one in beside if one not in tests]
    order = sorted((one for one in possible if one not in tests), key=lambda one: one.searches)

    def take(efforts: Sequence[Effort], part: Callable[[int, float], float]) -> None:
        """``part``: how much each may take, by its place among them and by what is left."""
        for place, effort in enumerate(efforts):
            spent = sum(share.seconds[1] for share in found.values())
            if share := _most_within(effort, part(place, left - spent)):
                found[effort] = share

    take(tests, lambda _, rest: rest / 2)
    controls.sort(key=lambda one: one.seconds(one.cell.victims)[1])
    take(controls, lambda place, rest: rest * _OF_CONTROLS / (len(controls) - place))
    take(order, lambda place, rest: rest / (len(order) - place))
    if found.keys().isdisjoint(possible):
        left, found = budget * (1 - _KEPT) - spent, {}
        asked = sorted(possible, key=lambda one: one.searches)
        alone = next((share for effort in asked if (share := _most_within(effort, left))), None)
        if alone is None:
            least = (min(effort.needed for effort in possible) + spent) / (1 - _KEPT)
            raise UsageError(f"--budget is too small for any attack; the smallest that helps is {written(least)}")
        found[alone.effort] = alone
    return [replace(found.get(effort, Share(effort, 0)), alone=_alone(effort, beside, spent)) for effort in efforts]


def _alone(effort: Effort, beside: Sequence[Effort], spent: float) -> float:
    """The budget into which all of an attack fits that alone is asked for; what is judged beside it has its part."""

    def whole(one: Effort) -> float:
        return one.seconds(one.cell.victims)[1]

    others = [one for one in beside if one is not effort]
    own, tests = whole(effort), sum(whole(one) for one in others if isinstance(one.attack, Identifier))
    if isinstance(effort.attack, Identifier):
        needed = 2 * own
    elif effort.is_control:
        needed = own / _OF_CONTROLS
    else:
        controls = sum(whole(one) for one in others if one.is_control and one.cell.attack == effort.cell.attack)
        needed = min(own / (1 - _OF_CONTROLS), own + controls)
    return (spent + tests + needed) / (1 - _KEPT)


def _most_within(effort: Effort, seconds: float) -> Share | None:
    of = effort.cell.victims
    few, fewest = min(of, _FEWEST_CAPTURES), effort.fewest

    def largest(numbers: range, share: Callable[[int], Share]) -> Share | None:
        fit = bisect_left(numbers, True, key=lambda number: share(number).seconds[1] > seconds)
        return share(numbers[fit - 1]) if fit else None

    whole = largest(range(few, of + 1), lambda captures: Share(effort, captures))
    # A control of fewer clients shows nothing, even if all of them leak.
    fewer = range(0) if effort.is_control else range(1, few + 1)
    if whole or fewest is None:
        return whole or largest(fewer, lambda captures: Share(effort, captures))
    most = reconstructing(effort.attack).max_iterations
    shorter = largest(range(fewest, most), lambda iterations: Share(effort, few, iterations))
    return shorter or largest(fewer, lambda captures: Share(effort, captures, fewest))


def within_budget(groups: Sequence[Group], shares: Sequence[Share]) -> list[Group]:
    """The groups with the cells that fit; what is impossible stays, since it takes no time and says why.

    What does not run, or not whole, has a cell of its own that says so: the others' verdicts are theirs alone.
    """
    found = []
    for group in groups:
        own = [share for share in shares if share.effort.group is group]
        if group.name:
            own.sort(key=lambda share: share.seconds[1])  # the first control that leaks is enough
        cells = [share.cell for share in own if share.captures or share.effort.refused]
        lines = [(share.effort.cell, share.line(False)) for share in own]
        late = [(cell, line.late) for cell, line in lines if line.cut]
        found.append(replace(group, cells=cells, declared=group.cell, late=late))
    return found


def lines_of(shares: Sequence[Share]) -> list[Line]:
    """All of them in words."""
    several = len({id(share.effort.group) for share in shares if not share.effort.group.name}) > 1
    return [share.line(several) for share in shares if not (share.effort.group.name and share.effort.refused)]


def total_of(lines: Sequence[Line]) -> Seconds:
    """Return the seconds of all attacks that run."""
    least, most = (sum(line.seconds[part] for line in lines) for part in (0, 1))
    return least, most


def said_in_all(lines: Sequence[Line]) -> str:
    """Return words on how many attacks run, and how long all of them take."""
    running = sum(line.captures > 0 for line in lines)
    return f"{running} of {plural(len(lines), 'attack')} run, {between(*total_of(lines))} here"


# Times as options have them.

_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds_in(text: str) -> float:
    """The seconds of a text such as ``90s``, ``10m`` or ``2h``. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--budget {text!r} is no time; write for example 90s, 10m or 2h")
    return seconds


def written(seconds: float) -> str:
    """At least so many seconds, as :func:`seconds_in` reads them."""
    unit = next((name for name, size in reversed(_UNITS.items()) if seconds >= 5 * size), "s")
    return f"{max(1, math.ceil(seconds / _UNITS[unit]))}{unit}"
