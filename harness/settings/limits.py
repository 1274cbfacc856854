"""What is refused before it starts: more memory than there is, or more work than anybody waits for."""

import logging
import os

from harness.errors import UsageError
from harness.progress import in_words

log = logging.getLogger(__name__)

#: Far more gradients of single examples than a day of the fastest machine computes, a million a second.
MOST_GRADIENTS = 10**11
#: Local steps of a whole training, each of which is accounted for.
MOST_STEPS = 10_000_000

_GIGABYTE = 1e9
# As measured of the papers' networks on two cores.
_SECONDS_PER_STEP, _SECONDS_PER_GRADIENT = 1e-3, 2e-5
#: Seconds of work that is told of before it is done.
WORTH_TELLING = 120


def require_memory(needed: float, what: str, mend: str) -> None:
    """Compares a need in bytes with what is free; where no system says, with nothing.

    Raises:
        UsageError: there is less.
    """
    free = _free()
    if free is not None and needed > free:
        raise UsageError(
            f"{what} takes about {needed / _GIGABYTE:.3g} GB of memory, and {free / _GIGABYTE:.3g} GB are free; {mend}"
        )


def require_time(gradients: int, mend: str) -> None:
    """Refuses a number of gradients of single examples that takes days on any machine.

    Raises:
        UsageError: it does.
    """
    if gradients > MOST_GRADIENTS:
        days = gradients / 1e6 / 86_400
        raise UsageError(
            f"this takes {gradients:.3g} gradients, at a million a second more than {days:.3g} days; {mend}"
        )


def require_steps(rounds: int, steps: int) -> None:
    """Refuses more local steps in all than can be accounted for.

    Raises:
        UsageError: there are.
    """
    if rounds * steps > MOST_STEPS:
        raise UsageError(f"{rounds} rounds of {steps} steps are beyond the {MOST_STEPS:,} that are counted; take fewer")


def seconds_of(steps: int, gradients: int) -> float:
    """What so many local steps of small networks take, with so many gradients of single examples in all of them."""
    return steps * _SECONDS_PER_STEP + gradients * _SECONDS_PER_GRADIENT


def forecast(seconds: float, what: str) -> None:
    """Tells in one line, before it starts, of work that takes minutes on two cores or longer."""
    if seconds >= WORTH_TELLING:
        log.warning("harness: %s takes about %s on two cores", what, in_words(seconds))


def _free() -> int | None:
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
