"""Least squares with weights that are not negative, for a few hundred equations of thousands of columns.

As Lawson and Hanson do it (1974), but several columns join at once, and all that turn negative leave at once, as long
as that comes nearer; a start from the last solution of like equations saves most steps. The solution is theirs.
"""

import torch
from torch import Tensor

# Columns that join at once, and fewer where these lead nowhere; what counts as a way nearer, as a share.
_JOIN = (16, 4, 1)
_NEARER = 1e-10
_STEPS = 1_000


def nonnegative(columns: Tensor, wanted: Tensor, start: Tensor | None = None) -> Tensor | None:
    """Weights (N,), none negative, whose sum of columns (M, N) comes nearest to a vector (M,); None of no numbers.

    Args:
        start: (N,), weights of which those above zero are tried first.
    """
    if not (columns.isfinite().all() and wanted.isfinite().all()):
        return None
    scale = columns.norm(dim=0).clamp_min(1e-300)
    rows, length = (columns / scale).T.contiguous(), wanted.norm()
    used = torch.zeros_like(scale, dtype=torch.bool) if start is None else start > 0
    used, weights = _settled(rows, wanted, used)
    rest = wanted - rows[used].T @ weights[used]
    for _ in range(_STEPS):
        slopes = (rows @ rest).masked_fill(used, -torch.inf)
        steepest = slopes.topk(min(_JOIN[0], len(slopes)))
        joining = steepest.indices[steepest.values > _NEARER * length]
        if not len(joining):
            break
        for count in _JOIN:
            tried = used.clone()
            tried[joining[:count]] = True
            tried, found = _settled(rows, wanted, tried, weights if count == 1 else None)
            left = wanted - rows[tried].T @ found[tried]
            if left.norm() < rest.norm() * (1 - 1e-12):
                used, weights, rest = tried, found, left
                break
        else:
            break
    return weights / scale


def _settled(
    rows: Tensor, wanted: Tensor, used: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Those of the used rows (N, M) that stay where negative ones leave, and their weights (N,).

    Args:
        weights: (N,), from which a way without negative weights is taken, so that none leaves that is needed: the slow
            and sure way. None for all at once.
    """
    made = torch.zeros(len(rows), dtype=rows.dtype)
    while used.any():
        own = rows[used]
        factor, failed = torch.linalg.cholesky_ex(own @ own.T)
        if failed:  # columns that are alike
            found = torch.linalg.lstsq(own.T, wanted[:, None], driver="gelsd").solution[:, 0]
        else:
            found = torch.cholesky_solve((own @ wanted)[:, None], factor)[:, 0]
        leaving = found <= 0
        if not bool(leaving.any()):
            made[used] = found
            break
        if weights is not None:
            before, weights = weights[used], weights.clone()
            far = (before / (before - found)).nan_to_num(0.0).where(leaving, torch.inf)
            weights[used] = before + far.min() * (found - before)
            leaving = far <= far.min()
        used = used.clone()
        used[used.nonzero()[:, 0][leaving]] = False
    return used, made
