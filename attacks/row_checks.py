"""Checks of one table row against the gradient of a batch, without the other rows of the batch.

The gradient of a linear layer is E^T H: a row of H (n, inputs + 1) is what the layer gets of one example, with a one
behind it for the bias, and a row of E (n, outputs) is the derivative of the loss by what the layer gives. A guess of an
example says both of its rows by the known weights. As long as the layer is wider than the batch, the guess is an
example of the batch only if its row of H lies in the span of the gradient's rows, and its row of E in the span of its
columns. These are hundreds of equations for one guess, and none of them needs the other examples. In array processing
the method is known as MUSIC (Schmidt, "Multiple Emitter Location and Signal Parameter Estimation", 1986).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from harness.base.columns import Columns
from harness.base.errors import UsageError
from harness.models import RowModel

Factors = list[tuple[Tensor, Tensor]]
"""Of each linear layer, derivatives by what it gives (..., outputs), and what it gets with a one behind (..., inputs +
1): the gradient of one example is their outer product."""
Moved = tuple[Tensor, Tensor, Tensor]
"""What a layer gets of guesses (m, D), as a linear function of their numbers: slopes (m, inputs + 1, C), the constant
(m, inputs + 1), and its squared length (m,) at the guess."""

_ACTIVATIONS = (nn.ReLU, nn.Sigmoid, nn.Tanh)
_ROUNDING = 1e-6
"""Of the largest singular value, below which a direction of single precision is noise."""
_EDGE = 1.1
"""Times the largest singular value of noise alone, as it is known for large matrices."""
_PART = 0.1
"""Weight of a check that some examples of the batch fail slightly, as the batch has more rows than dimensions."""
_MOSTLY = 0.9
"""Share of the examples, or of the units, from which a rank counts as that of all of them."""
_LEAST = 1e-9
"""A share below which a check says nothing more."""


@dataclass(frozen=True)
class Network:
    """A fully connected network with known weights: ``layers`` (weight (o, i), bias (o,)), ``activations`` between."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    activations: tuple[nn.Module, ...]
    rough: ClassVar[torch.dtype] = torch.float64
    """The precision in which guesses are compared before the best of them are looked at closely."""

    @classmethod
    def of(cls, model: RowModel, weights: Tensor) -> "Network":
        """Return the network with weights (P,) in double precision; see :func:`layer_names`."""
        named = {name: part.double() for name, part in model.layout.split(weights).items()}
        names = layer_names(model)
        activations = [layer for layer in leaves(model) if isinstance(layer, _ACTIVATIONS)]
        return cls(tuple((named[weight], named[bias]) for weight, bias in names), tuple(activations))

    @property
    def classes(self) -> int:
        """Return how many labels there are."""
        return len(self.layers[-1][1])

    def present(self, first: Tensor, least: float = _ROUNDING) -> Tensor:
        """Return which features (D,) differ from 0 in some example, by the gradient of the first layer: its column is
        0 for the others, or below a share of the largest."""
        sizes = first[:, :-1].abs().amax(0)
        return sizes > least * first.abs().max()

    def without(self, rows: Tensor, labels: Tensor) -> "Network":
        """Return the network as one knows it of a batch without examples (m, D): the same."""
        return self

    def moved(self, rows: Tensor, count: int) -> list[Moved]:
        """Return what the first layers get of guesses (m, D) with other numbers in the first ``count`` features."""
        (weight, bias), activation = self.layers[0], self.activations[0]
        fixed = rows.clone()
        fixed[:, :count] = 0
        same = torch.eye(rows.shape[1] + 1, count).to(rows).expand(len(rows), -1, -1)
        made, slope = _activated(activation, rows @ weight.mT + bias)
        moved = nn.functional.pad(slope[:, :, None] * weight[:, :count], (0, 0, 0, 1))
        rest = with_one(made) - (moved @ rows[:, :count, None])[..., 0]
        return [(same, with_one(fixed), with_one(rows).square().sum(1)), (moved, rest, rest.square().sum(1) + 1)]

    def factors(self, rows: Tensor, labels: Tensor, bends: Sequence[Tensor] | None = None) -> Factors:
        """Return the factors of the gradients of examples (..., D) with labels (...), one gradient each.

        ``bends``: of each hidden layer (..., units), how far its rectified units are on the other side of their kink;
        0 is where they are, 1 the other side.
        """
        values, inputs, slopes = rows, [], []
        for number, (weight, bias) in enumerate(self.layers):
            inputs.append(with_one(values))
            values = before = values @ weight.mT + bias
            if number < len(self.activations):
                values, slope = _activated(self.activations[number], values)
                if bends is not None:
                    other = bends[number] * (1 - 2 * slope)
                    values, slope = values + other * before, slope + other
                slopes.append(slope)
        errors = [values.softmax(-1) - nn.functional.one_hot(labels, values.shape[-1]).to(values)]
        for (weight, _), slope in zip(self.layers[:0:-1], slopes[::-1], strict=True):
            errors.append(errors[-1] @ weight * slope)
        return list(zip(errors[::-1], inputs, strict=True))


def _activated(activation: nn.Module, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values after an activation, and its derivative there."""
    made = activation(values)
    if isinstance(activation, nn.ReLU):
        return made, (values > 0).to(values)
    return made, made * (1 - made) if isinstance(activation, nn.Sigmoid) else 1 - made.square()


def with_one(values: Tensor) -> Tensor:
    """Return values (..., k) with a one behind them, (..., k + 1)."""
    return torch.cat([values, values.new_ones(*values.shape[:-1], 1)], -1)


def leaves(model: RowModel) -> list[nn.Module]:
    """Return the layers of a network that have none within."""
    return [layer for layer in model.plain_module.modules() if not list(layer.children())]


def layer_names(model: RowModel) -> list[tuple[str, str]]:
    """Return the parameter names (weight, bias) of the linear layers of a fully connected network.

    Raises:
        UsageError: it is another network.
    """
    found = leaves(model)
    found = found[1:] if isinstance(found[0], nn.Flatten) else found
    alternate = all(isinstance(layer, _ACTIVATIONS if place % 2 else nn.Linear) for place, layer in enumerate(found))
    names = [
        (f"{name}.weight", f"{name}.bias")
        for name, layer in model.plain_module.named_modules()
        if isinstance(layer, nn.Linear) and layer.bias is not None
    ]
    whole = {name for both in names for name in both} == set(model.layout.names)
    connected = isinstance(model.plain_module, nn.Sequential) and alternate and whole
    if not (connected and len(found) % 2 and len(names) > 1):
        raise UsageError(
            f"attack 'rows' needs a fully connected network with a hidden layer, biases, and ReLU, sigmoid or tanh "
            f"between its layers, which model {model.name!r} is not; use --model mlp2 or another attack"
        )
    return names


@dataclass(frozen=True)
class Spans:
    """The spans of a layer's gradient: ``columns`` (outputs, r) and ``rows`` (inputs + 1, r), orthonormal; ``inverse``
    (inputs + 1, outputs) its pseudoinverse; ``alive``: units whose gradient is not 0."""

    columns: Tensor
    rows: Tensor
    inverse: Tensor
    alive: int

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return self.rows.shape[1]

    @classmethod
    def of(cls, gradient: Tensor, examples: int, noise: float) -> "Spans":
        """Return the spans of a gradient (outputs, inputs + 1) of so many examples. Singular values up to ``noise`` say
        nothing."""
        left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
        least = max(_ROUNDING * float(sizes[0]), noise)
        rank = max(1, min(examples, int((sizes > least).sum())))
        columns, rows = left[:, :rank], right[:rank].mT
        alive = int((gradient.abs().amax(1) > least / 10).sum())
        return cls(columns, rows, rows / sizes[:rank].clamp_min(1e-300) @ columns.mT, alive)

    def outside(self, errors: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the shares (...) of squared lengths of derivatives and inputs that lie outside of the spans."""
        return _outside(errors, self.columns), _outside(inputs, self.rows)

    def part(self, errors: Tensor, inputs: Tensor) -> Tensor:
        """Return how often (...) the outer product of such factors is in the gradient: 1 for an example of the batch
        where the rank is that of the batch, below 0 where its label is another."""
        return ((inputs @ self.inverse) * errors).sum(-1)


def _outside(values: Tensor, basis: Tensor) -> Tensor:
    length = values.square().sum(-1).clamp_min(1e-30)
    return 1 - (values @ basis).square().sum(-1) / length


def noise_of(gradient: Tensor, examples: int) -> float:
    """Return the largest singular value of the noise on a gradient (outputs, inputs + 1), as far as it shows beyond the
    rank of so many examples; 0 where they leave no room for it."""
    outputs, inputs = gradient.shape
    beyond = max(outputs - examples, 0) * max(inputs - examples, 0)
    if not beyond:
        return 0.0
    sizes = torch.linalg.svdvals(gradient)[examples:]
    return _EDGE * float((sizes.square().sum() / beyond).sqrt()) * (outputs**0.5 + inputs**0.5)


class Checks:
    """Checks of one guess at a time against a gradient, of which some rows may have been taken out.

    Args:
        network: with the weights that were sent.
        gradients: of its linear layers (outputs, inputs + 1), sums over the examples that are left.
        examples: how many are left.
        columns: what the features mean.
        noise: of each layer, the singular values up to which its gradient says nothing.
    """

    def __init__(
        self, network: Network, gradients: Sequence[Tensor], examples: int, columns: Columns, noise: Sequence[float]
    ) -> None:
        self.network, self.columns, self.examples = network, columns, examples
        self.spans = [
            Spans.of(gradient, examples, level) for gradient, level in zip(gradients[:-1], noise, strict=False)
        ]
        most = max(spans.rank for spans in self.spans)
        # Of fewer dimensions than examples, derivatives of no example need lie in the columns.
        self.weights = [1.0 if spans.rank in (most, examples) else _PART for spans in self.spans]
        widest = max(self.spans, key=lambda spans: spans.rank)
        self.settled = widest.rank >= _MOSTLY * examples or widest.rank <= _MOSTLY * widest.alive
        self.first = gradients[0]

    @property
    def classes(self) -> int:
        """Return how many labels there are."""
        return self.network.classes

    @property
    def present(self) -> Tensor:
        """Return which features (D,) differ from 0 in some example."""
        return self.network.present(self.first)

    def score(self, rows: Tensor, labels: Tensor, strictly: bool = False) -> Tensor:
        """Return how far (...) guesses (..., D) with labels (...) are from being in the batch; ``strictly``, by those
        checks alone that none of its examples fails."""
        total = rows.new_zeros(rows.shape[:-1])
        for spans, weight, (errors, inputs) in zip(self.spans, self.weights, self.factors(rows, labels), strict=False):
            beside, out = spans.outside(errors, inputs)
            total = total + out.clamp_min(_LEAST)
            if weight == 1.0 or not strictly:
                total = total + weight * beside.clamp_min(_LEAST)
        return total

    def factors(self, rows: Tensor, labels: Tensor) -> Factors:
        """Return the factors of guesses."""
        return self.network.factors(rows, labels)

    def part(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return how often (...) each guess is in the gradient, by the layer of the largest rank."""
        best = max(range(len(self.spans)), key=lambda place: self.spans[place].rank)
        return self.spans[best].part(*self.factors(rows, labels)[best])

    def numbers(self, rows: Tensor, usual: Tensor, ridge: float) -> Tensor:
        """Return guesses (m, D) with other numbers in the continuous columns: those of the least squares outside of
        the layers' rows while what they get is linear in the numbers, drawn to ``usual`` (C,) by a ridge."""
        count = len(self.columns.continuous)
        square = ridge * torch.eye(count).to(rows).expand(len(rows), -1, -1)
        right = ridge * usual.expand(len(rows), -1)
        for (slopes, constant, size), spans in zip(self.network.moved(rows, count), self.spans, strict=False):
            beside = slopes - spans.rows @ (spans.rows.mT @ slopes)
            square = square + beside.mT @ beside / size[:, None, None]
            right = right - (beside.mT @ constant[..., None])[..., 0] / size[:, None]
        solved = torch.linalg.solve_ex(square, right[..., None]).result[..., 0].nan_to_num(0.0)
        return torch.cat([solved.clamp(0.0, 1.0), rows[:, count:]], 1)

    def alternatives(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield, column by column, guesses (m, k, D) that differ from guesses (m, D) in a categorical column alone."""
        present = self.present
        for group, place in zip(self.columns.groups, self.columns.slices, strict=True):
            blank = rows.clone()
            blank[:, place] = 0
            chosen = present[place].nonzero()[:, 0] + place.start
            there = blank[:, None].repeat(1, len(chosen), 1)
            there[:, torch.arange(len(chosen)), chosen] = 1.0
            yield torch.cat([there, blank[:, None]], 1) if group.optional else there

    def neighbours(self, rows: Tensor) -> Tensor:
        """Return guesses (m, k, D) that differ from guesses (m, D) in at most one categorical column."""
        return torch.cat([rows[:, None], *self.alternatives(rows)], 1)


def descended(checks: Checks, rows: Tensor, labels: Tensor, usual: Tensor, sweeps: int = 12) -> tuple[Tensor, Tensor]:
    """Return guesses (m, D) and their scores (m,) after one categorical column at a time was set to its best category,
    until none helps."""
    rows = checks.numbers(rows, usual, 1e-2)
    score, moved = checks.score(rows, labels), torch.arange(len(rows), device=rows.device)
    for _ in range(sweeps):
        nearby = checks.neighbours(rows[moved])
        roughly = nearby.to(checks.network.rough)
        best, place = checks.score(roughly, labels[moved][:, None].expand(-1, nearby.shape[1])).min(1)
        better = (place > 0) & (best < score[moved] * (1 - 1e-5))
        moved = moved[better]
        if not len(moved):
            break
        rows[moved], score[moved] = nearby[better, place[better]], best[better]
        rows, score = _renumbered(checks, rows, labels, score, usual, 1e-3, moved)
    every = torch.arange(len(rows), device=rows.device)
    for ridge in (1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-10):
        rows, score = _renumbered(checks, rows, labels, score, usual, ridge, every)
    return rows, score


def _renumbered(
    checks: Checks, rows: Tensor, labels: Tensor, score: Tensor, usual: Tensor, ridge: float, some: Tensor
) -> tuple[Tensor, Tensor]:
    """Some guesses with better numbers where there are any."""
    tried = checks.numbers(rows[some], usual, ridge)
    made = checks.score(tried, labels[some])
    better = made < score[some]
    rows, score = rows.clone(), score.clone()
    rows[some[better]], score[some[better]] = tried[better], made[better]
    return rows, score


def gradients_of(factors: Factors) -> list[Tensor]:
    """Return the gradients (outputs, inputs + 1) of the layers, sums over examples with factors (m, ...)."""
    return [errors.mT @ inputs for errors, inputs in factors]


# --------------------------------------------------------------------------------------
# Continuous columns of several rows at once: what leaves a gradient of the rank that the other rows can have.
#
# Rows whose categories are known are taken out of the gradient; the rest is of rank k where k examples are left. So the
# continuous columns are fitted until nothing is left beside the k largest directions, whatever the other examples are.
# The loss is smooth but for the kinks of rectified units. While the columns are not exact, units near their kink may be
# on the wrong side; each of these is an unknown of its own, so that it misleads the columns no more.


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
    """Return the row (U,) that each unknown belongs to, and the derivatives (U, ...) of that row's factors.

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
    """Return for each hidden layer the units (k, 2), by row and number, that may be on the wrong side. Only some rows
    (m,) count."""
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
