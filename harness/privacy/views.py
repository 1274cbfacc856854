"""Who sees which releases: from the plain numbers of a federation to one event per view.

Spec: accounting, sections 1, 8 and 10; defenses, sections 0 and 3. Views: ``third party`` sees the published models
only, ``server`` every client's message and who takes part, ``client`` is another participant, who sees the models and
can subtract the noise it added itself. Where a secure sum hides messages from the server, whoever still reads one sees
the view ``message``.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import UsageError
from harness.privacy.accountant import choice
from harness.privacy.events import Adjacency, Event, GaussianRelease, NonPrivate, Sampler, compose

Unit = Literal["client", "example"]
NoiseAt = Literal["aggregate", "receive", "client"]

VIEWS = ("third party", "server", "client", "message")

_RAW = "the server receives raw updates"


@dataclass(frozen=True)
class View:
    """What one kind of observer sees, as an event, and on what condition the event describes it."""

    name: str
    event: Event
    note: str


@dataclass(frozen=True)
class Federation:
    """The plain numbers of a run.

    Attributes:
        sigma: noise multiplier as configured (noise std over the clipping bound C, on the sum); one number, or one
            per round, or (for examples) one per local step of all rounds.
        layers: M tensors clipped to C each; 1 where the whole vector is clipped to C.
        clients, clients_per_round: N and K.
        rounds, steps: T rounds of L local steps.
        rate: share of a client's examples in a local batch, B/n_i; examples only.
        sampler: how clients (or a batch's examples) are drawn; ``none`` for a fixed partition or full participation.
        adjacency: ``replace`` doubles the sensitivity of a sum.
        steady: whether every round has exactly K clients. Noise that clients add themselves hides a client only as far
            as it is sure to be there: with a random number of them, no other client's is.
        own_state: whether clients carry something that only their own noise hides from one round to the next, as
            SCAFFOLD's control variates; their gradients depend on it, which no other client's noise hides.
        holders: the most clients of a round that hold one example; each releases steps of its own on it.
    """

    sigma: float | Sequence[float]
    rounds: int
    layers: int = 1
    clients: int = 1
    clients_per_round: int = 1
    steps: int = 1
    rate: float = 1.0
    sampler: Sampler = "poisson"
    adjacency: Adjacency = "add/remove"
    steady: bool = True
    own_state: bool = False
    holders: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.clients_per_round <= self.clients:
            raise UsageError(
                f"{self.clients_per_round} per round of {self.clients}; lower clients_per_round or raise clients"
            )

    def sigmas(self, unit: Unit) -> list[float]:
        """Effective multipliers, one per round (client) or per local step (example)."""
        needed = self.rounds if unit == "client" else self.rounds * self.steps
        given = [self.sigma] * needed if isinstance(self.sigma, int | float) else list(self.sigma)
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
    federation: Federation, noise_at: NoiseAt = "aggregate", noise_split: Literal["full", "share"] = "full"
) -> list[View]:
    """The views on client-level protection of updates (Fed-SDP, Geyer, DP-FedAvg).

    ``noise_at``: ``aggregate`` (the server noises the sum), ``receive`` (the server noises every update) or
    ``client`` (before sending); ``noise_split``: the last two add the ``full`` noise each, or a ``share``, 1/sqrt(K).
    """
    choice(noise_at, ("aggregate", "receive", "client"), "place of the noise")
    choice(noise_split, ("full", "share"), "noise split")
    count = federation.clients_per_round
    each = 1.0 if noise_split == "full" else 1 / math.sqrt(count)
    total = 1.0 if noise_at == "aggregate" else each * math.sqrt(count)
    others = each * math.sqrt(max(count - 1, 1)) if noise_at == "client" else total
    published = f"{federation.sampler} sampling of clients, secret from this view"
    alone = _releases([each * sigma for sigma in federation.sigmas("client")], federation, 1.0)
    if noise_at == "client":
        local = replace(federation, adjacency="replace")
        server: Event = _releases([each * sigma for sigma in local.sigmas("client")], local, 1.0)
        seen = "any two updates of a client that takes part in every round, which the server knows: no amplification"
    else:
        server, seen = NonPrivate(_RAW), _RAW
    if noise_at != "aggregate" and not federation.steady:
        own = (
            "a client that takes part in every round, one that is removed sending its noise alone; how many others "
            "add noise is random, so only its own counts"
        )
        return [View("third party", alone, own), View("server", server, seen), View("client", alone, own)]
    return [
        View("third party", _sampled_clients(federation, total), published),
        View("server", server, seen),
        View("client", _sampled_clients(federation, others), f"{published}; its own noise does not count"),
    ]


def example_views(federation: Federation) -> list[View]:
    """The views on example-level protection inside local steps (Fed-CDP with a fixed bound).

    With one local step the noise of all clients adds up in the published sum (sum-dominating mechanisms, spec section
    10). From the second step on a client's gradients depend on its own earlier noise, which no other client's noise
    hides, and so they do where it keeps a state of its own: then everybody's view is a function of the server's, and
    costs what that one costs. The sampling of clients is not counted, since a client's steps of one round are drawn
    together.
    """
    count = federation.clients_per_round
    held = (
        "an example of a client that takes part"
        if federation.holders == 1
        else (f"an example that {federation.holders} clients hold, all taking part")
    )
    worst = f"{held} in every round{kept_place(federation.sampler)}"
    if reason := _why_own_noise_alone(federation):
        local = _local_steps(federation, 1.0)
        own = f"{worst}; {reason} only the client's own noise counts"
        return [View("third party", local, own), View("server", local, worst), View("client", local, own)]
    disjoint = f"{worst}; clients share learning rate and rate, and no example"
    others = math.sqrt(max(count - 1, 1))
    return [
        View("third party", _local_steps(federation, math.sqrt(count)), disjoint),
        View("server", _local_steps(federation, 1.0), worst),
        View("client", _local_steps(federation, others), f"{disjoint}; the viewer's own noise not counted"),
    ]


def kept_place(sampler: Sampler) -> str:
    """What removing an example means under a sampler, as the end of a sentence."""
    return "; one that is removed leaves its place in its batch empty" if sampler == "none" else ""


def _why_own_noise_alone(federation: Federation) -> str | None:
    """Why no other client's noise hides an example; None where it does."""
    if federation.holders > 1:
        return "with examples that several clients hold"
    if federation.steps > 1:
        return "with several local steps"
    if federation.own_state:
        return "with control variates"
    return None if federation.steady else "with a random number of clients"


def _sampled_clients(federation: Federation, gain: float) -> Event:
    rate = federation.clients_per_round / federation.clients
    sigmas = [gain * sigma for sigma in federation.sigmas("client")]
    return _releases(sigmas, federation, 1.0 if federation.sampler == "none" else rate)


def _local_steps(federation: Federation, gain: float) -> Event:
    sigmas = [gain * sigma for sigma in federation.sigmas("example") for _ in range(federation.holders)]
    if federation.sampler != "none":
        return _releases(sigmas, federation, federation.rate)
    # A fixed partition meets each example in a known share of the steps: the least noisy ones, at worst.
    met = max(1, math.ceil(federation.steps * federation.rate - 1e-9)) * federation.holders
    steps = federation.steps * federation.holders
    rounds = [sorted(sigmas[first : first + steps])[:met] for first in range(0, len(sigmas), steps)]
    return _releases([sigma for one in rounds for sigma in one], federation, 1.0)


def _releases(sigmas: Sequence[float], federation: Federation, rate: float) -> Event:
    sampler: Sampler = federation.sampler if rate < 1 else "none"
    counts = Counter(sigmas)
    return compose(
        GaussianRelease(sigma, rate, sampler, federation.adjacency, count) for sigma, count in counts.items()
    )
