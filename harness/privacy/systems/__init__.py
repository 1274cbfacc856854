"""What whole systems of the papers cost: sums behind secure aggregation, DP-SCAFFOLD, Bayesian accounting."""

from harness.privacy.systems.bayesian import ASSUMPTIONS, LAMBDAS, Samples, guess_bound
from harness.privacy.systems.bayesian_run import BayesianEpsilon, bayesian_epsilon, moments_epsilon
from harness.privacy.systems.bayesian_samples import client_samples, instance_samples, joint_samples
from harness.privacy.systems.scaffold import Scaffold, scaffold_accountant, scaffold_epsilon, scaffold_event
from harness.privacy.systems.secure_sum import SEVERAL_STEPS, Party, SecureSum, fused, sum_sigma

__all__ = [
    "ASSUMPTIONS", "LAMBDAS", "SEVERAL_STEPS", "BayesianEpsilon", "Party", "Samples", "Scaffold", "SecureSum",
    "bayesian_epsilon", "client_samples", "fused", "guess_bound", "instance_samples", "joint_samples",
    "moments_epsilon", "scaffold_accountant", "scaffold_epsilon", "scaffold_event", "sum_sigma",
]  # fmt: skip
