"""What whole systems of the papers cost: sums behind secure aggregation, DP-SCAFFOLD."""

from harness.privacy.systems.distributed_noise import SEVERAL_STEPS, DistributedNoise, Party, fused, sum_sigma
from harness.privacy.systems.scaffold import Scaffold, scaffold_accountant, scaffold_epsilon, scaffold_event

__all__ = [
    "SEVERAL_STEPS",
    "DistributedNoise",
    "Party",
    "Scaffold",
    "fused",
    "scaffold_accountant",
    "scaffold_epsilon",
    "scaffold_event",
    "sum_sigma",
]  # fmt: skip
