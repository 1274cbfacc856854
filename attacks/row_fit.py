"""Continuous columns of several rows at once: what leaves a gradient of the rank that the other rows can have.

Rows whose categories are known are taken out of the gradient; the rest is of rank k where k examples are left. So the
continuous columns are fitted until nothing is left beside the k largest directions, whatever the other examples are.
The loss is smooth but for the kinks of rectified units. While the columns are not exact, units near their kink may be
on the wrong side; each of these is an unknown of its own, so that it misleads the columns no more.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.attacks.row_checks import Factors, Network, gradients_of

_BENT = 0.3
"""Of the usual size of what a layer gives, below which a unit may be on the wrong side of its kink."""
_MOST, _MOST_BENT = 2_500, 1_500
"""Unknowns of one fit, whose normal equations are solved at once: columns, and units near their kink."""
_DAMPED, _HOPELESS = 1e-2, 1e4
"""Damping of steps with such units, and the damping that ends a fit, in shares of the diagonal."""
_SMALL = 1e-6
"""Step of a difference in the place of a derivative: nearly all is linear between kinks."""
_SOLVED = 1e-13
"""Share of the gradient's squares that rounding leaves."""


@dataclass(frozen=True)
class Batch:
    """The gradients of a network's layers, sums over a batch."""

    network: Network
    gradients: tuple[Tensor, ...]

    def without(self, rows: Tensor, labels: Tensor) -> list[Tensor]:
        """Return the gradients without examples (m, D)."""
        made = gradients_of(self.network.factors(rows, labels))
        return [gradient - own for gradient, own in zip(self.gradients, made, strict=True)]

    def sizes(self) -> list[float]:
        """Return the sums of squares of the gradients."""
        return [max(float(gradient.square().sum()), 1e-300) for gradient in self.gradients]

    def unexplained(self, rows: Tensor, labels: Tensor, left: int) -> float:
        """Return what of the gradient is neither of examples (m, D) nor of a rank of ``left``, as a share."""
        rest = self.without(rows, labels)
        sizes = (torch.linalg.svdvals(part)[left:].square().sum() for part in rest)
        return sum(float(beyond) / size for beyond, size in zip(sizes, self.sizes(), strict=True))


def fitted(batch: Batch, rows: Tensor, labels: Tensor, free: Tensor, left: int, steps: int = 12) -> Tensor:
    """Return rows (m, D) with other free features, of the least that is unexplained; every unit is on its side.

    Args:
        batch: the network and its gradients.
        rows: (m, D). labels: (m,).
        free: (m, D), which features are unknown.
        left: examples of the batch beside these.
        steps: of the method of Levenberg and Marquardt.
    """
    least, damping = batch.unexplained(rows, labels, left), 1e-3
    for _ in range(steps if 0 < int(free.sum()) <= _MOST else 0):
        if least < _SOLVED or damping > _HOPELESS:
            break
        moved = _step(batch, rows, labels, free, left, 0.0, damping)
        loss = batch.unexplained(moved, labels, left)
        damping = damping / 10 if loss < least else damping * 10
        if loss < least:
            rows, least = moved, loss
    return rows


def bent(batch: Batch, rows: Tensor, labels: Tensor, free: Tensor, steps: int) -> Tensor:
    """Return rows (m, D), all of a batch, with other free features, while units near their kink may be on either side.

    Each step is kept, as the loss without such units says little yet.

    Args:
        batch: the network and its gradients.
        rows: (m, D). labels: (m,).
        free: (m, D), which features are unknown.
        steps: of the method of Gauss and Newton.
    """
    for _ in range(steps if 0 < int(free.sum()) <= _MOST else 0):
        if batch.unexplained(rows, labels, 0) < _SOLVED:
            break
        rows = _step(batch, rows, labels, free, 0, _BENT, _DAMPED)
    return rows


def _step(batch: Batch, rows: Tensor, labels: Tensor, free: Tensor, left: int, bent: float, damping: float) -> Tensor:
    """Rows after one step of the method of Gauss and Newton, damped as Levenberg and Marquardt do."""
    owners, terms = _slopes(batch.network, rows, labels, free, bent)
    known = batch.network.factors(rows, labels)
    square, right = rows.new_zeros(len(owners), len(owners)), rows.new_zeros(len(owners))
    for gradient, size, factors, moved in zip(batch.without(rows, labels), batch.sizes(), known, terms, strict=True):
        columns, _, others = torch.linalg.svd(gradient, full_matrices=False)
        columns, others = columns[:, :left], others[:left].mT
        rest = _beside(_beside(gradient.mT, columns).mT, others)
        sides = ((moved[0], factors[1][owners]), (factors[0][owners], moved[1]))
        flat = [(_beside(one, columns), _beside(other, others)) for one, other in sides]
        for one, other in flat:
            right += ((one @ rest) * other).sum(1) / size
            for another, beside in flat:
                square += (one @ another.mT) * (other @ beside.mT) / size
    diagonal = square.diagonal()
    weight = damping * diagonal + 1e-12 * diagonal.max()
    step = torch.linalg.solve_ex(square + torch.diag(weight), right[:, None]).result[:, 0].nan_to_num(0.0)
    moved_rows = rows.clone()
    moved_rows[free] = (rows[free] + step[: int(free.sum())]).clamp(0.0, 1.0)
    return moved_rows


def _beside(values: Tensor, basis: Tensor) -> Tensor:
    """Values (k, d) without their parts along orthonormal columns (d, r)."""
    return values - (values @ basis) @ basis.mT


def _slopes(network: Network, rows: Tensor, labels: Tensor, free: Tensor, bent: float) -> tuple[Tensor, Factors]:
    """Of each unknown the row (U,) that it belongs to, and the derivatives (U, ...) of that row's factors.

    The first m * C unknowns are the continuous columns, those behind them units near their kink.
    """
    owners, columns = free.nonzero().unbind(1)
    near = _near_kinks(network, rows, free.any(1), bent)
    owners = torch.cat([owners, *(place[:, 0] for place in near)])
    along = torch.zeros(len(owners), rows.shape[1]).to(rows)
    along[torch.arange(len(columns)), columns] = 1.0
    turned, first = [rows.new_zeros(len(owners), len(weight)) for weight, _ in network.layers[:-1]], len(columns)
    for part, place in zip(turned, near, strict=True):
        part[torch.arange(first, first + len(place)), place[:, 1]] = 1.0
        first += len(place)

    here, own = rows[owners], labels[owners]
    moved = network.factors(here + _SMALL * along, own, [_SMALL * part for part in turned])
    return owners, [
        ((one - before) / _SMALL, (other - same) / _SMALL)
        for (one, other), (before, same) in zip(moved, network.factors(here, own), strict=True)
    ]


def _near_kinks(network: Network, rows: Tensor, some: Tensor, bent: float) -> list[Tensor]:
    """Of each hidden layer the units (k, 2), by row and number, that may be on the wrong side in some rows (m,)."""
    found, values = [], rows
    for (weight, bias), activation in zip(network.layers[:-1], network.activations, strict=True):
        before = values @ weight.mT + bias
        values = activation(before)
        distance = (before.abs() / before.std().clamp_min(1e-30)).where(some[:, None], torch.inf)
        if not bent or not isinstance(activation, nn.ReLU):
            found.append(torch.zeros(0, 2, dtype=torch.long, device=rows.device))
            continue
        most = _MOST_BENT // max(1, len(network.activations))
        reach = distance.flatten().sort().values[min(most, distance.numel()) - 1]
        found.append((distance < min(bent, float(reach))).nonzero())
    return found
