"""What whole systems of the papers cost: sums behind secure aggregation, DP-SCAFFOLD, Bayesian accounting."""

from harness.privacy.systems.bayesian import ASSUMPTIONS, LAMBDAS, Samples, guess_bound
from harness.privacy.systems.bayesian_run import BayesianEpsilon, bayesian_epsilon, moments_accountant, moments_epsilon
from harness.privacy.systems.bayesian_samples import client_samples, instance_samples, joint_samples
from harness.privacy.systems.distributed_noise import SEVERAL_STEPS, DistributedNoise, Party, fused, sum_sigma
from harness.privacy.systems.scaffold import Scaffold, scaffold_accountant, scaffold_epsilon, scaffold_event

__all__ = [
    "ASSUMPTIONS",
    "LAMBDAS",
    "SEVERAL_STEPS",
    "BayesianEpsilon",
    "DistributedNoise",
    "Party",
    "Samples",
    "Scaffold",
    "bayesian_epsilon",
    "client_samples",
    "fused",
    "guess_bound",
    "instance_samples",
    "joint_samples",
    "moments_accountant",
    "moments_epsilon",
    "scaffold_accountant",
    "scaffold_epsilon",
    "scaffold_event",
    "sum_sigma",
]  # fmt: skip
