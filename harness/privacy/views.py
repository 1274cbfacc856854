"""Views of a federation, by who sees which releases: from its plain numbers to one event per view.

See docs/accounting.md. Views: ``third party`` sees the published models only, ``server`` every client's message and who
takes part, ``client`` is another participant, who sees the models and can subtract the noise it added itself. Where a
secure sum hides messages from the server, whoever still reads one sees the view ``message``.

A statement is a view's row in the result document: the privacy that a run may claim, which is the paper's epsilon
beside the one that holds for what ran, or none. See docs/defenses.md.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

from harness.base.errors import UsageError
from harness.privacy.accountant import Accountant, choice, make_accountant
from harness.privacy.events import (
    Adjacency,
    Event,
    GaussianRelease,
    MechanismRelease,
    NonPrivate,
    Sampler,
    compose,
    ledger,
)
from harness.privacy.mechanism import Repeated, TakingPart, gaussian_step
from harness.privacy.presence import presence
from harness.privacy.rdp import Renyi
from harness.results.record import Statement

Unit = Literal["client", "example"]
NoiseAt = Literal["aggregate", "receive", "client"]

VIEWS = ("third party", "server", "client", "message")

_RAW = "the server receives raw updates"
CHANCE = "a round with probability"
"""Words of a statement that credits its unit's chance to be left out of a round."""
_REPLACED = "for replacing a client, since one that is absent takes its noise with it"


@dataclass(frozen=True)
class View:
    """The observation of one kind of observer, as an event, and the condition under which the event describes it."""

    name: str
    event: Event
    note: str


@dataclass(frozen=True)
class FederationFacts:
    """The plain numbers of a run.

    Attributes:
        sigma: noise multiplier as configured (noise std over the clipping bound C, on the sum); one number, or one
            per round, or (for examples) one per local step of all rounds.
        layers: M tensors clipped to C each; 1 where the whole vector is clipped to C.
        clients, clients_per_round: N and K.
        rounds, steps: T rounds of L local steps.
        rate: share of a client's examples in a local batch, B/n_i; examples only.
        client_sampler: how a round's clients are drawn; ``none`` where all of them take part. Noise that clients add
            themselves hides a client only as far as it is sure to be there: with Poisson sampling no other client's is.
        example_sampler: how a local batch's examples are drawn; ``none`` for a fixed partition.
        adjacency: ``replace`` doubles the sensitivity of a sum.
        own_state: whether clients carry something of their own from one round to the next, as SCAFFOLD's control
            variates or what pruning left out; what they send depends on it, which no other client's noise hides.
        holders: the most clients that hold one example; each that takes part releases steps of its own on it.
        uneven: why noise does not add up over clients to a known one, such as an optimizer that makes no weighted sum
            of noisy steps, in words; None where it does.
    """

    sigma: float | Sequence[float]
    rounds: int
    layers: int = 1
    clients: int = 1
    clients_per_round: int = 1
    steps: int = 1
    rate: float = 1.0
    client_sampler: Sampler = "poisson"
    example_sampler: Sampler = "poisson"
    adjacency: Adjacency = "add/remove"
    own_state: bool = False
    holders: int = 1
    uneven: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.clients_per_round <= self.clients:
            raise UsageError(
                f"{self.clients_per_round} per round of {self.clients}; lower clients_per_round or raise clients"
            )

    @property
    def steady(self) -> bool:
        """Return whether every round has exactly K clients."""
        return self.client_sampler != "poisson"

    @property
    def together(self) -> int:
        """The most clients of a round that hold one example."""
        return min(self.holders, self.clients_per_round if self.steady else self.clients)

    def sigmas(self, unit: Unit) -> list[float]:
        """Effective multipliers, one per round (client) or per local step (example)."""
        needed = self.rounds if unit == "client" else self.rounds * self.steps
        if isinstance(self.sigma, int | float):
            return [effective_sigma(self.sigma, self.layers, self.adjacency)] * needed
        given = list(self.sigma)
        if unit == "example" and len(given) == self.rounds != needed:
            given = [sigma for sigma in given for _ in range(self.steps)]
        if len(given) != needed:
            raise UsageError(f"the schedule has {len(given)} sigmas for {needed} steps; give one per round or step")
        return [effective_sigma(sigma, self.layers, self.adjacency) for sigma in given]


def effective_sigma(sigma: float, layers: int = 1, adjacency: Adjacency = "add/remove") -> float:
    """The multiplier over the true sensitivity: C sqrt(M) for M tensors clipped to C each, twice that for replace."""
    if layers < 1:
        raise UsageError(f"the number of layers must be at least 1, got {layers}")
    return sigma / math.sqrt(layers) / (2 if adjacency == "replace" else 1)


def sum_multiplier(sigma: float, convention: Literal["sum", "per_example", "mean"], batch_size: int) -> float:
    """The multiplier on the batch's sum where noise is stated on the sum, on each example or on the mean."""
    choice(convention, ("sum", "per_example", "mean"), "noise convention")
    return sigma * {"sum": 1.0, "per_example": math.sqrt(batch_size), "mean": batch_size}[convention]


def client_views(
    federation: FederationFacts, noise_at: NoiseAt = "aggregate", noise_split: Literal["full", "share"] = "full"
) -> list[View]:
    """The views on client-level protection of updates (Fed-SDP, Geyer, DP-FedAvg).

    ``noise_at``: ``aggregate`` (the server noises the sum), ``receive`` (the server noises every update) or
    ``client`` (before sending); ``noise_split``: the last two add the ``full`` noise each, or a ``share``, 1/sqrt(K).

    Noise that comes with each message is not there where the message is not, and sums with more or with less noise
    are told apart with certainty as their coordinates grow in number. So it is stated for replacing a client.
    """
    choice(noise_at, ("aggregate", "receive", "client"), "place of the noise")
    choice(noise_split, ("full", "share"), "noise split")
    if noise_at == "aggregate":
        server = View("server", NonPrivate(_RAW), _RAW)
        third_party, client = (
            View(name, *_sampled_clients(federation, 1.0, name == "client")) for name in ("third party", "client")
        )
        return [third_party, server, client]
    federation, count = replace(federation, adjacency="replace"), federation.clients_per_round
    each = 1.0 if noise_split == "full" else 1 / math.sqrt(count)
    alone = _releases([each * sigma for sigma in federation.sigmas("client")], federation, 1.0, "none")
    if noise_at == "client":
        seen = "any two updates of a client that takes part in every round, which the server knows: no amplification"
        server = View("server", alone, seen)
    else:
        server = View("server", NonPrivate(_RAW), _RAW)
    if federation.uneven or not federation.steady:
        why = f"with {federation.uneven}" if federation.uneven else "how many others add noise is random, so"
        own = f"a client that takes part in every round; {why} only its own counts; {_REPLACED}"
        return [View("third party", alone, own), server, View("client", alone, own)]
    others = count if noise_at == "receive" else max(count - 1, 1)
    third_event, published = _sampled_clients(federation, each * math.sqrt(count))
    client_event, known = _sampled_clients(federation, each * math.sqrt(others), inside=True)
    own = "; its own noise does not count" if noise_at == "client" else ""
    return [
        View("third party", third_event, f"{published}; {_REPLACED}"), server,
        View("client", client_event, f"{known}{own}; {_REPLACED}"),
    ]  # fmt: skip


def example_views(federation: FederationFacts, uneven: str | None = None) -> list[View]:
    """The views on example-level protection inside local steps (Fed-CDP with a fixed bound).

    With one local step the noise of all clients adds up in the published sum (Heikkilä et al., Theorem 4.7).
    From the second step on a client's gradients depend on its own earlier noise, which no other client's noise
    hides, and so they do where it keeps a state of its own: then everybody sees the noise of one client. ``uneven``
    says why clients' noise does not add up to a known one, where it does not.

    Who is not told which clients take part sees a client's steps of a round with probability K/N, all of them or none
    (``TakingPart``); the server is told.
    """
    count = federation.clients_per_round
    held = (
        "an example of a client that takes part"
        if federation.together == 1
        else (f"an example that {federation.together} clients hold, all taking part")
    )
    place = kept_place(federation.example_sampler)
    server = View("server", _local_steps(federation, 1.0), f"{held} in every round{place}")
    reason = _why_own_noise_alone(federation, uneven)

    def outside(name: str, noisy: int) -> View:
        share = _share_seen(federation, inside=name == "client")
        worst = f"{held} in {'every round' if share == 1 else f'{CHANCE} {share:.4g}'}{place}"
        if reason:
            note = f"{worst}; {reason} only the client's own noise counts"
            return View(name, _local_steps(federation, 1.0, share), note)
        kept = "; the viewer's own noise not counted" if name == "client" else ""
        note = f"{worst}; clients share learning rate and rate, and no example{kept}"
        return View(name, _local_steps(federation, math.sqrt(max(noisy, 1)), share), note)

    return [outside("third party", count), server, outside("client", count - 1)]


def kept_place(sampler: Sampler) -> str:
    """Return the meaning of removing an example under a sampler, as the end of a sentence."""
    return "; one that is removed leaves its place in its batch empty" if sampler == "none" else ""


def _why_own_noise_alone(federation: FederationFacts, uneven: str | None) -> str | None:
    """Return why no other client's noise hides an example; None where it does."""
    if federation.holders > 1:
        return "with examples that several clients hold"
    if federation.steps > 1:
        return "with several local steps"
    if federation.own_state:
        return "with control variates"
    if not federation.steady:
        return "with a random number of clients"
    return f"with {federation.uneven}" if federation.uneven else uneven


def _client_rate(federation: FederationFacts, inside: bool) -> float:
    """The largest probability that a given client takes part in a round, for who is not told.

    A client (``inside``) that a sample of fixed size left out knows that it is of the N - 1 others.
    """
    if federation.client_sampler == "none":
        return 1.0
    others = federation.clients - (inside and federation.client_sampler == "without-replacement")
    return min(1.0, federation.clients_per_round / max(others, 1))


def _share_seen(federation: FederationFacts, inside: bool) -> float:
    """The largest probability that a client that holds a given example takes part in a round, for who is not told."""
    if federation.together > 1:
        return 1.0  # how many of them do is random too
    return min(1.0, federation.holders * _client_rate(federation, inside))


def _sampled_clients(federation: FederationFacts, gain: float, inside: bool = False) -> tuple[Event, str]:
    """Return what a view that is not told who takes part sees of the sums, and on what condition."""
    sampler, rate = federation.client_sampler, _client_rate(federation, inside)
    if federation.own_state and sampler == "without-replacement":
        # Messages then depend on earlier samples, which a sample of fixed size ties to the client in question.
        rate, note = 1.0, "a client that takes part in every round: with what clients keep, no theorem covers sampling"
    elif rate == 1:
        note = "a client that takes part in every round"
    else:
        note = f"{sampler} sampling of clients, secret from this view"
        if inside and sampler == "without-replacement":
            note += f", of {federation.clients - 1} where it sat out itself"
    return _releases([gain * sigma for sigma in federation.sigmas("client")], federation, rate, sampler), note


def _local_steps(federation: FederationFacts, gain: float, share: float = 1.0) -> Event:
    """The local steps of a client that takes part in a round with probability ``share``."""
    together = federation.together
    sigmas = [gain * sigma for sigma in federation.sigmas("example") for _ in range(together)]
    steps = met = federation.steps * together
    rate, sampler = federation.rate, federation.example_sampler
    if sampler == "none":
        # A fixed partition meets each example in a known share of the steps: the least noisy ones, at worst.
        met, rate = max(1, math.ceil(federation.steps * rate - 1e-9)) * together, 1.0
    rounds = [sorted(sigmas[first : first + steps])[:met] for first in range(0, len(sigmas), steps)]
    if share == 1 or any(len(set(one)) > 1 for one in rounds):
        return _releases([sigma for one in rounds for sigma in one], federation, rate, sampler)
    return compose(
        MechanismRelease(
            TakingPart(Repeated(gaussian_step(sigma, rate, sampler), met), share), adjacency=federation.adjacency,
            count=count,
        )
        for sigma, count in Counter(one[0] for one in rounds).items()
    )  # fmt: skip


def _releases(sigmas: Sequence[float], federation: FederationFacts, rate: float, sampler: Sampler) -> Event:
    counts = Counter(sigmas)
    drawn: Sampler = sampler if rate < 1 else "none"
    return compose(GaussianRelease(sigma, rate, drawn, federation.adjacency, count) for sigma, count in counts.items())


GUARANTEES = (
    "none", "client-DP central", "client-LDP", "sample-DP local view", "sample-DP", "sample-DDP", "BDP",
)  # fmt: skip

REPEATABLE = "repeatable: noise is known to whoever knows the seed"

# Composing thousands of distinct loss distributions takes seconds, adding Renyi curves does not.
_MOST_DISTRIBUTIONS = 64


def make_statement(
    view: str,
    guarantee: str,
    why: str,
    *,
    actual: Event | None = None,
    claimed: Event | None = None,
    delta: float = 1e-5,
    unit: str | None = None,
    schedule: str | None = None,
) -> Statement:
    """The statement for one view.

    Args:
        view: ``third party``, ``server`` or ``client``.
        guarantee: the tag a theorem covers for what ran; ``none`` where none does.
        why: one plain sentence for the tag; what limits the mechanisms of ``actual`` is added to it.
        actual: what this view sees, with effective sigmas and the sampler that ran; None without a guarantee.
        claimed: what the paper accounts for, with sigma as printed.
        delta: in (0, 1).
        unit: ``client`` or ``example``.
        schedule: the noise schedule in words.

    Raises:
        UsageError: an unknown tag, a tag for a release that nothing protects, or what the accountants refuse.
    """
    choice(guarantee, GUARANTEES, "guarantee")
    claim = None if claimed is None else claimed_epsilon(claimed, delta)
    stated = partial(Statement, view=view, claimed_epsilon=claim, unit=unit, schedule=schedule)
    if guarantee == "none" or actual is None:
        return stated(guarantee="none", notes=why)
    spent = ledger(actual)
    why = "; ".join([why, *dict.fromkeys(note for one in spent.mechanisms for note in one.mechanism.notes)])
    if spent.unprotected:
        raise UsageError(f"a guarantee {guarantee!r} cannot cover what is {spent.unprotected}; state none")
    value, conversion = valid_epsilon(actual, delta)
    if value is None:
        return stated(guarantee="none", notes=f"{why}; no finite epsilon")
    mu, told = presence(actual, valid_accountants(actual))
    return stated(
        epsilon=value, delta=delta, adjacency=spent.adjacency, sampler=spent.sampler, conversion=conversion,
        guarantee=guarantee, notes=why, mu=mu, told_apart=told,
    )  # fmt: skip


def without_guarantee(statement: Statement, why: str) -> Statement:
    """The statement where something that no mechanism covers was released too; what the paper claims stays beside."""
    return replace(
        statement, epsilon=None, delta=None, mu=None, told_apart=None, adjacency=None, sampler=None, conversion=None,
        guarantee="none", notes=why, covers=None,
    )  # fmt: skip


def what_holds(statements: Iterable[Statement], copies: int = 1, uncovered: str | None = None) -> list[Statement]:
    """Statements without the guarantees that the data take away.

    An example that a client holds in several ``copies`` enters its own steps as often, and no statement about an
    example covers that. ``uncovered`` says what of the model was computed from the private data without noise, in
    words; then nothing is covered.
    """
    repeated = f"a client holds an example up to {copies} times, and the noise is made for one; lower --examples"

    def why_not(one: Statement) -> str | None:
        if one.guarantee == "none":
            return None
        return uncovered or (repeated if copies > 1 and one.unit == "example" else None)

    return [one if (why := why_not(one)) is None else without_guarantee(one, why) for one in statements]


def repeatable(statements: Iterable[Statement]) -> list[Statement]:
    """The statements of a run whose noise follows from a public seed: its guarantees hold only for who lacks it."""
    return [one if one.guarantee == "none" else replace(one, notes=f"{one.notes}; {REPEATABLE}") for one in statements]


@lru_cache(maxsize=256)
def claimed_epsilon(event: Event, delta: float = 1e-5) -> float | None:
    """Epsilon as the papers print it: moments accountant, Mironov conversion, the orders of the released script.

    None where the event has no finite epsilon.
    """
    accountant = Renyi("mironov", "paper", grid=None)
    value = accountant.epsilon(event, delta).epsilon
    return value if math.isfinite(value) else None


def valid_accountants(event: Event) -> tuple[Accountant, ...]:
    """Those whose numbers hold for an event: Renyi curves, and loss distributions where they apply (Gaussian noise).

    Buckets of loss distributions add up over very many steps, so either may be the smaller. Poisson sampling under
    replace-one has a proof only by loss distributions.
    """
    spent, pld = ledger(event), make_accountant("pld")
    proven = not any(_only_by_distributions(release) for release in spent.releases)
    few = len(spent.releases) <= _MOST_DISTRIBUTIONS or not proven
    distribution = few and all(pld.covers(release) for release in spent.mechanisms)
    return (*((pld,) if distribution else ()), *((make_accountant("rdp"),) if proven or not distribution else ()))


@lru_cache(maxsize=256)
def valid_epsilon(event: Event, delta: float = 1e-5) -> tuple[float | None, str]:
    """The smallest epsilon our accountants prove for an event, and the convention behind it."""
    least = min((one.epsilon(event, delta) for one in valid_accountants(event)), key=lambda one: one.epsilon)
    name = "PLD" if least.accountant == "pld" else f"RDP, {least.conversion}"
    return (least.epsilon if math.isfinite(least.epsilon) else None), name


def _only_by_distributions(release: GaussianRelease | MechanismRelease) -> bool:
    """Return whether no Renyi curve is proven: Poisson samples, of units or of steps inside, under replace-one."""
    sampled = release.sampled or isinstance(release, MechanismRelease)
    return sampled and release.drawn == "poisson" and release.adjacency == "replace"
