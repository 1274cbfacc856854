"""What noise shared among clients leaves to reconstruct of an example: in one client's message, and in their sum.

What is compared with is the same without the example. In the sum all clients' noise counts but that of the missing,
which only integers prove (:mod:`harness.defenses.secagg_statements`); in a message nobody's but its client's.
"""

from harness.defenses.secagg_clients import Differences
from harness.federation.clipped_noise import NO_NOISE
from harness.federation.context import Cohort
from harness.federation.secure_sum import Mechanism
from harness.mechanisms import Gaussian, PoissonBinomial
from harness.privacy import GaussianLimit, Limit, NoLimit, PoissonBinomialSum, RenyiLimit, skellam_sum


def message_limit(mechanism: Mechanism, differences: Differences, cohort: Cohort) -> Limit | NoLimit:
    """Of one client's noisy local step, the client with the least noise for its clip; ``mechanism`` is that of each."""
    if not isinstance(mechanism, Gaussian):
        return sum_limit(mechanism, 1)
    if mechanism.noise == 0:
        return NoLimit(NO_NOISE)
    own = (differences.of(client, cohort) for client in range(cohort.clients))
    return GaussianLimit(max(clip / noise for clip, noise, *_ in own) / mechanism.noise)


def sum_limit(mechanism: Mechanism, counted: int) -> Limit | NoLimit:
    """Of the sum of integers in which so many clients' noise counts, the example's own among them."""
    if isinstance(mechanism, PoissonBinomial):
        tosses = PoissonBinomialSum(counted * mechanism.slots, mechanism.trials, mechanism.theta, mechanism.length)
        return RenyiLimit(tosses)
    if isinstance(mechanism, Gaussian) or mechanism.noise == 0:
        return NoLimit(NO_NOISE)
    return RenyiLimit(skellam_sum(mechanism, counted))
