"""Batches from the gradient of a first layer with rectified units: examples are found and taken out one by one.

With n examples the gradient of the layer's weights and biases is E X: rank n, where row r of E (units, n) holds what
each example makes of unit r's derivative, zero where it leaves the unit dead, and X (n, D+1) the examples with a one
behind each. A unit that one example alone activates has a row that is that example, up to a factor. Whether it is, the
known weights can tell: they say which units the example would leave dead, and rows of those units must then have a
rank of one less, while every unit that it would activate has a part of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.attacks.analytic import first_linear
from harness.errors import UsageError
from harness.models import RowModel

_SILENT = 1e-5
"""Rows so much smaller than the largest hold rounding errors only."""
_DEFICIENT, _FULL = 1e-4, 1e-3
"""Singular values, per root of rows of unit length, below which a rank is one less, and above which it is not."""
_ALIKE = 1e-4
_CHECKED = 2
"""So many dead units more than the rank make its deficiency a proof and no accident."""


def rectified_layer(model: RowModel, attack: str) -> tuple[str, str]:
    """Parameter names of the weight and bias of a first linear layer whose units are rectified.

    Raises:
        UsageError: the network begins otherwise.
    """
    names = first_linear(model, attack)
    leaves = [layer for layer in model.plain_module.modules() if not list(layer.children())]
    first = next(place for place, layer in enumerate(leaves) if isinstance(layer, nn.Linear))
    if not any(isinstance(layer, nn.ReLU) for layer in leaves[first + 1 : first + 2]):
        raise UsageError(
            f"attack {attack!r} needs a first layer with rectified units (ReLU), which model "
            f"{model.name!r} lacks; use --model mlp2 or another attack"
        )
    return names


@dataclass
class _Rest:
    """What is left of the gradient: rows (U, k) in a basis (k, D+1), of the examples that are not found yet."""

    rows: Tensor
    basis: Tensor
    sent: Tensor
    largest: float

    @classmethod
    def of(cls, gradient: Tensor, sent: Tensor, examples: int) -> "_Rest":
        """From the gradient and the weights (U, D+1), biases last, of a layer that ``examples`` passed."""
        left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
        # An example that activates no unit leaves nothing.
        rank = min(examples, int((sizes > _SILENT * sizes[0]).sum()))
        rows = left[:, :rank] * sizes[:rank]
        return cls(rows, right[:rank], sent, _largest(rows))

    def whitened(self) -> tuple[Tensor, Tensor, Tensor]:
        """Units that say something (m,), their rows (m, k) of unit length, and the basis (k, D+1) to read them in."""
        left, sizes, right = torch.linalg.svd(self.rows, full_matrices=False)
        rank = self.rows.shape[1]
        speaking = (self.rows.norm(dim=1) > _SILENT * self.largest).nonzero()[:, 0]
        rows = left[speaking, :rank]
        return speaking, rows / rows.norm(dim=1, keepdim=True), sizes[:rank, None] * right[:rank] @ self.basis


def peeled(gradient: Tensor, sent: Tensor, examples: int) -> Tensor:
    """The examples (k, D), k <= n, that a layer's gradient gives away.

    Args:
        gradient: (U, D+1) float64, of the units' weights and, last, biases.
        sent: (U, D+1), these weights and biases.
        examples: n.
    """
    rest, found = _Rest.of(gradient, sent, examples), []
    while rest.rows.shape[1] and len(found) < examples:
        made = _next(rest)
        if made is None:
            break
        found.append(made[0])
        rest = made[1]
    width = gradient.shape[1] - 1
    alone = torch.stack(found) if found else gradient.new_zeros(0, width)
    return torch.cat([alone, _repeated(rest, examples - len(found))]) if len(found) < examples else alone


def _next(rest: _Rest) -> tuple[Tensor, _Rest] | None:
    """One example (D,) that the weights confirm, and what is left without it; None where none is confirmed."""
    speaking, rows, basis = rest.whitened()
    rank = rows.shape[1]
    if len(speaking) == 0:
        return None
    # What each row, read as an example, would make of every unit: the examples themselves are many, and large.
    signals = rows @ (basis @ rest.sent.T) * (rows @ basis[:, -1:]).sign() > 0
    active = signals[:, speaking]
    dead = (~active).to(rows)
    # One small matrix per guess: the second moments of the rows that it leaves dead.
    moments = torch.einsum("hr,ra,rb->hab", dead, rows, rows)
    values, vectors = torch.linalg.eigh(moments)
    counted = dead.sum(1)
    singular = (values.clamp_min(0) / counted.clamp_min(1)[:, None]).sqrt()
    proven = (counted >= rank + _CHECKED) & (singular[:, 0] < _DEFICIENT) & active.diagonal()
    if rank > 1:
        # Every unit that the example would activate must have a part of it, and no other unit has.
        parts = (vectors[:, :, 0] @ rows.T).abs()
        proven &= (singular[:, 1] > _FULL) & ((parts > _SILENT) | ~active).all(1)
    else:
        proven = active.diagonal()
    if not proven.any():
        return None
    # A row that holds a little of another example may leave the same units dead: those that agree hold one alone.
    agreeing = _alike(rows).sum(1).where(proven, 0)
    chosen = int(singular[:, 0].where(proven & (agreeing == agreeing.max()), torch.inf).argmin())
    # Rows that this example has no part in are orthogonal to ``away``; along it lies its part in every other.
    away = vectors[chosen, :, 0]
    own = rows[chosen] / (rows[chosen] @ away)
    left, _, _ = torch.linalg.svd(rest.rows, full_matrices=False)
    share = (left[:, :rank] @ away).where(signals[chosen], 0.0)
    remaining = left[:, :rank] - share[:, None] * own
    units, sizes, directions = torch.linalg.svd(remaining, full_matrices=False)
    kept = units[:, : rank - 1] * sizes[: rank - 1]
    return _examples(rows[chosen], basis)[:-1], _Rest(kept, directions[: rank - 1] @ basis, rest.sent, _largest(kept))


def _largest(rows: Tensor) -> float:
    return float(rows.norm(dim=1).max()) if rows.numel() else 0.0


def _alike(rows: Tensor) -> Tensor:
    """Which rows (m, k) of unit length lie along one line: (m, m)."""
    return (rows @ rows.T).abs() > 1 - _ALIKE**2


def _examples(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows (..., k) read as one example each, (..., D+1) with a one behind; what has no bias becomes zeros."""
    read = rows @ basis
    return (read / read[..., -1:]).nan_to_num(0.0, 0.0, 0.0)


def _repeated(rest: _Rest, count: int) -> Tensor:
    """Up to ``count`` examples (k, D) that nothing confirms, but that several units' rows agree on."""
    width = rest.basis.shape[1] - 1
    if not rest.rows.shape[1]:
        return rest.basis.new_zeros(0, width)
    _, rows, basis = rest.whitened()
    alike = _alike(rows)
    agreeing, found = alike.sum(1), []
    while len(found) < count and len(agreeing) and int(agreeing.max()) > 1:
        first = int(agreeing.argmax())
        found.append(first)
        agreeing = agreeing.masked_fill(alike[first], 0)
    return _examples(rows[found], basis)[:, :-1] if found else rest.basis.new_zeros(0, width)
