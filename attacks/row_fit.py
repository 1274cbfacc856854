"""Continuous columns of several rows at once: what leaves a gradient of the rank that the other rows can have.

Rows whose categories are known are taken out of the gradient; the rest is of rank k where k examples are left. So the
continuous columns are fitted until nothing is left beside the k largest directions, whatever the other examples are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.attacks.row_checks import Factors, Network, gradients_of

_STEPS, _ENOUGH = 25, 1e-9
_MOST = 2_000
"""Unknowns of one fit, whose normal equations are solved at once."""


def fitted(
    network: Network, gradients: Sequence[Tensor], rows: Tensor, labels: Tensor, numbers: int, left: int
) -> Tensor:
    """Return rows (m, D) with other numbers in their first columns, by the method of Levenberg and Marquardt.

    Args:
        network: with the weights that were sent.
        gradients: of its layers, sums over the whole batch.
        rows: (m, D). labels: (m,).
        numbers: how many continuous columns come first.
        left: examples of the batch beside these.
    """
    if not len(rows) or not numbers or len(rows) * numbers > _MOST:
        return rows
    sizes = [float(gradient.square().sum()) for gradient in gradients]
    rest, best = _rest(network, gradients, sizes, rows, labels, left)
    damping = 1e-3
    for _ in range(_STEPS):
        square, right = _normal_equations(network, sizes, rest, rows, labels, numbers)
        weight = damping * square.diagonal() + 1e-12 * square.diagonal().max()
        step = torch.linalg.solve_ex(square + torch.diag(weight), right[:, None]).result[:, 0].nan_to_num(0.0)
        moved = rows.clone()
        moved[:, :numbers] = (rows[:, :numbers] + step.reshape(len(rows), numbers)).clamp(0.0, 1.0)
        there, loss = _rest(network, gradients, sizes, moved, labels, left)
        if loss < best:
            done = best - loss < 1e-3 * best and damping <= 1e-3
            rows, rest, best, damping = moved, there, loss, damping / 10
            if done or best < _ENOUGH * _ENOUGH:
                break
        else:
            damping *= 10
            if damping > 1e4:
                break
    return rows


Left = list[tuple[Tensor, Tensor, Tensor]]


def _rest(
    network: Network, gradients: Sequence[Tensor], sizes: Sequence[float], rows: Tensor, labels: Tensor, left: int
) -> tuple[Left, float]:
    """Of each layer what is left beside the largest directions, and projections (o, o) and (i, i) beside them; and the
    whole as a share of the gradient."""
    made, found, total = gradients_of(network.factors(rows, labels)), [], 0.0
    for gradient, own, size in zip(gradients, made, sizes, strict=True):
        columns, values, others = torch.linalg.svd(gradient - own, full_matrices=False)
        columns, others = columns[:, :left], others[:left].mT
        beside = [torch.eye(len(basis)).to(basis) - basis @ basis.mT for basis in (columns, others)]
        found.append((beside[0] @ (gradient - own) @ beside[1], *beside))
        total += float(values[left:].square().sum()) / max(size, 1e-300)
    return found, total


def _normal_equations(
    network: Network, sizes: Sequence[float], rest: Left, rows: Tensor, labels: Tensor, numbers: int
) -> tuple[Tensor, Tensor]:
    """The square matrix (m * C, m * C) and the right side (m * C,) of the step."""
    factors, slopes = network.factors(rows, labels), _slopes(network, rows, labels, numbers)
    total = rows.shape[0] * numbers
    square, right = rows.new_zeros(total, total), rows.new_zeros(total)
    for size, (remaining, columns, others), (errors, inputs), (turned, moved) in zip(
        sizes, rest, factors, slopes, strict=True
    ):
        outer = [(turned, inputs[:, None].expand(-1, numbers, -1)), (errors[:, None].expand(-1, numbers, -1), moved)]
        flat = [((one @ columns).flatten(0, 1), (other @ others).flatten(0, 1)) for one, other in outer]
        for one, other in flat:
            right += ((one @ remaining) * other).sum(1) / max(size, 1e-300)
            for another, beside in flat:
                square += (one @ another.mT) * (other @ beside.mT) / max(size, 1e-300)
    return square, right


def _slopes(network: Network, rows: Tensor, labels: Tensor, numbers: int) -> Factors:
    """Derivatives (m, C, ...) of both factors of each layer by the first columns of their row."""

    def flat(values: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for both in network.factors(values, labels) for part in both)

    found = []
    for column in range(numbers):
        along = torch.zeros_like(rows)
        along[:, column] = 1.0
        found.append(torch.func.jvp(flat, (rows,), (along,))[1])
    stacked = [torch.stack(parts, 1) for parts in zip(*found, strict=True)]
    return list(zip(stacked[::2], stacked[1::2], strict=True))
