"""What is refused before it starts: more memory than there is, or more work than anybody waits for."""

import logging
import os

from harness.errors import UsageError

log = logging.getLogger(__name__)

#: Far more gradients of single examples than a day of the fastest machine computes, a million a second.
MOST_GRADIENTS = 10**11
#: Local steps of a whole training, each of which is accounted for.
MOST_STEPS = 10_000_000

_GIGABYTE = 1e9
# As measured of the papers' networks on two cores.
_SECONDS_PER_STEP, _SECONDS_PER_GRADIENT = 1e-3, 2e-5
_WORTH_TELLING = 120
_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


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


def forecast(seconds: float, what: str, where: str = "on two cores") -> None:
    """Tells in one line, before it starts, of work that takes minutes or longer, and ``where`` it does."""
    if seconds >= _WORTH_TELLING:
        unit, size = next((unit, size) for unit, size in _UNITS if seconds >= 2 * size)
        log.warning("harness: %s takes about %.0f %s %s", what, seconds / size, unit, where)


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
