"""Refusal of work before it starts: more memory than there is, or more work than anybody waits for."""

import logging
import os
import sys
from pathlib import Path

from harness.base.errors import UsageError
from harness.base.progress import in_words

try:
    import resource
except ImportError:  # of Unix
    resource = None

log = logging.getLogger(__name__)

#: Far more gradients of single examples than a day of the fastest machine computes, a million a second.
MOST_GRADIENTS = 10**11
#: Local steps of a whole training, each of which is accounted for.
MOST_STEPS = 10_000_000

_GIGABYTE = 1e9
_GROUP = Path("/sys/fs/cgroup")
# Processes of one run that share this machine's memory, and that of one of its devices.
_workers, _on_device = 1, 1
# As measured of the papers' networks on two cores; networks with fewer weights take less.
_SECONDS_PER_STEP, _SECONDS_PER_GRADIENT, _WEIGHTS = 1e-3, 2e-5, 8_000
#: Seconds of work that is told of before it is done.
WORTH_TELLING = 120


def require_memory(needed: float, what: str, fix: str) -> None:
    """Compares a need in bytes with what is free; where no system says, with nothing.

    Raises:
        UsageError: there is less.
    """
    free = free_memory()
    if free is not None and needed > free:
        raise UsageError(
            f"{what} takes about {needed / _GIGABYTE:.3g} GB of memory, and {free / _GIGABYTE:.3g} GB are free; {fix}"
        )


def require_time(gradients: int, fix: str) -> None:
    """Refuses a number of gradients of single examples that takes days on any machine.

    Raises:
        UsageError: it does.
    """
    if gradients > MOST_GRADIENTS:
        days = gradients / 1e6 / 86_400
        raise UsageError(
            f"this takes {gradients:.3g} gradients, at a million a second more than {days:.3g} days; {fix}"
        )


def require_steps(rounds: int, steps: int) -> None:
    """Refuses more local steps in all than can be accounted for.

    Raises:
        UsageError: there are.
    """
    if rounds * steps > MOST_STEPS:
        raise UsageError(f"{rounds} rounds of {steps} steps are beyond the {MOST_STEPS:,} that are counted; take fewer")


def seconds_of(steps: int, gradients: int, weights: int) -> float:
    """Return what so many local steps of a small network with so many weights take, with so many gradients of single
    examples in all of them."""
    return steps * _SECONDS_PER_STEP + gradients * _SECONDS_PER_GRADIENT * min(1.0, weights / _WEIGHTS)


def forecast(seconds: float, what: str, cores: int = 2, at_least: bool = False) -> None:
    """Tells in one line, before it starts, of work that takes minutes on so many cores or longer.

    ``at_least``: it may well take many times as long.
    """
    if seconds >= WORTH_TELLING:
        on, about = "two" if cores == 2 else cores, "at least" if at_least else "about"
        log.warning("harness: %s takes %s %s on %s cores", what, about, in_words(seconds), on)


def share_memory(workers: int, on_device: int | None = None) -> None:
    """Says that this process is one of so many on this machine, which all take what they find free.

    Args:
        on_device: as many of them compute on one device; None for all.
    """
    global _workers, _on_device
    _workers, _on_device = workers, workers if on_device is None else on_device


def own_share_of_device(free: int) -> int:
    """Return how many of the bytes that are free on a device this process may count on."""
    return free // _on_device


def free_memory() -> int | None:
    """Bytes that can be taken: a share of what the system has available, or less where this process may have less."""
    shared = [bytes_ // _workers for bytes_ in (_available(), _left_in_group()) if bytes_ is not None]
    own = [bytes_ for bytes_ in (_left_of_addresses(), _left_of_grant()) if bytes_ is not None]
    return min([*shared, *own], default=None)


def peak_memory() -> int:
    """Bytes that this process took at its most; 0 where no system says."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)


def _available() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            facts = dict(line.split(":", 1) for line in lines)
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _left_in_group() -> int | None:
    """Return what a container's own limit leaves; files that the system keeps in memory are given up when it is
    needed."""
    try:
        most = int((_GROUP / "memory.max").read_text())  # "max" where there is none
        used = int((_GROUP / "memory.current").read_text())
        facts = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return max(0, most - used + int(facts["inactive_file"]))
    except (OSError, KeyError, ValueError):
        return None


def _left_of_addresses() -> int | None:
    """Return what ``ulimit -v`` leaves."""
    if resource is None or (most := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return None
    used = _used(0)
    return None if used is None else max(0, most - used)


def granted() -> int | None:
    """Bytes that Slurm grants this job on its node; None where it is no job, or all of the node is granted."""
    for name, times in (("SLURM_MEM_PER_NODE", "1"), ("SLURM_MEM_PER_CPU", os.environ.get("SLURM_CPUS_ON_NODE", "1"))):
        megabytes = os.environ.get(name, "")
        if megabytes.isdecimal() and times.isdecimal() and int(megabytes):
            return int(megabytes) * int(times) * 2**20
    return None


def _left_of_grant() -> int | None:
    most, used = granted(), _used(1)
    return None if most is None or used is None else max(0, most - used)


def _used(column: int) -> int | None:
    """Bytes that this process takes: addresses (0), or memory (1)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
