"""The theorem beside a verdict: how often an event happened, how often it would blindly, and the most there can be."""

from typing import Literal

from pydantic import Field

from harness.results.record import Number, Record
from harness.results.scores import Rate

Event = Literal["first in its lineup", "strict image"]


class Ceiling(Record):
    """One event of a cell.

    ``measured``: how often it happened;
    ``kappa``: its probability for the best blind guess, in [0, 1]; null, with the ``reason``, where nobody knows;
    ``ceiling``: its largest probability for any attacker; null where there is no kappa, or no theorem;
    ``p_value``: chance of as many as were measured, or more, if each were as probable as the ceiling allows;
    ``says_little``: whether the ceiling is above one half.
    """

    event: Event
    measured: Rate = Rate()
    kappa: Number = None
    ceiling: Number = None
    p_value: Number = None
    says_little: bool = False
    reason: str | None = None


class Bound(Record):
    """The limit of a theorem for a cell, for any attack; without a theorem, ``reason`` says why none exists.

    ``theorem``: in words, with its figures;
    ``mu``: of Gaussian noise, the largest distance from the centre in standard deviations; null for others.
    """

    theorem: str | None = None
    mu: Number = None
    reason: str | None = None
    events: list[Ceiling] = Field(default_factory=list)
