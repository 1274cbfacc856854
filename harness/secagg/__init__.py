"""Secure aggregation: a server learns the sum of its clients' vectors and nothing else about them.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017 (semi-honest), with
the sparse graph of Bell et al., Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020.

Beside the protocol stand the mechanisms of distributed differential privacy: rounding, noise, and the ring of integers
they are summed in. A mechanism has ``encode`` (one client's vectors to its noisy sum), ``decode`` (back to the units of
the vectors), and ``deviation`` (of one client's noise).
"""

from harness.secagg.calibration import local_noise
from harness.secagg.client import Client
from harness.secagg.entropy import SYSTEM, Entropy, seeded_entropy
from harness.secagg.errors import Aborted, Refused
from harness.secagg.fixed_point import FixedPoint
from harness.secagg.gaussian import Gaussian
from harness.secagg.graph import failure_probability, recommended_degree
from harness.secagg.grid import from_ring, grid_scale, refuse_overflow, to_ring
from harness.secagg.poisson_binomial import PoissonBinomial
from harness.secagg.rotation import padded, random_signs, rotate, unrotate
from harness.secagg.rounding import clip_rows, inflated_norm, l1_norm, stochastic_round
from harness.secagg.server import Server
from harness.secagg.session import Parties, Session, open_session
from harness.secagg.simulate import Aggregation, RoundCost, aggregate
from harness.secagg.skellam import skellam, skellam_rows
from harness.secagg.skellam_grid import SkellamGrid
from harness.secagg.streams import numbers

__all__ = [
    "SYSTEM", "Aborted", "Aggregation", "Client", "Entropy", "FixedPoint", "Gaussian", "Parties", "PoissonBinomial",
    "Refused", "RoundCost", "Server", "Session", "SkellamGrid", "aggregate", "clip_rows", "failure_probability",
    "from_ring", "grid_scale", "inflated_norm", "l1_norm", "local_noise", "numbers", "open_session", "padded",
    "random_signs", "recommended_degree", "refuse_overflow", "rotate", "seeded_entropy", "skellam", "skellam_rows",
    "stochastic_round", "to_ring", "unrotate",
]  # fmt: skip
