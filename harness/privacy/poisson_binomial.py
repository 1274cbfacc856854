"""What the Poisson-binomial mechanism costs: units send coins whose bias is their value, the coins' sum is released.

Source: Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure Aggregation",
2022. See docs/accounting.md. A coordinate x in [-c, c] is sent as Binomial(m, 1/2 + theta x / c).

The divergences are computed, not bounded in closed form: all distributions between two extremes are mixtures of them,
and Renyi divergences are jointly quasi-convex, so that the worst neighbours are extreme. Of the others' coins K are
biased up and the rest down; the divergence is convex in K wherever we enumerated it (the tests do), so its largest
value is taken at K = 0 or all.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.base.errors import UsageError
from harness.privacy.mechanism import Array, Mechanism
from harness.privacy.renyi_curves import log_binomial, log_sums

_ORDERS_AT_ONCE = 64


@dataclass(frozen=True)
class PoissonBinomialSum(Mechanism):
    """The sum of ``contributors`` units' coins.

    Attributes:
        contributors: n >= 1, absent ones included: under ``add/remove`` an absent unit sends fair coins.
        trials: m >= 1 coins per coordinate.
        theta: largest bias, in (0, 1/4].
        coordinates: length of the vector, each coordinate bounded by c; divergences add up over them.
        adjacency: ``replace`` (an extreme for the other) or ``add/remove`` (an extreme for fair coins).

    Raises:
        UsageError: a value is out of its range.
    """

    contributors: int
    trials: int
    theta: float
    coordinates: int = 1
    adjacency: Literal["add/remove", "replace"] = "add/remove"
    title = "the Poisson-binomial mechanism"

    def __post_init__(self) -> None:
        if not 0 < self.theta <= 0.25:
            raise UsageError(f"theta must lie in (0, 0.25], got {self.theta:g}; choose for example 0.1")
        if min(self.contributors, self.trials, self.coordinates) < 1:
            raise UsageError("the Poisson-binomial mechanism needs a contributor, a trial and a coordinate; give 1")

    @property
    def neighbours(self) -> Literal["add/remove", "replace"]:
        return self.adjacency

    @property
    def notes(self) -> tuple[str, ...]:
        return ("the worst case over the others' values is checked by enumeration, not proven",)

    def divergences(self, highest: int) -> Array:
        orders = np.arange(2, highest + 1)
        other = 0.5 - self.theta if self.adjacency == "replace" else 0.5
        worst = np.zeros(len(orders))
        # Others all up; others all down is its mirror image with the roles of up and down exchanged.
        for up, rest in ((0.5 + self.theta, 0.5 + self.theta), (0.5 + self.theta, 0.5 - self.theta)):
            others = _binomial(self.trials * (self.contributors - 1), rest)
            one, two = (_convolved(_binomial(self.trials, bias), others) for bias in (up, other))
            worst = np.maximum(worst, np.maximum(_divergences(one, two, orders), _divergences(two, one, orders)))
        return self.coordinates * np.concatenate([worst[:1], worst])


def _binomial(count: int, bias: float) -> Array:
    """Log probabilities of 0 to ``count`` heads: (count + 1,)."""
    heads = np.arange(count + 1)
    return log_binomial(count, heads) + heads * math.log(bias) + (count - heads) * math.log1p(-bias)


def _convolved(few: Array, many: Array) -> Array:
    """The sum's log probabilities; the tails keep their relative accuracy, as no difference is ever taken."""
    total = np.full(len(few) + len(many) - 1, -np.inf)
    for shift, value in enumerate(few):
        place = slice(shift, shift + len(many))
        total[place] = np.logaddexp(total[place], value + many)
    return total


def _divergences(one: Array, two: Array, orders: Array) -> Array:
    """Renyi divergences of two log distributions (Z,) at ``orders`` (A,): (A,)."""
    blocks = np.array_split(orders, max(1, len(orders) // _ORDERS_AT_ONCE))
    moments = [log_sums(np.multiply.outer(block, one - two) + two) for block in blocks]
    return np.maximum(np.concatenate(moments) / (orders - 1), 0.0)
