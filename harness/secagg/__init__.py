"""Secure aggregation: a server learns the sum of its clients' vectors and nothing else about them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017 (semi-honest), with
the sparse graph of Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020.

Beside the protocol stand the mechanisms of distributed differential privacy: rounding, noise, and the ring of integers
they are summed in. A mechanism has ``encode`` (one client's vectors to its noisy sum), ``decode`` (back to the units of
the vectors), and ``deviation`` (of one client's noise).
"""

from harness.secagg.client import Client
from harness.secagg.integers import (
    clip_rows,
    from_ring,
    grid_scale,
    inflated_norm,
    l1_norm,
    local_noise,
    numbers,
    padded,
    random_signs,
    refuse_overflow,
    rotate,
    stochastic_round,
    to_ring,
    unrotate,
)
from harness.secagg.mechanisms import FixedPoint, Gaussian, PoissonBinomial, SkellamGrid, skellam
from harness.secagg.server import Server
from harness.secagg.session import (
    Aborted,
    Parties,
    Refused,
    Session,
    failure_probability,
    open_session,
    recommended_degree,
    seeded_entropy,
)
from harness.secagg.simulate import Aggregation, RoundCost, aggregate

__all__ = [
    "Aborted", "Aggregation", "Client", "FixedPoint", "Gaussian", "Parties", "PoissonBinomial",
    "Refused", "RoundCost", "Server", "Session", "SkellamGrid", "aggregate", "clip_rows", "failure_probability",
    "from_ring", "grid_scale", "inflated_norm", "l1_norm", "local_noise", "numbers", "open_session", "padded",
    "random_signs", "recommended_degree", "refuse_overflow", "rotate", "seeded_entropy", "skellam",
    "stochastic_round", "to_ring", "unrotate",
]  # fmt: skip
