"""Distributed noise behind secure aggregation: what the sum of the clients' updates costs a record.

Source: Heikkilä et al., "On Using Secure Aggregation in Differentially Private Federated Learning with Multiple
Local Steps", Theorems 4.6 and 4.7 and appendix A.3. See docs/accounting.md and docs/defenses.md.

Theorem 4.6: if only the sum of all clients' updates is seen, L local steps of T rounds are charged as L*T releases of
the sum of all clients' noisy steps. Theorem 4.7: noise whose sum is of the same kind needs only 1/sqrt(N) per client
(``harness.secagg.local_noise``).

The theorem takes the models inside the clients as public auxiliary values. They are not: from the second local step on
a client's gradients depend on its own model, which only its own noise protects, and a whole batch can repeat what the
model knows (a test, ``test_where_the_theorem_ends``, computes such a case). So for L > 1 the figure is the paper's, and
is marked; what holds whatever happens is the fallback, each client's own noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.base.errors import UsageError
from harness.privacy.events import Event, GaussianRelease, MechanismRelease, compose
from harness.privacy.mechanism import Array, Mechanism
from harness.privacy.renyi_curves import log_binomial, log_sums

if TYPE_CHECKING:
    from harness.secagg import SkellamGrid


# What Skellam noise on an integer grid costs.
#
# Source: Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated Learning", 2021. See
# docs/accounting.md. The grid itself, its scale and its noise are in `harness.secagg`.


@dataclass(frozen=True)
class SkellamSum(Mechanism):
    """Skellam noise on ``scale`` times a sum; all else in the sum's own units.

    Attributes:
        variance: central variance of the noise, >= 0; in integers ``scale`` squared times as much.
        scale: integers per unit, > 0.
        l2, l1: sensitivity in both norms, after rounding.
    """

    variance: float
    scale: float
    l2: float
    l1: float
    title = "the Skellam mechanism"

    @property
    def noiseless(self) -> bool:
        return self.variance == 0

    def divergences(self, highest: int) -> Array:
        orders = np.arange(1, highest + 1)
        s, mu = self.scale, self.variance
        gaussian = orders * self.l2**2 / (2 * mu)
        # The two bounds of the excess over Gaussian noise: for fine grids, and for coarse ones.
        fine = ((2 * orders - 1) * s * self.l2**2 + 6 * self.l1) / (4 * s**3 * mu**2)
        curve = gaussian + np.minimum(fine, 3 * self.l1 / (2 * s * mu))
        curve[0] = curve[1]  # proven for orders above 1
        return curve


def skellam_sum(grid: "SkellamGrid", noisy: int | None = None) -> SkellamSum:
    """The sum of the grid's clients' integers; only ``noisy`` clients' noise counts, all clients' by default.

    A client that colludes can subtract its noise, and one that drops out never sent any.
    """
    count = grid.clients if noisy is None else noisy
    scale = grid.scale
    return SkellamSum(count * grid.variance / scale**2, scale, grid.l2_sensitivity / scale, grid.l1_sensitivity / scale)


SEVERAL_STEPS = (
    "Theorem 4.6 takes the models inside the clients as public; with more than one local step they are not, and the "
    "clients' own noise is what is proven"
)


@dataclass(frozen=True)
class Party:
    """Actions of one client in every local step.

    Attributes:
        noise: standard deviation of its noise on its sum of clipped gradients, >= 0, in the gradients' units.
        clip: L2 bound of each of its examples' gradients.
        steps: local steps per round.
        rate: its Poisson sampling rate, in (0, 1].
        weight: its learning rate, or its share in an average, up to a factor common to all clients; a learning rate
            that changes from step to step in the same way for all clients changes nothing.

    Raises:
        UsageError: a value is out of its range.
    """

    noise: float
    clip: float = 1.0
    steps: int = 1
    rate: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.noise < math.inf and 0 < self.clip < math.inf and 0 < self.weight < math.inf):
            raise UsageError("a client's noise must be at least 0, its clip and weight above 0; correct its settings")
        if self.steps < 1 or not 0 < self.rate <= 1:
            raise UsageError("a client takes at least one step, at a sampling rate in (0, 1]; correct its settings")


@dataclass(frozen=True)
class DistributedNoise:
    """A federation whose server sees sums only.

    Attributes:
        parties: the clients of every round.
        rounds: T.
        missing: clients whose noise does not count: t that collude with the server, and those that may drop out.
        disjoint: whether no record is at two clients; without it there is no bound.
        relaxed: accept unequal steps (fused, appendix A.3) and unequal rates (the largest counts).
        grid: Skellam noise on this grid instead of Gaussian noise.

    Raises:
        UsageError: a condition of the theorem does not hold; the message names the relaxation, where there is one.
    """

    parties: tuple[Party, ...]
    rounds: int
    missing: int = 0
    disjoint: bool = True
    relaxed: bool = False
    grid: "SkellamGrid | None" = None

    def __post_init__(self) -> None:
        if not self.disjoint:
            raise UsageError("a record at two clients counts twice in their sum; give every record to one client")
        if not 0 <= self.missing < len(self.parties):
            raise UsageError(
                f"{self.missing} of {len(self.parties)} clients collude or drop out; at least one must remain"
            )
        for what in ("steps", "rate"):
            if not self.relaxed and len({getattr(party, what) for party in self.parties}) > 1:
                raise UsageError(f"clients differ in {what}; make them equal, or ask for the relaxation (relaxed=True)")
        if self.grid is not None:
            self._check_grid(self.grid)

    def _check_grid(self, grid: "SkellamGrid") -> None:
        if len({(party.noise, party.clip, party.weight, party.steps) for party in self.parties}) > 1:
            raise UsageError("clients on one integer grid need equal noise, clip, weight and steps; or take no grid")
        one = self.parties[0]
        if (grid.clients, grid.clip) != (len(self.parties), one.clip) or not math.isclose(
            grid.noise * grid.clip, one.noise
        ):
            raise UsageError("the grid is for other clients, another clip or other noise; make it for those of the sum")

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the sum's figure rests on."""
        return (SEVERAL_STEPS,) if max(party.steps for party in self.parties) > 1 else ()

    def sum_event(self) -> Event:
        """Return what the sums cost a record, by Theorem 4.6."""
        parties = fused(self.parties)
        if self.grid is None:
            release = GaussianRelease(sum_sigma(parties, self.missing))
        else:
            noisy = len(parties) - self.missing
            release = MechanismRelease(skellam_sum(self.grid, noisy))
        return _sampled(release, max(party.rate for party in parties), self.rounds * parties[0].steps)

    def fallback_event(self) -> Event:
        """Return what one client's own messages cost its records: the largest cost of any of them, as an upper
        bound."""
        sigma = min(party.noise / party.clip for party in self.parties)
        release = GaussianRelease(sigma) if self.grid is None else MechanismRelease(skellam_sum(self.grid, 1))
        steps = max(party.steps for party in self.parties)
        return _sampled(release, max(party.rate for party in self.parties), self.rounds * steps)


def _sampled(release: GaussianRelease | MechanismRelease, rate: float, count: int) -> Event:
    sampler = "poisson" if rate < 1 else "none"
    return compose([replace(release, q=rate, sampler=sampler, count=count)])


def sum_sigma(parties: Sequence[Party], missing: int = 0) -> float:
    """The sum's multiplier for the worst-placed record (A.3, learning rates, clips and noise of one's own).

    A record's own client always adds its noise; of the others, the ``missing`` with the most noise do not.
    """
    variances = [(party.weight * party.noise) ** 2 for party in parties]

    def multiplier(owner: int) -> float:
        others = sorted(variances[:owner] + variances[owner + 1 :])
        total = variances[owner] + math.fsum(others[: len(others) - missing])
        return math.sqrt(total) / (parties[owner].weight * parties[owner].clip)

    return min(multiplier(owner) for owner in range(len(parties)))


def fused(parties: Sequence[Party]) -> tuple[Party, ...]:
    """Clients with the fewest steps of any: others' steps are fused until their number is the same (A.3).

    r fused steps have the sensitivity of r (triangle inequality) and a record is in one of them with probability
    1 - (1 - q)^r. Only the last one's noise is counted, since the others' also steers the steps after it.
    """
    fewest = min(party.steps for party in parties)

    def fuse(party: Party) -> Party:
        each = math.ceil(party.steps / fewest)
        return replace(party, clip=each * party.clip, steps=fewest, rate=-math.expm1(each * _log_absent(party.rate)))

    return tuple(fuse(party) if party.steps > fewest else party for party in parties)


def _log_absent(rate: float) -> float:
    return -math.inf if rate == 1 else math.log1p(-rate)


# What the Poisson-binomial mechanism costs: units send coins whose bias is their value, the coins' sum is released.
#
# Source: Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with Secure
# Aggregation", 2022. See docs/accounting.md. A coordinate x in [-c, c] is sent as Binomial(m, 1/2 + theta x / c).
#
# The divergences are computed, not bounded in closed form: all distributions between two extremes are mixtures of
# them, and Renyi divergences are jointly quasi-convex, so that the worst neighbours are extreme. Of the others' coins
# K are biased up and the rest down; the divergence is convex in K wherever we enumerated it (the tests do), so its
# largest value is taken at K = 0 or all.

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
