"""Mechanisms of distributed differential privacy: rounding, noise, and the ring of integers they are summed in.

A mechanism has ``encode`` (one client's vectors to its noisy sum), ``decode`` (back to the units of the vectors), and
``deviation`` (of one client's noise).
"""

from harness.mechanisms.calibration import local_noise
from harness.mechanisms.fixed_point import FixedPoint
from harness.mechanisms.gaussian import Gaussian
from harness.mechanisms.grid import from_ring, grid_scale, refuse_overflow, to_ring
from harness.mechanisms.poisson_binomial import PoissonBinomial
from harness.mechanisms.rotation import padded, random_signs, rotate, unrotate
from harness.mechanisms.rounding import clip_rows, inflated_norm, l1_norm, stochastic_round
from harness.mechanisms.skellam import skellam, skellam_rows
from harness.mechanisms.skellam_grid import SkellamGrid
from harness.mechanisms.streams import numbers

__all__ = [
    "FixedPoint", "Gaussian", "PoissonBinomial", "SkellamGrid", "clip_rows", "from_ring", "grid_scale",
    "inflated_norm", "l1_norm", "local_noise", "numbers", "padded", "random_signs", "refuse_overflow", "rotate",
    "skellam", "skellam_rows", "stochastic_round", "to_ring", "unrotate",
]  # fmt: skip
