"""Secure aggregation: a server learns the sum of its clients' vectors and nothing else about them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017 (semi-honest), with
the sparse graph of Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020.
"""

from harness.secagg.client import Client
from harness.secagg.entropy import SYSTEM, Entropy, seeded_entropy
from harness.secagg.errors import Aborted, Refused
from harness.secagg.graph import failure_probability, recommended_degree
from harness.secagg.server import Server
from harness.secagg.session import Parties, Session, open_session
from harness.secagg.simulate import Aggregation, RoundCost, aggregate

__all__ = [
    "SYSTEM", "Aborted", "Aggregation", "Client", "Entropy", "Parties", "Refused", "RoundCost", "Server", "Session",
    "aggregate", "failure_probability", "open_session", "recommended_degree", "seeded_entropy",
]  # fmt: skip
