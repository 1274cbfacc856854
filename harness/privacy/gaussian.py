"""What Gaussian noise costs exactly. Source: Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential
Privacy: Analytical Calibration and Optimal Denoising", Theorem 8. See docs/accounting.md.

``multiplier`` is mu = sensitivity / standard deviation; releases compose to the root of the sum of their squares.
"""

import math

from scipy.special import erfcx, ndtr


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), for mu > 0 and ``epsilon`` >= 0."""
    near, far = epsilon / multiplier - multiplier / 2, epsilon / multiplier + multiplier / 2
    # e^eps times the second density is the first one's, so that nothing overflows.
    density = math.exp(-(near**2) / 2) / 2
    return max(0.0, float(ndtr(-near)) - density * float(erfcx(far / math.sqrt(2))))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest epsilon >= 0 at ``delta`` in (0, 1), rounded up."""
    low, high = 0.0, 1.0
    if gaussian_delta(multiplier, low) <= delta:
        return low
    while gaussian_delta(multiplier, high) > delta:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(multiplier, middle) <= delta else (middle, high)
    return high
