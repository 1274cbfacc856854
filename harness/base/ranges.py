"""The ranges of settings, stated once; beyond them numbers overflow, or a run would outlive its user.

A bound may be infinite, which is no bound; only without noise, as each defense checks.
"""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

LEAST, MOST = 1e-30, 1e30
MOST_COUNT = 10_000_000
LEAST_SHARE, LEAST_DELTA, LEAST_CLIP = 1e-12, 1e-30, 1e-10


def _not_beyond(value: float) -> float:
    if value != 0 and not LEAST <= abs(value) <= MOST and abs(value) != float("inf"):
        raise ValueError(f"is beyond what can be computed with; take {LEAST:g} to {MOST:g}")
    return value


def _not_lost(value: float) -> float:
    if value < LEAST_CLIP:
        raise ValueError(f"clips to what is lost to rounding; take {LEAST_CLIP:g} or more")
    return value


def is_boolean(value: object) -> bool:
    """Return whether a value, or one in a list, is True or False, which pydantic would take for 1 or 0."""
    if isinstance(value, list | tuple):
        return any(map(is_boolean, value))
    return type(value).__name__ in ("bool", "bool_")  # numpy's too


def _no_boolean(value: object) -> object:
    if is_boolean(value):
        raise ValueError("a Boolean is no number")
    return value


def _listed(value: object) -> object:
    """A list that was written as text, ``0.9,0.5`` or ``[0.9, 0.5]``."""
    return value.strip("[()] ").split(",") if isinstance(value, str) else value


WITHIN = AfterValidator(_not_beyond)
NUMBER = BeforeValidator(_no_boolean)
LISTED = BeforeValidator(_listed)

#: Numbers from 1e-30 to 1e30: any sign, none below 0, and none but above 0.
Finite = Annotated[float, Field(allow_inf_nan=False), WITHIN, NUMBER]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), WITHIN, NUMBER]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), WITHIN, NUMBER]
#: A bound of norms, or infinity for none. Attacks on what is clipped to less fail by rounding alone.
Clip = Annotated[float, Field(gt=0), AfterValidator(_not_lost), WITHIN, NUMBER]
#: Noise as a multiple of a bound; 0 is none.
Sigma = NonNegative
#: How many of something: at least one, or none at all.
Count = Annotated[int, Field(ge=1, le=MOST_COUNT), NUMBER]
CountOrNone = Annotated[int, Field(ge=0, le=MOST_COUNT), NUMBER]
#: Looks or attempts at one victim, all of which are held in memory.
Repeats = Annotated[int, Field(ge=1, le=1_000), NUMBER]
#: Shares that something may be drawn with: less than one in a million million is never drawn.
Share = Annotated[float, Field(ge=LEAST_SHARE, le=1), NUMBER]
Delta = Annotated[float, Field(ge=LEAST_DELTA, lt=1), NUMBER]
