"""Batches from the gradient of a first layer with rectified units.

With n examples the gradient of the layer's weights and biases is E X: rank n, where row r of E (units, n) holds what
each example makes of unit r's derivative, zero where it leaves the unit dead, and X (n, D+1) the examples with a one
behind each. A unit that one example alone activates has a row that is that example, up to a factor. Whether it is, the
known weights can tell: they say which units the example would leave dead, and rows of those units must then have a
rank of one less, while every unit that it would activate has a part of it. So examples are found and taken out one by
one, and those of which no unit holds one alone are looked for together (:mod:`harness.attacks.dead_units`).

Numbers are rounded, at the client or by the fixed point of a secure sum. How much, the gradient shows itself: without
rounding it had no singular value beyond the n-th. All that is asked below is asked in units of this noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.attacks.analytic import first_linear
from harness.attacks.dead_units import searched
from harness.base.errors import UsageError
from harness.models import RowModel

_SURE = 4.0
"""Standard deviations of the noise beyond which a number is not taken for it."""
_NOTHING, _MUCH = 25.0, 100.0
"""Mean squares of rows along a direction, in variances of the noise: at most the first where no row has a part of it,
though noise is misjudged once examples were taken out, and at least the second where some have."""
_EDGE = 1.1
"""Times the largest singular value of noise alone, as it is known for large matrices."""
_ROUNDING = 1e-8
"""Of the largest singular value: numbers are never more exact."""
_SLIGHT, _ACCIDENTS = 1e-3, 0.02
"""Of the usual part of an example in a unit that it activates: what is next to none; and how many may have no more."""
_PLAIN = 3.0
"""So many times the noise is the usual part of an example that is plain to see."""
_CHECKED = 2
"""So many dead units more than the rank make its deficiency a proof and no accident."""
_TURNS, _STILL, _RIDGE = 100, 3e-3, 1e-9
"""Most turns of fitting a product to what is known unequally, the share by which a turn has to help, and what keeps a
fit from dividing by nothing."""
_BEARABLE = 70_000
"""Units times examples up to which single ones are looked for."""
_BLURRED = 0.1
"""Angle that noise may turn a row by, above which two that agree say nothing."""


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
            f"attack {attack!r} needs a first layer with rectified units (an nn.ReLU module behind it), which model "
            f"{model.name!r} lacks; use --model mlp2 or another attack"
        )
    return names


def of_rank(gradient: Tensor, exact: Tensor, rank: int) -> Tensor:
    """The matrix (U, k) of that rank that is nearest to a layer's gradient, by how exactly each coordinate is known.

    A step of Adam gives small coordinates away and hides large ones: the product E X fills those in. E and X are fitted
    by turns, each by least squares, from the rank of rows that are weighed as a whole.

    Args:
        gradient: (U, k) float64. exact: (U, k), one over the deviation of each coordinate, in any unit.
        rank: n.
    """
    weights = (exact / exact.max()).square()
    whole = weights.reciprocal().mean(1, keepdim=True).rsqrt()
    basis = torch.linalg.svd(whole * gradient, full_matrices=False).Vh[:rank]
    left, before = gradient.new_zeros(len(gradient), len(basis)), torch.inf
    for _ in range(_TURNS):
        left = _fitted(basis.T, weights, gradient)
        basis = torch.linalg.qr(_fitted(left, weights.T, gradient.T))[0].T
        left = _fitted(basis.T, weights, gradient)
        apart = float((weights * (left @ basis - gradient).square()).sum())
        if apart > (1 - _STILL) * before:
            break
        before = apart
    return left @ basis


def _fitted(columns: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Of rows of values (m, k), each with weights of its own, the coefficients (m, n) of columns (k, n)."""
    rank = columns.shape[1]
    products = (weights @ (columns[:, :, None] * columns[:, None]).flatten(1)).unflatten(1, (rank, rank))
    # A row of which nothing is known has no coefficients.
    ridge = products.diagonal(dim1=1, dim2=2).mean(1) * _RIDGE + 1e-300
    products = products + ridge[:, None, None] * torch.eye(rank).to(products)
    return torch.linalg.solve_ex(products, ((weights * values) @ columns)[..., None]).result[..., 0].nan_to_num(0.0)


@dataclass
class _Rest:
    """What is left of the gradient: rows (U, k) of the examples that are not found yet, in a basis (k, D+1) in which
    the noise on each coordinate has a variance of one; ``sent``: the weights (U, D+1), biases last."""

    rows: Tensor
    basis: Tensor
    sent: Tensor

    @classmethod
    def of(cls, gradient: Tensor, sent: Tensor, examples: int) -> "_Rest":
        """From the gradient (U, D+1) of a layer that ``examples`` passed."""
        left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
        units, columns = gradient.shape
        beyond = max((units - examples) * (columns - examples), 1)
        noise = max(float((sizes[examples:].square().sum() / beyond).sqrt()), _ROUNDING * float(sizes[0]))
        # An example that activates no unit leaves nothing; a matrix of noise alone has no larger singular value.
        rank = min(examples, int((sizes > _EDGE * noise * (units**0.5 + columns**0.5)).sum()))
        return cls(left[:, :rank] * sizes[:rank] / max(noise, 1e-300), noise * right[:rank], sent)

    def speaking(self) -> Tensor:
        """Units (m,) whose rows hold more than noise."""
        rank = self.rows.shape[1]
        return (self.rows.square().sum(1) > rank + 2 * _SURE * (2 * rank) ** 0.5).nonzero()[:, 0]

    def read(self, rows: Tensor) -> Tensor:
        """Rows (..., k) as one example each, (..., D); what has no bias becomes zeros."""
        full = rows @ self.basis
        return (full / full[..., -1:]).nan_to_num(0.0, 0.0, 0.0)[..., :-1]

    def signals(self, rows: Tensor) -> Tensor:
        """What rows (m, k), each read as an example, would make of every unit, (m, U), in standard deviations; no
        number where noise hides which way round the example is."""
        bias, through = self.basis[:, -1], self.basis @ self.sent.T
        brightness = rows @ bias
        known = brightness.abs() > _SURE * bias.norm()
        sign = brightness.sign().where(known, torch.nan)
        return rows @ through * sign[:, None] / through.norm(dim=0)

    def without(self, row: Tensor, away: Tensor, taken: Tensor) -> "_Rest":
        """Without the example that ``row`` (k,) is a multiple of: all other examples are orthogonal to ``away`` (k,),
        a unit vector, along which lies its part (U,) of every row, ``taken`` where there is one."""
        own = row / (row @ away)
        left = self.rows - taken[:, None] * own
        aside = torch.linalg.qr(torch.cat([away[:, None], torch.eye(len(away)).to(away)], 1))[0][:, 1 : len(away)]
        # Noise along ``away`` went out as a multiple of ``own``, so that there is more noise along that now.
        more = own @ aside
        scale = (1 + more @ more) ** 0.5
        along = more / more.norm().clamp_min(1e-300)
        turned, basis = left @ aside, aside.T @ self.basis
        rows = turned + (1 / scale - 1) * (turned @ along)[:, None] * along
        return _Rest(rows, basis + (scale - 1) * along[:, None] * (along @ basis), self.sent)


def peeled(gradient: Tensor, sent: Tensor, examples: int) -> Tensor:
    """The examples (k, D), k <= n, that a layer's gradient gives away.

    Args:
        gradient: (U, D+1) float64, of the units' weights and, last, biases.
        sent: (U, D+1), these weights and biases.
        examples: n.
    """
    rest, alone = _Rest.of(gradient, sent, examples), gradient.new_zeros(0, gradient.shape[1] - 1)
    # Among very many examples hardly one is alone anywhere, and to look for it takes the square of units.
    if rest.rows.numel() <= _BEARABLE:
        alone, rest = _one_by_one(rest)
    together = searched(rest.rows, rest.basis, rest.sent)
    return torch.cat([alone, _repeated(rest, examples - len(alone)) if together is None else together])


def _one_by_one(rest: _Rest) -> tuple[Tensor, _Rest]:
    """Examples (k, D) that some unit holds alone, and what is left without them."""
    found = []
    while rest.rows.shape[1]:
        made = _next(rest)
        if made is None:
            break
        found.append(made[0])
        rest = made[1]
    none = rest.basis.new_zeros(0, rest.basis.shape[1] - 1)
    return torch.stack(found) if found else none, rest


def _next(rest: _Rest) -> tuple[Tensor, _Rest] | None:
    """One example (D,) that the weights confirm, and what is left without it; None where none is confirmed."""
    speaking = rest.speaking()
    rows = rest.rows[speaking]
    if len(rows) == 0:
        return None
    signals = rest.signals(rows)
    active, dead = signals > _SURE, signals < -_SURE
    guesses = (active[:, speaking].diagonal() & _enough(dead[:, speaking], rows.shape[1])).nonzero()[:, 0]
    guessed, active, dead = rows[guesses], active[guesses], dead[guesses]
    away, proven = _proven(guessed, rows, active[:, speaking], dead[:, speaking])
    if not proven.any():
        return None
    # A row that holds a little of another example may leave the same units dead: those that agree hold one alone.
    agreeing = (_alike(guessed) & proven).sum(1).where(proven, 0)
    own = (guessed * away).sum(1).abs()
    chosen = int(own.where(proven & (agreeing == agreeing.max()), -1.0).argmax())
    parts = rest.rows @ away[chosen]
    there = active[chosen] | (~dead[chosen] & (parts.abs() > _SURE))
    return rest.read(guessed[chosen]), rest.without(guessed[chosen], away[chosen], parts.where(there, 0.0))


def _enough(dead: Tensor, rank: int) -> Tensor:
    """Of which guesses (g,) dead units (g, m) could prove that their rank is one less; of a rank of one nothing has to
    be."""
    return (dead.sum(1) >= rank + _CHECKED) | (rank == 1)


def _proven(guessed: Tensor, rows: Tensor, active: Tensor, dead: Tensor) -> tuple[Tensor, Tensor]:
    """The directions (g, k) that no other example has a part in, if guesses (g, k) are one example each, and which are:
    by the units, of rows (m, k), that each would activate or leave dead, (g, m)."""
    rank, silent = rows.shape[1], dead.sum(1)
    # One small matrix per guess: the second moments of the rows that it leaves dead.
    values, vectors = torch.linalg.eigh(torch.einsum("hr,ra,rb->hab", dead.to(rows), rows, rows))
    away = vectors[:, :, 0]
    parts = (away @ rows.T).abs()
    proven = (guessed * away).sum(1).abs() > _SURE
    if rank > 1:
        proven &= values[:, 0] < _NOTHING * silent
        proven &= values[:, 1] > (_MUCH * silent).maximum(_NOTHING * values[:, 0])
    # Every unit that the example would activate must have a part of it. Of a normal law of this median ``usual`` a
    # share of 0.54 * _SURE / usual lies within the noise.
    usual = parts.where(active, torch.nan).nanmedian(1).values
    lacking = ((parts < (_SLIGHT * usual).clamp_min(_SURE)[:, None]) & active).sum(1)
    return away, proven & (usual > _PLAIN * _SURE) & (lacking <= active.sum(1) * (_ACCIDENTS + _SURE / usual))


def _turned(rows: Tensor) -> Tensor:
    """Angles (m,) by which noise turns rows (m, k), at most."""
    return 1.5 * rows.shape[1] ** 0.5 / rows.norm(dim=1)


def _alike(rows: Tensor) -> Tensor:
    """Which rows (m, k) lie along one line, as far as noise can tell: (m, m)."""
    angles, unit = _turned(rows), rows / rows.norm(dim=1, keepdim=True)
    return 1 - (unit @ unit.T).square() < (angles[:, None] + angles).square() + 1e-8


def _repeated(rest: _Rest, count: int) -> Tensor:
    """Up to ``count`` examples (k, D) that nothing confirms, but that several units' rows agree on."""
    rows = rest.rows[rest.speaking()]
    rows = rows[_turned(rows) < _BLURRED]
    alike = _alike(rows)
    agreeing, found = alike.sum(1), []
    while len(found) < count and len(agreeing) and int(agreeing.max()) > 1:
        first = int(agreeing.argmax())
        found.append(first)
        agreeing = agreeing.masked_fill(alike[first], 0)
    return rest.read(rows[found])
