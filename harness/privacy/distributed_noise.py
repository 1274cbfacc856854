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
from typing import TYPE_CHECKING

from harness.base.errors import UsageError
from harness.privacy.events import Event, GaussianRelease, MechanismRelease, compose
from harness.privacy.skellam import skellam_sum

if TYPE_CHECKING:
    from harness.secagg import SkellamGrid

SEVERAL_STEPS = (
    "Theorem 4.6 takes the models inside the clients as public; with more than one local step they are not, and the "
    "clients' own noise is what is proven"
)


@dataclass(frozen=True)
class Party:
    """What one client does in every local step.

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
        """What the sum's figure rests on."""
        return (SEVERAL_STEPS,) if max(party.steps for party in self.parties) > 1 else ()

    def sum_event(self) -> Event:
        """What the sums cost a record, by Theorem 4.6."""
        parties = fused(self.parties)
        if self.grid is None:
            release = GaussianRelease(sum_sigma(parties, self.missing))
        else:
            noisy = len(parties) - self.missing
            release = MechanismRelease(skellam_sum(self.grid, noisy))
        return _sampled(release, max(party.rate for party in parties), self.rounds * parties[0].steps)

    def fallback_event(self) -> Event:
        """What one client's own messages cost its records: the largest cost of any of them, as an upper bound."""
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
