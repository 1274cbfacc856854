"""Who shares masks and secrets with whom: everybody, or k neighbours each (Bell et al., CCS 2020, section 3)."""

import hashlib
import math
from collections.abc import Iterable

import numpy as np
from scipy import stats

Graph = tuple[frozenset[int], ...]

SMALL = 32


def recommended_degree(clients: int) -> int | None:
    """Neighbours per client, O(log N); None, the complete graph, up to 32 clients."""
    if clients <= SMALL:
        return None
    return min(clients - 1, max(10, 4 * math.ceil(math.log2(clients))))


def neighbours(clients: int, degree: int | None, seed: bytes) -> Graph:
    """The neighbours of every client: a Harary graph over a random order of the clients.

    The order is a public function of ``seed``, which must be drawn after an adversary has chosen whom to corrupt.

    Args:
        degree: even and below ``clients``; None for the complete graph.
    """
    if degree is None:
        return tuple(frozenset(range(clients)) - {client} for client in range(clients))
    order = np.random.default_rng(list(hashlib.sha256(b"graph" + seed).digest())).permutation(clients)
    found: list[set[int]] = [set() for _ in range(clients)]
    for offset in range(1, degree // 2 + 1):
        for one, other in zip(order.tolist(), np.roll(order, -offset).tolist(), strict=True):
            found[one].add(other)
            found[other].add(one)
    return tuple(frozenset(group) for group in found)


def connected(graph: Graph, among: Iterable[int]) -> bool:
    """Whether the clients ``among`` hang together; else the server would learn the sum of every part by itself."""
    left = set(among)
    reached = {left.pop()} if left else set()
    while reached:
        reached = left.intersection(set().union(*(graph[client] for client in reached)))
        left -= reached
    return not left


def failure_probability(clients: int, degree: int | None, threshold: int, dropped: int) -> float:
    """Upper bound of the chance that so many random dropouts leave some client with fewer than t holders.

    A union bound over the clients; the holders of a client's shares are its neighbours and itself.
    """
    holders = clients if degree is None else degree + 1
    return min(1.0, clients * float(stats.hypergeom(clients, clients - dropped, holders).cdf(threshold - 1)))
