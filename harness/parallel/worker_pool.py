"""The victims of one attack over processes of one machine: no thread waits for another at every operation.

Where nobody says how many processes a run has, a rule from measurements chooses (docs/scaling.md).
"""

import logging
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import PicklingError
from typing import NamedTuple

import torch
from loky import cpu_count
from loky.backend.reduction import dumps
from torch import Tensor

from harness.attacks import ATTACKS, Attack, Reconstruction, run_attack
from harness.base.devices import use_threads
from harness.base.errors import UsageError
from harness.base.limits import free_memory, peak_memory, share_memory
from harness.base.progress import hush
from harness.base.vectors import Layout
from harness.evaluation.attacking import in_one_process
from harness.evaluation.observe import Stage
from harness.evaluation.watching import AttackForecast, AttackRecorder, work_of
from harness.experiment import CellSettings
from harness.models import build_module
from harness.models.batch_norm import trained_layers
from harness.models.networks import ImageShape
from harness.models.rows import ways_of
from harness.observation import Observation
from harness.own_sources import digest_of_file, own_files
from harness.parallel.processes import TENSORS, begin_workers, why_lost

# What one of several processes attacks of an observation, and what becomes of it.


class Made(NamedTuple):
    """Result of a share, and what that took of another process: its processor's seconds, and bytes at the peak."""

    reconstruction: Reconstruction
    recorder: AttackRecorder | None
    seconds: float = 0.0
    peak: int = 0


@dataclass(frozen=True)
class Code:
    """The user's own files that attacks on a network were loaded from, with the digests they had."""

    files: dict[Path, str | None]

    @classmethod
    def of(cls, cells: Sequence[CellSettings]) -> "Code":
        """Return the files as this process has loaded them for cells of one network."""
        return cls(own_files(cells[0].model, *((ATTACKS, cell.attack) for cell in cells)) if cells else {})

    @property
    def is_unchanged(self) -> bool:
        """Return whether who loads it now loads the same."""
        return all(digest_of_file(file) == known for file, known in self.files.items())


@dataclass(frozen=True)
class Share:
    """Rows of an observation that one process attacks, so many at a time, and the code that is to do it."""

    attack: Attack
    observation: Observation
    chunk: int
    recorder: AttackRecorder | None
    code: Code

    def made(self) -> Made:
        began = time.process_time()
        reconstruction = run_attack(self.attack, self.observation, self.chunk, self.recorder)
        return Made(reconstruction, self.recorder, time.process_time() - began, peak_memory())


def made_elsewhere(sent: bytes) -> Made | None:
    """Return what becomes of a share that another process of this run has pickled; None where this one may have loaded
    other code for it, since somebody changed it."""
    share: Share = pickle.loads(sent)
    return share.made() if share.code.is_unchanged else None


log = logging.getLogger(__name__)

#: Gradients of single images, at most, times weights, below which an attack is over sooner than its rows are dealt.
_WORTH_DEALING = 1e7
#: Bytes of what was observed above which it is not copied to others.
_MOST_SENT = 2**30
#: Seconds after which somebody who waits is told that others are still at work.
_PATIENCE = 5.0
_CHANGED = "a file of yours was changed while the run began"


def can_be_sent(rows: int, weights: int, size: int) -> bool:
    """Return whether there is room for another copy, or several on the way, of what was observed of so many networks.

    ``size``: bytes of a number.
    """
    sent, free = 2 * size * rows * weights, free_memory()
    return sent <= _MOST_SENT and (free is None or 4 * sent <= free)


class WorkerPool:
    """Pool of this process and others, which take an equal share of an attack's victims.

    Rows do not need each other, so that results are those of one process with as many threads as each has, to the bit
    wherever they are so under another ``--chunk``. Where one is lost or lacks memory, half as many begin again; what
    the others were attacking is attacked here, with half as many rows together.

    Attributes:
        processes: how many, with this one.
        seconds: of a processor, that the others have computed. peaks: the bytes that each took at its most, by place.
    """

    def __init__(self, processes: int, threads: int | None, cells: Sequence[CellSettings] = ()) -> None:
        self._code = Code.of(cells if processes > 1 else ())
        self.seconds, self.peaks = 0.0, dict[int, int]()
        self._threads, self._dealt = threads, False
        self._begin(processes)

    def _begin(self, processes: int) -> None:
        self.processes, others = processes, processes - 1
        begin = partial(_share_machine, processes, self._threads)
        share_memory(1)  # of all that is free the workers' limit is computed
        self._others = begin_workers(max(others, 1), self._threads or 1, partial(_begin_hushed, begin), TENSORS)
        begin()
        for _ in range(others):  # they begin with the first thing to do, and take seconds to load what they need
            self._others.submit(hush)

    def attack(
        self, attack: Attack, observation: Observation, chunk: int, watched: AttackForecast | None = None
    ) -> Reconstruction:
        """Return what :func:`harness.evaluation.attacking.in_one_process` returns, from all processes of the pool."""
        shares = self._shares(attack, observation)
        if len(shares) == 1:
            return in_one_process(attack, observation, chunk, watched)
        self._dealt, watching = True, watched.deal(shares) if watched else [None] * len(shares)
        parts = [
            Share(attack, observation.take(rows), chunk, own, self._code)
            for rows, own in zip(shares, watching, strict=True)
        ]
        futures = [self._submit(part) for part in parts[1:]]
        made = [Made(in_one_process(attack, parts[0].observation, chunk, watched), watching[0])]
        problems = set[str]()
        for future, part in zip(futures, parts[1:], strict=True):
            made.append(self._result(future, problems, watched) or self._made_here(part, bool(problems), watched))
        self.seconds += sum(part.seconds for part in made)
        self.peaks |= {place: part.peak for place, part in enumerate(made) if part.peak}
        if watched:
            watched.gather(shares, [part.recorder for part in made])
        if problems:
            self.end(kill=True)
            self._begin(1 if _CHANGED in problems else max(1, self.processes // 2))
        return _in_order([part.reconstruction for part in made], shares)

    def _shares(self, attack: Attack, observation: Observation) -> list[Tensor]:
        """The rows of each process; all in one where nothing is gained by more."""
        rows, weights, size = observation.rows, observation.model.layout.total, observation.target.element_size()
        each = getattr(attack.optimizer(), "inner_iterations", 1) * attack.max_iterations * attack.starts
        worth = attack.dealt and rows * observation.examples * each * weights >= _WORTH_DEALING
        # Where rows are evaluated one after another, threads take a row each as it is.
        together = not observation.model.evaluates_alone and observation.target.device.type == "cpu"
        dealt = worth and together and can_be_sent(rows, weights, size)
        count = max(1, min(self.processes, rows // 2)) if dealt else 1
        return [torch.arange(first, rows, count) for first in range(count)]

    def _submit(self, part: Share) -> "Future[Made | None]":
        problem: Exception
        try:
            # Here, and not in the thread that sends it: by then this process evaluates the same network, which holds
            # other weights while it does.
            sent = bytes(dumps(part, reducers=TENSORS))
        except Exception as error:  # whatever a user's own class raises
            problem = PicklingError(str(error))
        else:
            try:
                return self._others.submit(made_elsewhere, sent)
            except BrokenProcessPool as error:  # before this one was submitted
                problem = error
        lost = Future[Made | None]()
        lost.set_exception(problem)
        return lost

    def _result(self, future: "Future[Made | None]", problems: set[str], watched: AttackForecast | None) -> Made | None:
        """None where it is to be made here; why goes to ``problems``, unless only it could not be sent."""
        while watched and not wait([future], _PATIENCE).done:
            watched.wait()
        try:
            if made := future.result():
                return made
            problem = _CHANGED
        except PicklingError:
            return None
        except Exception as error:
            problem = why_lost(error)
            if problem is None:
                raise
        if problem not in problems:
            log.warning("%s; this process attacks its rows", problem)
        problems.add(problem)
        return None

    def _made_here(self, part: Share, lost: bool, watched: AttackForecast | None) -> Made:
        """``lost``: who was to attack it may have lacked memory."""
        chunk = max(1, part.chunk // 2) if lost else part.chunk
        if watched:
            watched.take_over(part.observation.rows, part.recorder)
        return Made(in_one_process(part.attack, part.observation, chunk, watched), part.recorder)

    def end(self, kill: bool = False) -> None:
        """Ends the other processes, which may still be loading where nothing was dealt."""
        self._others.shutdown(wait=True, kill_workers=kill or not self._dealt)


@contextmanager
def worker_pool(processes: int, threads: int | None = 1, cells: Sequence[CellSettings] = ()) -> Iterator[WorkerPool]:
    """Yield a pool of workers. Whatever ends the context early ends the other processes too.

    Args:
        processes: of which this is one; alone, it attacks as if there were no pool.
        threads: of each; None leaves it to torch.
        cells: whose one network and attacks they load, which may be a user's own.
    """
    before = torch.get_num_threads()
    everyone = WorkerPool(processes, threads, cells)
    kill = True
    try:
        yield everyone
        kill = False
    finally:
        everyone.end(kill)
        _share_machine(1, before)


def _share_machine(processes: int, threads: int | None) -> None:
    use_threads(threads)
    share_memory(processes)


def _begin_hushed(begin: Callable[[], None]) -> None:
    hush()
    begin()


def _in_order(made: list[Reconstruction], shares: list[Tensor]) -> Reconstruction:
    places = torch.cat(shares).argsort()
    names = Reconstruction.__dataclass_fields__
    return Reconstruction(**{name: torch.cat([getattr(one, name) for one in made])[places] for name in names})


# Gradients of single images, at most: about what two workers could do while they start, on networks of so many weights.
_WORTH_SHARING, _SMALL = 1e5, 2**15
# Fewer victims take a process hardly less time, but of larger networks.
_LEAST_VICTIMS, _LEAST_OF_LARGER, _LARGER = 8, 2, 2**19
# Bytes that a process takes before it attacks anything (350 to 400 million), and then for an attack on small networks.
_OF_A_PROCESS = 1e9


def is_one_group(cells: Sequence[CellSettings], settles: bool = False) -> bool:
    """Return whether cells differ in the tap alone, and so are made one after another.

    ``settles``: members of a suite are, too, since one may spare the others.
    """
    return len(_work_of_groups(cells, settles)) == 1


def suitable_jobs(cells: Sequence[CellSettings], stage: Stage, settles: bool = False) -> int:
    """Return how many processes suit the run: as many as this machine has cores and the run has groups of cells, or
    victims. One where several would not pay.

    With two cores two processes of one thread take 0.7 of the time of one process of two.
    """
    if any(cell.device != "cpu" for cell in cells):
        return 1
    groups = _work_of_groups(cells, settles)
    if len(groups) == 1:
        try:
            data = stage.dataset(cells[0].dataset, cells[0].model)
        except UsageError:  # said when the cell is made
            return 1
        return suitable_workers(cells, data.image_shape, data.num_classes)
    shared = sum(groups) - max(groups, default=0.0)
    return min(cpu_count(), len(groups)) if shared >= _WORTH_SHARING else 1


def suitable_workers(cells: Sequence[CellSettings], image_shape: ImageShape, classes: int) -> int:
    """Processes for cells of one network that are made one after another, each attack's victims dealt to them.

    One for networks whose rows are evaluated one after another, which threads share as well, without a copy of what
    was observed; and where every attack is over at once.
    """
    long = [cell for cell in cells if _is_dealt(cell)]
    weights = _weights_if_together(long[0].model, image_shape, classes) if long else None
    if weights is None:
        return 1
    free = free_memory()
    most = cpu_count() if free is None else min(cpu_count(), int(free // _OF_A_PROCESS))
    least = _LEAST_VICTIMS if weights < _LARGER else _LEAST_OF_LARGER
    worth = [cell for cell in long if work_of(cell) * max(1.0, weights / _SMALL) >= _WORTH_SHARING]
    victims = [_victims(cell) for cell in worth if can_be_sent(_victims(cell), weights, _bytes(cell))]
    return max(1, min(most, max(victims, default=0) // least))


def most_workers(cells: Sequence[CellSettings]) -> int:
    """The processes that have anything to do there: two victims each."""
    return max([1, *(_victims(cell) // 2 for cell in cells)])


def _is_dealt(cell: CellSettings) -> bool:
    attack = cell.build_attack()
    return cell.device == "cpu" and cell.engine != "reference" and isinstance(attack, Attack) and attack.dealt


def _weights_if_together(model: str, image_shape: ImageShape, classes: int) -> int | None:
    """Weights of a network whose rows are evaluated together; None for others, and where there is none."""
    try:
        network = build_module(model, image_shape, classes, seed=0)
    except UsageError:  # said when the cell is made
        return None
    weights = Layout.of(network).total
    return None if ways_of(network, weights, bool(trained_layers(network)))[0].alone else weights


def _bytes(cell: CellSettings) -> int:
    return getattr(torch, cell.dtype).itemsize


def _victims(cell: CellSettings) -> int:
    return cell.victims * len(cell.seeds)


def _work_of_groups(cells: Sequence[CellSettings], settles: bool = False) -> list[float]:
    groups: dict[str, float] = {}
    for cell in cells:
        together = {"tap", "attack", "attack_args"} if settles and cell.suite else {"tap"}
        name = cell.model_dump_json(exclude=together)
        groups[name] = max(groups.get(name, 0.0), work_of(cell))
    return list(groups.values())
