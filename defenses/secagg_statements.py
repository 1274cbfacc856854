"""What noise shared among clients guarantees: in the sum, which is all the server sees, and in one client's message.

Source: S000, Theorems 4.6 and 4.7; what they do not cover is in :mod:`harness.privacy.distributed_noise`. The
paper's figure is stated as claimed; beside it stands what is proven for what ran.
"""

from dataclasses import dataclass

from harness.defenses.secagg_clients import Differences
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
    return SEVERAL_STEPS if facts.cohort.steps_per_round > 1 else _OFF_GRID if mode == "paper" else None


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
