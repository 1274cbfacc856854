"""Units dealt to workers and shards: cells that share observations, attacks and controls stay together.

A shard is dealt by the names of its units: the same cells in every process that is given the same options.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, TypeVar

from harness.attacks import Attack
from harness.base.devices import use_threads
from harness.base.errors import UsageError
from harness.base.limits import share_memory
from harness.evaluation.controls import ONE_LOOK, positive_control, smaller
from harness.evaluation.run import Run
from harness.evaluation.scores import Scored
from harness.evaluation.watching import work_of
from harness.experiment import CellSettings
from harness.results import CellResult, RunFolder, cell_key


@dataclass(frozen=True)
class Unit:
    """Cells that one worker makes one after another, with their controls.

    Attributes:
        name: a hash of what they have in common; it is the same in every process that is given the same cells.
        cells: settings that differ in the tap alone, and of a suite in the attack, in the order asked for.
        control: which control they are, if any.
    """

    name: str
    cells: tuple[CellSettings, ...]
    control: str | None = None

    def make(self, run: Run) -> None:
        """Makes its cells, or finds them made."""
        for settings in self.cells:
            if self.control:
                run.cell(settings, self.control)
            else:
                run.asked(settings)

    @property
    def work(self) -> float:
        """Gradients of single images that its attacks evaluate, at most."""
        return sum(work_of(settings) for settings in self.cells)

    @property
    def words(self) -> str:
        """Return what it is, for a person who waits."""
        first = self.cells[0]
        control = f" ({self.control} control)" if self.control else ""
        attack = first.attack if len({cell.attack for cell in self.cells}) == 1 else first.suite
        return f"{attack} vs {first.defense} on {first.dataset}{control}"


def units_of(cells: Sequence[CellSettings], run: Run) -> list[Unit]:
    """The cells of a run as units, in the order asked for."""
    groups: dict[str, list[CellSettings]] = {}
    for settings in cells:
        # What settles a place decides over the suite's other members there.
        together = ("tap", "attack", "attack_args") if run.settles and settings.suite else ("tap",)
        identity = run.identity(settings) | dict.fromkeys(together)
        groups.setdefault(cell_key(identity), []).append(settings)
    return [Unit(name, tuple(members)) for name, members in groups.items()]


def shared_controls(units: Sequence[Unit], run: Run) -> dict[str, Unit]:
    """The undefended controls that several units need, each a unit of its own, by name: made first, nobody waits."""
    found: dict[str, Unit] = {}
    needed: Counter[str] = Counter()
    for unit in units:
        own = undefended(unit, run)
        found |= own
        needed.update(own.keys())
    return {name: unit for name, unit in found.items() if needed[name] > 1}


def undefended(unit: Unit, run: Run) -> dict[str, Unit]:
    """The undefended controls of a unit's cells, by name; of a suite none where its members may not need them."""
    controls = {}
    for settings in unit.cells:
        if run.settles and settings.suite:
            continue
        if not _is_own_control(settings):
            control = positive_control(settings)
            name = cell_key(run.identity(control, "positive"))
            controls[name] = Unit(name, (control,), "positive")
    return controls


def in_good_order(units: Sequence[Unit], run: Run) -> list[Unit]:
    """Units, and the undefended controls that several need, so that workers of one folder make nothing twice.

    What has no defense comes first: the victims of a control are the first of an undefended unit, if there is one, else
    it is a unit of its own. Then the longest first: what is begun last ends alone.
    """
    brought = {unit.name: _brought(unit, run) for unit in units}
    kept = set[str]().union(*brought.values())
    alone = [control for name, control in shared_controls(units, run).items() if name not in kept]
    longest = sorted(units, key=lambda unit: unit.work, reverse=True)
    return [*alone, *sorted(longest, key=lambda unit: not brought[unit.name])]


def _brought(unit: Unit, run: Run) -> set[str]:
    """The names of controls whose reconstructions are among this unit's, and are kept as theirs."""
    controls = (
        smaller(settings)
        for settings in unit.cells
        if _is_own_control(settings) and _is_one_look(settings) and isinstance(settings.build_attack(), Attack)
    )
    return {cell_key(run.identity(control, "positive")) for control in controls}


def _is_one_look(settings: CellSettings) -> bool:
    return settings.observations == settings.rounds_seen == 1


def _is_own_control(settings: CellSettings) -> bool:
    return positive_control(settings) == smaller(settings, **ONE_LOOK)


# What a worker does, wherever it is: makes units in a folder, with what it loaded for earlier ones.

#: Draws a cell into a folder.
Draw = Callable[[RunFolder, Scored, CellResult], None]


class Task(Protocol):
    """Work that one worker makes at a time, as :class:`Unit`."""

    @property
    def name(self) -> str:
        """No other task has it."""
        ...

    @property
    def words(self) -> str:
        """Return what it is, for a person who waits."""
        ...

    def make(self, run: Run) -> None:
        """Makes it in the run's folder, or finds it made."""
        ...


@dataclass(frozen=True)
class Job:
    """Options that every unit of a run is made with.

    Attributes:
        data_root: where datasets and LPIPS weights lie.
        out: the run's folder.
        since: what stood in it before that is another run's (:class:`harness.results.RunFolder`).
        chunk: rows attacked together.
        threads: that each worker computes with; None leaves it to torch.
        draw: makes a picture of every new cell.
        settles: see :class:`harness.evaluation.Run`.
        workers: that share the memory of one machine; on a cluster as many may be on one node, or fewer.
    """

    data_root: Path
    out: Path
    since: float = 0.0
    chunk: int = 128
    threads: int | None = None
    draw: Draw | None = None
    workers: int = 1
    settles: bool = False

    def run(self) -> Run:
        """A run that shares its folder with others, and takes what they made."""
        folder = RunFolder(self.out, self.since, shared=True)
        draw = partial(self.draw, folder) if self.draw else None
        return Run(self.data_root, folder, self.chunk, resume=True, draw=draw, settles=self.settles)


def make(job: Job, task: Task) -> None:
    """Makes a task in this process."""
    use_threads(job.threads)
    share_memory(job.workers)
    task.make(_run(job))


@lru_cache(maxsize=1)
def _run(job: Job) -> Run:
    return job.run()


_MOST = 10_000


class Named(Protocol):
    """A thing that processes tell apart by its name."""

    @property
    def name(self) -> str:
        """Name that is the same in every process that is given the same options."""
        ...


N = TypeVar("N", bound=Named)


@dataclass(frozen=True)
class Shard:
    """Part ``index`` (from 1) of ``count``."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """``3/8`` is the third of eight.

        Raises:
            UsageError: it is not written so, or there is no such part.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not found:
            raise UsageError(f"--shard {text!r} is not a part of a whole; write 3/8 for the third of eight")
        index, count = int(found[1]), int(found[2])
        if not 1 <= count <= _MOST:
            raise UsageError(f"--shard {text!r} is of a whole of {count}; take one of 1 to {_MOST}")
        if not 1 <= index <= count:
            raise UsageError(f"there is no shard {index}/{count}; shards of {count} are 1/{count} to {count}/{count}")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def of(self, units: Sequence[N]) -> list[N]:
        """Its units, in the order asked for; all shards together have each unit once, and differ by one at most."""
        names = sorted(unit.name for unit in units)
        own = set(names[self.index - 1 :: self.count])
        return [unit for unit in units if unit.name in own]


WHOLE = Shard(1, 1)
