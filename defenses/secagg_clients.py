"""Clients of a secure sum that differ: each with a clip, a noise, a learning rate and a number of local steps.

Source: S000, appendix A.3, as accounted for in :mod:`harness.privacy.distributed_noise`.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from harness.base.errors import UsageError
from harness.base.ranges import LISTED, Count, Positive
from harness.federation.context import Cohort, RoundContext
from harness.federation.privacy_facts import PrivacyFacts
from harness.privacy import (
    Composition,
    MechanismRelease,
    PoissonBinomialSum,
    Statement,
    compose,
    kept_place,
    make_statement,
)
from harness.privacy.distributed_noise import SEVERAL_STEPS, DistributedNoise, Party
from harness.privacy.events import Event
from harness.secagg import Gaussian, PoissonBinomial, SkellamGrid

Factors = Annotated[tuple[Positive, ...], LISTED]
Counts = Annotated[tuple[Count, ...], LISTED]


@dataclass(frozen=True)
class Differences:
    """Settings that clients have of their own, given to clients 0, 1, ... in turn; an empty one is common to all.

    Attributes:
        clips, noises, learning_rates: times the common value, > 0.
        local_steps: how many of the round's local steps a client takes; in the others it rests and adds no noise.
    """

    clips: tuple[float, ...]
    noises: tuple[float, ...]
    learning_rates: tuple[float, ...]
    local_steps: tuple[int, ...]

    def __bool__(self) -> bool:
        return any((self.clips, self.noises, self.learning_rates, self.local_steps))

    def of(self, client: int, cohort: Cohort) -> tuple[float, float, float, int]:
        """One client's factors of clip, noise and learning rate, and its local steps.

        Raises:
            UsageError: it is to take more local steps than a round has.
        """
        steps = _turn(self.local_steps, client, cohort.steps_per_round)
        if steps > cohort.steps_per_round:
            raise UsageError(
                f"client {client} is to take {steps} local steps of a round's {cohort.steps_per_round}; lower "
                "secagg_ddp.local_steps or lengthen the round"
            )
        clip, noise, rate = (_turn(values, client, 1.0) for values in (self.clips, self.noises, self.learning_rates))
        return clip, noise, rate, steps

    def rows(self, context: RoundContext, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Factors (N, 1) of the clip, the noise and the length of a step of the context's clients in its local step."""
        clients = context.clients if self else range(len(like))
        own = [self.of(client, context.cohort) for client in clients]
        moving = [rate * (context.local_step < steps) for _, _, rate, steps in own]
        clips, noises, lengths = (
            like.new_tensor(values)[:, None]
            for values in ([clip for clip, *_ in own], [noise for _, noise, *_ in own], moving)
        )
        return clips, noises, lengths

    def noise_share(self, context: RoundContext) -> float | None:
        """Times which the common one the noise of a client's local step is, at its length of a step.

        Of the context's clients together it is the root mean square; None where nobody says which client it is and it
        matters.
        """
        cohort = context.cohort
        own = [
            noise * length * (context.local_step < steps)
            for _, noise, length, steps in (
                self.of(client, cohort) for client in context.clients or range(cohort.clients)
            )
        ]
        if not context.clients and len(set(own)) > 1:
            return None
        return math.sqrt(sum(share**2 for share in own) / len(own))

    def largest(self) -> float:
        """The largest product of factors by which a client's update can exceed a common one."""
        return max(self.learning_rates, default=1.0) * max((*self.clips, *self.noises, 1.0))

    def units(self) -> str:
        """Return what differs, as the end of a sentence; empty where nothing does."""
        named = {
            "times the clip": self.clips, "times the noise": self.noises,
            "times the learning rate": self.learning_rates, "local steps": self.local_steps,
        }  # fmt: skip
        own = [f"{', '.join(f'{value:g}' for value in values)} {name}" for name, values in named.items() if values]
        return f"; clients in turn have {' and '.join(own)}" if own else ""

    def parties(
        self, clip: float, deviation: float, rate: float, facts: PrivacyFacts, summed: bool = False
    ) -> tuple[Party, ...]:
        """The round's clients for accounting, from the common clip, noise per step and sampling rate.

        Where local steps differ, those of a ``summed`` round are fused until they do not, so all of them count; of a
        client's own message only those that an example is in.

        Raises:
            UsageError: they differ, and who of them meets in a round is not certain.
        """
        cohort = facts.cohort
        if self and cohort.clients_per_round != cohort.clients:
            raise UsageError(
                f"clients that differ must all take part in every round, here {cohort.clients_per_round} of "
                f"{cohort.clients} do; make --clients and --clients-per-round equal"
            )

        def party(client: int) -> Party:
            clips, noises, length, steps = self.of(client, cohort)
            met = steps if summed and self.local_steps else facts.steps_of_a_record(steps)
            return Party(deviation * noises, clip * clips, met, rate, length)

        return tuple(party(client) for client in range(cohort.clients_per_round))


def _turn(values: tuple[Any, ...], client: int, common: Any) -> Any:
    return values[client % len(values)] if values else common


# What noise shared among clients guarantees: in the sum, which is all the server sees, and in one client's message.
#
# Source: S000, Theorems 4.6 and 4.7; what they do not cover is in :mod:`harness.privacy.distributed_noise`. The
# paper's figure is stated as claimed; beside it stands what is proven for what ran.

_OFF_GRID = (
    "what is summed are updates rounded to fixed point, which no longer depend on the sum of the noisy steps alone: "
    "the clients' own noise is what is proven (mode=strict_grid keeps to the integers)"
)
_MESSAGE = "whoever reads one client's message before it is summed, as at surfaces 1 and 2"
_UNSAMPLED = "batches drawn without replacement have no analysis here; choose --batch-sampling poisson"
_UNEVEN = "a Poisson batch may hold more examples than coin tosses were planned for; choose --batch-sampling shuffle"


@dataclass(frozen=True)
class _Costs:
    """Events by what is seen: the ``total`` of all clients, what a fellow ``client`` sees in it, one ``own`` message.

    ``flaw`` is why the sum is not covered by the theorem, None where it is.
    """

    total: Event
    client: Event
    own: Event
    schedule: str
    flaw: str | None


def noise_statements(
    mechanism: Gaussian | SkellamGrid, facts: PrivacyFacts, missing: int, mode: str, differences: Differences
) -> list[Statement]:
    """Statements for additive noise.

    Args:
        mechanism: of one client.
        facts: the run; every round's ``clients_per_round`` clients take part.
        missing: clients whose noise does not count, since they collude or drop out.
        mode: ``strict_grid`` or ``paper``.
        differences: between clients.
    """
    if mechanism.noise == 0:
        return [make_statement("server", "none", "clipping without noise gives no epsilon", unit="example")]
    if facts.example_sampler == "without-replacement":
        return [make_statement("server", "none", _UNSAMPLED, unit="example")]
    rate = 1.0 if facts.example_sampler == "none" else facts.rate
    alone, together = (
        differences.parties(mechanism.clip, mechanism.noise * mechanism.clip, rate, facts, summed)
        for summed in (False, True)
    )
    grid = mechanism if isinstance(mechanism, SkellamGrid) else None

    def noisy(parties: tuple[Party, ...], gone: int) -> DistributedNoise:
        gone = min(gone, len(parties) - 1)
        return DistributedNoise(parties, facts.cohort.rounds, gone, relaxed=bool(differences), grid=grid)

    return _rows(facts, missing, _Costs(
        noisy(together, missing).sum_event(), noisy(together, missing + 1).sum_event(),
        noisy(alone, missing).fallback_event(),
        f"sigma={mechanism.noise:.4g} per client{', times its own factor' * bool(differences)}", _flaw(facts, mode),
    ))  # fmt: skip


def toss_statements(mechanism: PoissonBinomial, facts: PrivacyFacts, missing: int, mode: str) -> list[Statement]:
    """Statements for coin tosses, whose number must be certain: without sampling, over batches of a fixed size."""
    if facts.example_sampler != "none":
        why = _UNEVEN if facts.example_sampler == "poisson" else _UNSAMPLED
        return [make_statement("server", "none", why, unit="example")]
    clients, steps = facts.cohort.clients_per_round, facts.steps_of_a_record(facts.cohort.steps_per_round)

    def tosses(of_clients: int) -> Composition:
        summed = PoissonBinomialSum(
            max(1, of_clients) * mechanism.slots, mechanism.trials, mechanism.theta, mechanism.length
        )
        return compose([MechanismRelease(summed, count=facts.cohort.rounds * steps)])

    return _rows(facts, missing, _Costs(
        tosses(clients - missing), tosses(clients - missing - 1), tosses(1),
        f"m={mechanism.trials}, theta={mechanism.theta:g}", _flaw(facts, mode),
    ))  # fmt: skip


def _flaw(facts: PrivacyFacts, mode: str) -> str | None:
    if facts.cohort.steps_per_round > 1:
        return SEVERAL_STEPS
    return _OFF_GRID if mode == "paper" else f"with {facts.uneven} no sum is known" if facts.uneven else None


def _rows(facts: PrivacyFacts, missing: int, costs: _Costs) -> list[Statement]:
    absent = kept_place(facts.example_sampler)
    worst = f"an example of a client that takes part in every round; no example is at two clients{absent}"
    counted = f"{worst}; the noise of {facts.cohort.clients_per_round - missing} clients counts"
    covered = costs.flaw is None
    views = {
        "third party": ("sample-DDP" if covered else "sample-DP", costs.total, counted),
        "server": ("sample-DDP" if covered else "sample-DP local view", costs.total, f"sees sums only; {counted}"),
        "client": ("sample-DDP" if covered else "sample-DP", costs.client, f"{counted}, without the viewer's own"),
    }
    # The claim for every view is the paper's, whose server sees the sum.
    common = {"delta": facts.delta, "unit": "example", "schedule": costs.schedule}
    rows = [
        make_statement(
            view, tag, note if covered else f"{costs.flaw}; {worst}", actual=event if covered else costs.own,
            claimed=costs.total, **common,
        )
        for view, (tag, event, note) in views.items()
    ]  # fmt: skip
    own = make_statement("message", "sample-DP local view", f"{_MESSAGE}; {worst}", actual=costs.own, **common)
    return [*rows, own]
