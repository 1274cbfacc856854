"""Is the declared Gaussian noise Gaussian, or another kind of the same deviation?

A coordinate is c + z with an unknown c and z of deviation s. Whatever c is, no interval of width w holds it with more
than the chance that it has around nothing, P(|z| <= w / 2), and it is beyond t with no less than P(|z| > t) (T. W.
Anderson, "The integral of a symmetric unimodal function", 1955). So, of n coordinates, the number in an interval is
never more, in distribution, than binomial, and the number beyond t never less. Noise with a peak (Laplace) or with few
values (tosses of a sign) crowds into an interval; noise without tails (uniform) is not found beyond t.
"""

import numpy as np
from scipy.stats import binom, norm
from torch import Tensor

from harness.judging.evidence import LEVEL, UNKNOWN_LEVEL, Check, Evidence, bonferroni

SHAPE = "noise is Gaussian"

# In deviations of the noise: middles and half the width of intervals, and where tails begin.
_MIDDLES, _HALF, _TAILS = (-1.0, 0.0, 1.0), 0.3, (1.5, 2.5)


def shape(evidence: Evidence, enough: Check) -> Check:
    """Whether the noise is crowded, or has no tails.

    Args:
        enough: the check of its level; noise that is weaker than declared is crowded, and has been named.
    """
    level, noise = evidence.level, evidence.noise
    if level is None or noise is None:
        return Check(SHAPE, "cannot tell", "no noise is declared" if noise is None else UNKNOWN_LEVEL)
    if noise.law != "gaussian":
        return Check(SHAPE, "cannot tell", "another law is declared")
    if enough.outcome == "violated":
        return Check(SHAPE, "cannot tell", "there is less noise than declared")
    names, grain = evidence.layout.names, evidence.captured.grain.double().numpy() / level
    tensors = [values / level for values in evidence.tensors()]
    p_values = np.stack([np.stack([one(values, grain) for values in tensors], 1) for one in (crowded, tailless)])
    p_value = bonferroni(p_values)
    if p_value >= LEVEL:
        return Check(SHAPE, "holds", "values spread as those under Gaussian noise do, or more", p_value)
    kind, row, column = np.unravel_index(int(p_values.argmin()), p_values.shape)
    what = "crowd, as noise with a peak or of a few values does" if kind == 0 else "have no tails"
    return Check(
        SHAPE, "violated", f"values of {names[column]} of client {row + 1} {what}: no Gaussian noise of deviation "
        f"{level:.3g} lets them", p_value,
    )  # fmt: skip


def crowded(values: Tensor, grain: np.ndarray) -> np.ndarray:
    """Of each client (V,), the p-value of the fullest interval; ``values`` (V, n) in deviations."""
    counts = np.stack([((values - middle).abs() <= _HALF).sum(1).numpy() for middle in _MIDDLES])
    chance = norm.cdf(_HALF + grain) - norm.cdf(-_HALF - grain)
    return np.minimum(1, len(_MIDDLES) * binom.sf(counts.max(0) - 1, values.shape[1], chance))


def tailless(values: Tensor, grain: np.ndarray) -> np.ndarray:
    """Of each client (V,), the p-value of the emptiest tails."""
    tested = [
        binom.cdf((values.abs() > start).sum(1).numpy(), values.shape[1], 2 * norm.sf(start + grain))
        for start in _TAILS
    ]
    return np.minimum(1, len(_TAILS) * np.min(tested, axis=0))
