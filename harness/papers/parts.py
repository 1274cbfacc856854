"""A part of a table, made by one worker of several: of machines, each a shard, or of the processes of one."""

from dataclasses import dataclass
from functools import partial

from harness.base.errors import UsageError
from harness.evaluation import Run
from harness.papers import TABLES, UNDEALT, Request
from harness.parallel.processes import in_processes
from harness.parallel.shard import Shard
from harness.parallel.units import Job
from harness.study.runner import ShardDone

# So that a process whose parts were quick takes over some of another's.
_PARTS_PER_JOB = 8


@dataclass(frozen=True)
class Part:
    """A shard of a table, which a worker makes in the folder that all share; ``asked`` lacks the run and the shard."""

    table: str
    asked: partial[Request]
    shard: Shard

    @property
    def name(self) -> str:
        """Which one it is."""
        return str(self.shard)

    @property
    def words(self) -> str:
        """What it is, for a person who waits."""
        return f"{self.table} {self.shard}"

    def make(self, run: Run) -> None:
        """Makes the cells and trainings of its rows, or finds them made."""
        try:
            TABLES[self.table](self.asked(run=run, shard=self.shard))
        except ShardDone:
            return
        raise AssertionError(f"{self.table} went on without what the other shards make")


def require_dealt(table: str, option: str) -> None:
    """Raises UsageError: it is made by one process."""
    if table in UNDEALT:
        raise UsageError(f"{table} has no parts for {option}: {UNDEALT[table]}; leave {option} out")


def make_in_processes(table: str, asked: partial[Request], job: Job, jobs: int) -> None:
    """Makes all that a table needs in ``jobs`` processes; the same request without a shard then finds it.

    Raises:
        UsageError: as the table itself; or processes are lost again and again.
    """
    count = jobs * _PARTS_PER_JOB
    parts = [Part(table, asked, Shard(index, count)) for index in range(1, count + 1)]
    in_processes(job, parts, jobs, "parts of the table", "parts")
