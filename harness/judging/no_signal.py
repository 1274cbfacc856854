"""Where a gradient carries no signal: beyond the rank that its examples can give it.

The gradient of a fully connected layer's weights is a sum of one outer product for every row that it multiplied, so
its rank is at most r, the rows of all examples, however they were weighted or clipped. For what was sent, G = C + Z
with rank(C) <= r, let d_k be the distance to the nearest matrix of rank k (the root of the sum of all squared singular
values but the k largest). As C plus a matrix of rank r has at most rank 2r,

    d_2r(Z) <= d_r(G) <= |Z|,

whatever the data. |Z|^2 is chi-square; d_2r is 1-Lipschitz in Z, so that it is below its mean by t with a chance of at
most exp(-t^2 / 2) (Boucheron, Lugosi and Massart, "Concentration Inequalities", theorem 5.6).
"""

from functools import cache

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from harness.base.randomness import Stream
from harness.judging.evidence import Check, Evidence

# Of noise alone, to know the mean of d_2r: as many as are quick, of large matrices few, which vary as little.
_DRAWS, _NUMBERS = (8, 512), 2**21
# The mean of n draws that are 1-Lipschitz exceeds the true one by this over the root of n once in 10^5 at most.
_MARGIN = 4.8
FACTS = "what was sent fits the declared facts"
# Of a layer's norm, more than quantisers leave.
_UNLIKE = 0.05
# Larger matrices take minutes; the other tests have power enough there.
_LARGEST = 2**22


def no_signal(evidence: Evidence) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Of V clients and J layers that have room for it: names, and what noise alone leaves beyond the signal's rank.

    Returns:
        names: J of them.
        weaker, stronger: (V, J), p-values of noise weaker and stronger than declared, never too small by chance.
        found: (V, J), estimates of the noise's deviation.
    """
    level, shapes = evidence.level, dict(zip(evidence.layout.names, evidence.layout.shapes, strict=True))
    names, columns = [], []
    for name, values in zip(evidence.layout.names, evidence.tensors(), strict=True):
        rank, shape = evidence.ranks.get(name), shapes[name]
        if level and rank is not None and 2 * rank < min(shape) and values.shape[1] <= _LARGEST:
            names.append(name)
            stray = evidence.rounding(values.shape[1]) + evidence.stray
            columns.append(noise_beyond(values.unflatten(1, shape), rank, level, stray))
    if not columns:
        none = np.empty((evidence.captured.clients, 0))
        return [], none, none, none
    weaker, stronger, found = (np.stack(one, 1) for one in zip(*columns, strict=True))
    return names, weaker, stronger, found


def fits_facts(evidence: Evidence) -> Check | None:
    """Whether what was sent without noise can be the gradients of so many examples; None where that cannot be seen."""
    defense, settings = evidence.defense, evidence.settings
    if evidence.noise is not None or defense.sparse_at(settings.tap) or defense.sums_securely:
        return None
    shapes, worst, found = dict(zip(evidence.layout.names, evidence.layout.shapes, strict=True)), 0.0, None
    for name, values in zip(evidence.layout.names, evidence.tensors(), strict=True):
        rank, shape = evidence.ranks.get(name), shapes[name]
        if rank is None or rank >= min(shape) or values.shape[1] > _LARGEST:
            continue
        norms = values.norm(dim=1).clamp_min(1e-30).numpy()
        beyond = distance(values.unflatten(1, shape), rank).numpy() - evidence.rounding(values.shape[1])
        if found is None or (beyond / norms).max() > worst:
            worst, found = float((beyond / norms).max()), (name, int((beyond / norms).argmax()) + 1, rank)
    if found is None:
        return None
    name, client, rank = found
    if worst < _UNLIKE:
        return Check(FACTS, "holds", f"no layer has more in it than {rank} rows of examples give")
    return Check(
        FACTS, "violated", f"{name} of client {client} has {worst:.2g} of its norm beyond what {rank} rows of examples "
        "give: check batch_size, local_steps and epochs, the optimizer (weight decay, Adam), and defenses not declared",
    )  # fmt: skip


def noise_beyond(sent: Tensor, rank: int, level: float, stray: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p-values of noise weaker and stronger than declared, and its deviation; ``stray`` (V,): a norm that is neither
    noise nor of that rank, such as rounding."""
    beyond = distance(sent, rank).numpy()
    short = _left_by_noise(rank, sent.shape[1], sent.shape[2]) - (beyond + stray) / level
    weaker = np.exp(-(np.clip(short, 0, None) ** 2) / 2)
    stronger = chi2.sf((np.clip(beyond - stray, 0, None) / level) ** 2, sent[0].numel())
    # Beside a signal that is not weak, this much of the noise is left.
    freedom = (sent.shape[1] - rank) * (sent.shape[2] - rank)
    return weaker, stronger, beyond / freedom**0.5


@cache
def _left_by_noise(rank: int, rows: int, columns: int) -> float:
    """The least that the mean of d_2r may be of noise of deviation 1."""
    count = min(max(_NUMBERS // (rows * columns), _DRAWS[0]), _DRAWS[1])
    draws = Stream("no signal", rank).normal((count, rows, columns)).double()
    return float(distance(draws, 2 * rank).mean()) - _MARGIN / count**0.5


def distance(matrices: Tensor, rank: int) -> Tensor:
    """Frobenius distances (V,) of matrices (V, a, b) to the nearest ones of that rank."""
    return torch.linalg.svdvals(matrices)[:, rank:].square().sum(1).sqrt()
