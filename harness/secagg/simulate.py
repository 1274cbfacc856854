"""All parties of one aggregation in one process: repeatable, with dropouts, and with the bill of every round.

A noisy sum quantises, adds noise, aggregates securely and decodes, so that the server sees nothing but the sum. That is
the distributed differential privacy of SecAgg with local steps, for one vector per client.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.base.errors import UsageError
from harness.secagg.client import Client
from harness.secagg.integers import from_ring, local_noise, random_signs, refuse_overflow, to_ring
from harness.secagg.mechanisms import FixedPoint, Gaussian, PoissonBinomial, SkellamGrid
from harness.secagg.server import Server
from harness.secagg.session import SYSTEM, Entropy, Parties, open_session, seeded_entropy
from harness.secagg.wire import Kind, rounds

# When a client may leave: before its keys, its shares, its masked vector, or after that.
STAGES = {
    Kind.KEYS: 0, Kind.SHARES: 1, Kind.RECEIPTS: 1, Kind.MASKED: 2, Kind.CONSENT: 3, Kind.UNMASKING: 3,
}  # fmt: skip


@dataclass
class RoundCost:
    """Costs of one round.

    Attributes:
        client_seconds: per client that answered.
        sent, received: bytes per client that answered.
        server_seconds: taking in the messages and closing the round.
    """

    name: str
    client_seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    server_seconds: float = 0.0


@dataclass(frozen=True)
class Aggregation:
    """Numbers that the server holds at the end, and what they took.

    Attributes:
        total: (length,), the sum of the survivors' vectors modulo 2^b.
        survivors: the clients in the sum.
        masked: client -> (length,), each masked vector as the server received it.
    """

    total: np.ndarray
    survivors: tuple[int, ...]
    masked: dict[int, np.ndarray]
    costs: list[RoundCost]


def aggregate(
    parties: Parties,
    vectors: np.ndarray,
    leaves: Mapping[int, int] | None = None,
    seed: tuple[int | str, ...] | None = None,
) -> Aggregation:
    """Runs the protocol between its state machines, which exchange nothing but bytes.

    Args:
        vectors: (N, length) ring elements.
        leaves: client -> the stage (0 to 3) from which on it is silent: 0 announces keys, 1 shares secrets, 2 masks the
            vector, 3 consents and unmasks.
        seed: makes all secrets a function of it; None takes them from the operating system.

    Raises:
        Aborted: too few clients are left.
        Refused: a vector does not fit the session.
    """
    session = parties.session
    leaves = leaves or {}
    clients = [
        Client(session, index, identity, _entropy(seed, index))
        for index, identity in enumerate(parties.client_identities)
    ]
    server = Server(session, parties.server_identity)
    costs: list[RoundCost] = []
    inbox = dict.fromkeys(range(session.clients), b"")
    for kind in rounds(session):
        cost = RoundCost(kind.name.lower())
        outbox = [
            _answer(clients[index], kind, message, vectors[index], cost)
            for index, message in inbox.items()
            if leaves.get(index, len(STAGES)) > STAGES[kind]
        ]
        start = time.perf_counter()
        for message in outbox:
            server.receive(message)
        inbox = server.end_round()
        cost.server_seconds = time.perf_counter() - start
        costs.append(cost)
    assert server.total is not None  # every round is over
    return Aggregation(server.total, server.survivors, server.masked, costs)


def _answer(client: Client, kind: Kind, message: bytes, vector: np.ndarray, cost: RoundCost) -> bytes:
    start = time.perf_counter()
    answer = {
        Kind.KEYS: client.announce,
        Kind.SHARES: lambda: client.share(message),
        Kind.RECEIPTS: lambda: client.acknowledge(message),
        Kind.MASKED: lambda: client.mask(message, vector),
        Kind.CONSENT: lambda: client.consent(message),
        Kind.UNMASKING: lambda: client.unmask(message),
    }[kind]()
    cost.client_seconds.append(time.perf_counter() - start)
    cost.sent.append(len(answer))
    cost.received.append(len(message))
    return answer


def _entropy(seed: tuple[int | str, ...] | None, index: int) -> Entropy:
    return SYSTEM if seed is None else seeded_entropy("client", *seed, index)


MECHANISMS = ("skellam", "poisson_binomial", "gaussian")
MODES = ("strict_grid", "paper")
# Trials from which means of tosses are as good as exact; fewer leave nothing of small numbers.
_FINE = 64

Mechanism = SkellamGrid | PoissonBinomial | Gaussian
Key = tuple[int | str, ...]


@dataclass(frozen=True)
class SumSettings:
    """Settings of a secure noisy sum.

    Attributes:
        clip: C, bound of the norm of each client's vector.
        noise: noise multiplier of the whole sum, sigma_tot; 0 adds none. Poisson-binomial has ``trials`` instead.
        mechanism: ``skellam``, ``poisson_binomial`` or ``gaussian``.
        mode: ``strict_grid`` sums the noisy integers, as the proofs assume; ``paper`` decodes them at the client and
            sums fixed-point numbers, as the paper does.
        bits: b of the ring.
        colluders, dropouts: how many clients' noise must not be relied on; more dropouts abort.
        degree: neighbours per client in the protocol, None for the complete graph.
        threshold: holders that give a secret; by default as the protocol recommends, as far as dropouts allow.
        deviations: k, how many standard deviations of the sum half the ring holds. The papers' 3 lets one coordinate in
            370 wrap around, which is refused here; 7 lets one in 10^11, and costs little more than one bit.
        rotation: whether a random Hadamard rotation spreads the vectors.
        trials, theta: of the Poisson-binomial mechanism.
        tossed: whether it tosses coins; else it sends their means, as exactly as the ring can hold them.
        protocol: ``real`` runs secure aggregation between its parties and withstands a server that tells clients
            different things; ``semi_honest`` leaves out what is needed for that, and allows dropouts of half of the
            clients and more; ``sum`` adds in the ring, which the tests prove equal to the bit, where no client leaves
            and the masks are of no interest.
    """

    clip: float = 1.0
    noise: float = 1.0
    mechanism: str = "skellam"
    mode: str = "strict_grid"
    bits: int = 32
    colluders: int = 0
    dropouts: int = 0
    degree: int | None = None
    threshold: int | None = None
    deviations: float = 7.0
    rotation: bool = True
    trials: int = 64
    theta: float = 0.25
    tossed: bool = True
    protocol: str = "real"


def sum_integers(
    rows: np.ndarray, settings: SumSettings, key: Key, leaves: Mapping[int, int] | None = None
) -> tuple[np.ndarray, Aggregation]:
    """The survivors' sum (d,) of the clients' integers (N, d), for example of several steps' noisy gradients.

    Raises:
        UsageError: the sum overflows the ring.
        Aborted: too many clients dropped out.
    """
    aggregation = _aggregate(to_ring(rows, settings.bits), settings, key, leaves)
    total = from_ring(aggregation.total, settings.bits)
    refuse_overflow(total, rows[list(aggregation.survivors)], settings.bits)
    return total, aggregation


def sum_reals(
    rows: np.ndarray, largest: float, settings: SumSettings, key: Key, leaves: Mapping[int, int] | None = None
) -> tuple[np.ndarray, Aggregation]:
    """The survivors' sum (p,) of real vectors (N, p), for example updates, rounded to fixed point.

    Args:
        largest: bound of a coordinate's absolute value.

    Raises:
        UsageError: a coordinate beyond the bound.
        Aborted: too many clients dropped out.
    """
    encoding = FixedPoint.fitting(settings.bits, largest, len(rows))
    aggregation = _aggregate(encoding.encode(rows), settings, key, leaves)
    return encoding.decode(aggregation.total), aggregation


def build_mechanism(
    settings: SumSettings, clients: int, dimension: int, key: Key, rows: int = 1, steps: int = 1
) -> Mechanism:
    """The mechanism of each client, with its share of the noise.

    Args:
        rows: vectors that a client encodes at a time, as expected beforehand: its batch.
        steps: noisy sums of a client that are added up in the ring.

    Raises:
        UsageError: an unknown name, nobody's noise is left, or what the mode or the ring cannot do.
    """
    if settings.mechanism not in MECHANISMS or settings.mode not in MODES:
        raise UsageError(f"choose a mechanism of {', '.join(MECHANISMS)} and a mode of {', '.join(MODES)}")
    if not (0 < settings.clip < math.inf and 0 <= settings.noise < math.inf):
        raise UsageError("the clip must be positive and finite, the noise zero or more")
    noise = local_noise(settings.noise, clients, settings.colluders, settings.dropouts)
    if settings.mechanism == "gaussian":
        if settings.mode == "strict_grid":
            raise UsageError("Gaussian noise lies on no grid; use mode=paper, or mechanism=skellam")
        return Gaussian(dimension, settings.clip, noise)
    signs = random_signs(dimension, *key) if settings.rotation else None
    trials = settings.trials if settings.tossed else (2 ** (settings.bits - 1) - 1) // (rows * clients * steps)
    coarse = not settings.tossed and trials < _FINE
    if settings.mechanism == "skellam" or coarse:
        noise = 0.0 if coarse else noise
        return SkellamGrid(
            dimension, settings.clip, noise, clients, settings.bits, signs, rows, steps, settings.deviations
        )
    tosses = PoissonBinomial(
        dimension, settings.clip, trials, settings.theta, signs, slots=rows, tossed=settings.tossed
    )
    tosses.require_ring(settings.bits, clients * steps)
    return tosses


def _aggregate(words: np.ndarray, settings: SumSettings, key: Key, leaves: Mapping[int, int] | None) -> Aggregation:
    clients, length = words.shape
    fewest = clients - settings.dropouts
    threshold = settings.threshold
    if threshold is None and settings.degree is None:
        threshold = max(2, min(math.ceil(2 * clients / 3), fewest))
    parties = open_session(
        clients, length, settings.bits, settings.degree, threshold, max(2, fewest), seeded_entropy("session", *key),
        colluders=settings.colluders, consistency=settings.protocol != "semi_honest",
    )  # fmt: skip
    if settings.protocol in ("real", "semi_honest"):
        return aggregate(parties, words, leaves, seed=key)
    if settings.protocol != "sum" or leaves:
        raise UsageError("choose the protocol real or semi_honest, or sum where no client leaves")
    total = words.sum(axis=0, dtype=parties.session.dtype) & parties.session.largest
    return Aggregation(total, tuple(range(clients)), {}, [])
