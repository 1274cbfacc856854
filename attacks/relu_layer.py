"""Batches from the gradient of a first layer with rectified units.

With n examples the gradient of the layer's weights and biases is E X: rank n, where row r of E (units, n) holds what
each example makes of unit r's derivative, zero where it leaves the unit dead, and X (n, D+1) the examples with a one
behind each. A unit that one example alone activates has a row that is that example, up to a factor. Whether it is, the
known weights can tell: they say which units the example would leave dead, and rows of those units must then have a
rank of one less, while every unit that it would activate has a part of it. So examples are found and taken out one by
one, and those of which no unit holds one alone are looked for together, by a search (below).

Numbers are rounded, at the client or by the fixed point of a secure sum. How much, the gradient shows itself: without
rounding it had no singular value beyond the n-th. All that is asked below is asked in units of this noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.attacks.analytic import first_linear
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
"""So many times the noise is the usual part of an example that is plain to see, and what a living unit usually has in
the search."""
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
    """Return the coefficients (m, n) of columns (k, n) that fit rows of values (m, k), each with weights of its own."""
    rank = columns.shape[1]
    products = (weights @ (columns[:, :, None] * columns[:, None]).flatten(1)).unflatten(1, (rank, rank))
    # A row of which nothing is known has no coefficients.
    ridge = products.diagonal(dim1=1, dim2=2).mean(1) * _RIDGE + 1e-300
    products = products + ridge[:, None, None] * torch.eye(rank).to(products)
    return torch.linalg.solve_ex(products, ((weights * values) @ columns)[..., None]).result[..., 0].nan_to_num(0.0)


@dataclass
class _Rest:
    """Rest of the gradient: rows (U, k) of the examples that are not found yet, in a basis (k, D+1) in which the noise
    on each coordinate has a variance of one; ``sent``: the weights (U, D+1), biases last."""

    rows: Tensor
    basis: Tensor
    sent: Tensor

    @classmethod
    def of(cls, gradient: Tensor, sent: Tensor, examples: int) -> "_Rest":
        """Return the rest at the beginning, from the gradient (U, D+1) of a layer that ``examples`` passed."""
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
        """Return what rows (m, k), each read as an example, would make of every unit, (m, U), in standard deviations;
        no number where noise hides which way round the example is."""
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
    """Return for which guesses (g,) the dead units (g, m) could prove that their rank is one less. A rank of one needs
    no proof."""
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
    """Return which rows (m, k) lie along one line, as far as noise can tell: (m, m)."""
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


# --------------------------------------------------------------------------------------
# Large batches by the units that each example leaves dead: a search from many starts.
#
# Rows of a rectified layer's gradient are E X. In a basis of its rank it is B = E C, with C (n, n) unknown: for the
# column m of C's inverse that belongs to an example, B m is that example's column of E, zero for each unit that it
# leaves dead. About half of all units are dead for one example, and these are far more than n, so a direction is
# determined by a rough guess of them. A guess comes from both sides by turns: the units along which the direction has
# least, and the units that an example would leave dead which fits this pattern best, by the known weights. Where both
# agree the zeros are exact, and no other direction has so many. The next examples are looked for among those that have
# no part in the directions found.
#
# The directions are those of sparse dictionary learning, which Bakarsky et al., "SPEAR++" (2025), use by its general
# solvers; that the weights, which the server knows, complete a guess is ours.


_DEAD, _SURELY = 0.5, (0.47, 0.4)
"""Share of units that are guessed dead, as of random weights half are; and of those that settle it, none of which may
be alive."""
_FEWEST = 8
"""Examples up to which some unit holds each alone, if noise does not hide it from a search too."""
_APT = 0.25
"""Share of units that are alive, and dead, for examples on the whole: of fewer, single ones are alone in some unit."""
_STARTS, _FRUITLESS, _HOPELESS = 32, 12, 1
"""Guesses side by side, how many rounds of them may bring nothing new, and how many nothing at all."""
_GUESSING, _SETTLING = 40, 20
"""Turns of a guess between weights and gradient, and of the gradient alone after that."""
_FIRST, _LAST = 0.1, 1.0
"""How much the gradient counts in the first turn and in the last, and the weights one: what a direction has of a unit
is worth little before the direction is nearly right."""
_SPARE, _LEAST = 20, 0.25
"""Zeros more than the rank, and share of all units, below which they could be chance."""
_ABSENT, _FEW, _GAP = 25.0, 50, 0.3
"""Mean square of units along a direction, in variances of the noise, up to which they have none of it; how many units
may stand against that; and how much less than along others there has to be, for them to be looked for."""
_SEPARATED = 0.75
"""Share of units that a linear fit has to get right: about 0.9 where an example is behind it, and 0.6 where none is."""
_SMALL_RIDGE = 1e-9
"""Share of the usual that is added, so that nothing is divided by zero."""
_INVERSE = 6
"""Steps of the inverse iteration; no decomposition is needed for what the next turn refines."""
_ALIKE = 1e-3
"""Sine of the angle between directions below which they are one."""
_AGREED = 0.95
"""Share of units of which zeros and weights must say the same."""


def searched(rows: Tensor, basis: Tensor, sent: Tensor) -> Tensor | None:
    """The examples (n, D) whose mixtures, a one behind each, are the rows of a layer's gradient; None where not all are
    found.

    Args:
        rows: (U, n) float64, in a basis (n, D+1) in which the noise on each coordinate has a variance of one.
        sent: (U, D+1), the units' weights and, last, biases.
    """
    rank = rows.shape[1]
    if rank <= _FEWEST or len(rows) < 2 * (rank + _SPARE):
        return None
    bright = (rows * (rows @ basis[:, -1:]).sign()).sum(0) @ basis  # about the sum of all examples
    if not _APT < float((sent @ bright < 0).double().mean()) < 1 - _APT:
        return None
    search, fruitless = _Search(rows, basis, sent), 0
    generator = torch.Generator().manual_seed(0)  # any starts will do, and equal ones give equal results
    while fruitless < (_FRUITLESS if len(search.found) else _HOPELESS):
        before = len(search.found)
        search.look(torch.randn(_STARTS, rank, generator=generator, dtype=rows.dtype).to(rows))
        if len(search.found) == rank:
            examples = search.examples()
            if examples is not None:
                return examples[:, :-1]
        fruitless = 0 if len(search.found) > before else fruitless + 1
    return None


class _Search:
    """The directions ``found`` (k, n), in the units of ``rows``, and what they leave."""

    def __init__(self, rows: Tensor, basis: Tensor, sent: Tensor) -> None:
        self.rows, self.basis, self.sent = rows, basis, sent
        # White: each direction has as much of all units together, and what it has of dead ones can be compared.
        self.white, self.sizes, self.turn = torch.linalg.svd(rows, full_matrices=False)
        # By an orthonormal basis of the span of examples, each unit's weights.
        self.span, self.upper = torch.linalg.qr(basis.T)
        self.weights = sent @ self.span
        self.found = rows.new_zeros(0, rows.shape[1])
        # Found directions and, behind them, what is orthogonal to them, in the white basis.
        self.apart = torch.eye(rows.shape[1]).to(rows)
        # With found directions set aside, examples much like them are found too, but a guess has to be better. So this
        # is done in every other look.
        self.aside = True

    def look(self, starts: Tensor) -> None:
        """Find more directions from starts (S, n), standard normal."""
        rank, self.aside = self.rows.shape[1], not self.aside
        free = self._free()
        weights = self.weights @ free
        fitted = torch.linalg.pinv(weights)
        # In mixtures as the gradient has them; a bright example and no negative.
        guess = (starts * self.sizes) @ self.turn @ self.upper.T @ free
        guess = guess * (guess @ free.T @ self.span[-1]).sign()[:, None]
        dead = _lowest(guess @ weights.T)
        for turn in range(_GUESSING):
            small = _ranks((self._directions(dead) @ self.white.T).abs())
            by_weights = _ranks(small @ fitted.T @ weights.T)
            trust = _FIRST + (_LAST - _FIRST) * turn / _GUESSING
            dead = _lowest(by_weights if turn == 0 else trust * small + by_weights)
        # Nearly as many zeros as an example has: where two are alike, fewer are zeros of their mixtures too.
        for share in _SURELY:
            if len(self.found) == rank:
                break
            dead = self._settled(dead, share)
            for white in self._directions(dead):
                self._keep((white / self.sizes) @ self.turn)

    def _settled(self, dead: Tensor, share: float) -> Tensor:
        """Dead units (S, U), a share of all, that are those along whose direction they have least."""
        for _ in range(_SETTLING):
            before, dead = dead, _lowest((self._directions(dead) @ self.white.T).abs(), share)
            if bool((before == dead).all()):
                break
        return dead

    def _free(self) -> Tensor:
        """An orthonormal basis (n, f), in the span of examples, of those that no direction found has a part in."""
        rank = self.rows.shape[1]
        every = torch.eye(rank).to(self.rows)
        if len(self.found) == 0:
            return every
        taken = torch.linalg.solve_triangular(self.upper.T, self.found.T, upper=False)
        return torch.linalg.qr(torch.cat([taken, every], 1))[0][:, len(self.found) : rank]

    def _directions(self, dead: Tensor) -> Tensor:
        """White directions (S, n), along which dead units (S, U) have least; found ones may be set aside."""
        moments = torch.stack([self.white[own].T @ self.white[own] for own in dead])
        known, rank = len(self.found), self.rows.shape[1]
        if known == 0 or not self.aside:
            return _least(moments)[..., 0]
        # Any mixture of found directions is added for free, the one that gives the least; only the rest has a length.
        turned = self.apart.T @ moments @ self.apart
        inner = turned[:, :known, :known] + _SMALL_RIDGE * torch.eye(known).to(turned)
        added = -torch.linalg.solve(inner, turned[:, :known, known:])
        left = turned[:, known:, known:] + turned[:, known:, :known] @ added
        new = _least((left + left.mT) / 2)
        return (torch.cat([added @ new, new], 1)[..., 0] @ self.apart.T).reshape(-1, rank)

    def _keep(self, direction: Tensor) -> None:
        """Keep what a direction (n,) leads to, if its zeros are no accident and it is new."""
        zeros = self._zeros(direction)
        while zeros is not None:
            direction, before = self._better(zeros), zeros
            zeros = self._zeros(direction)
            if zeros is None or int(zeros.sum()) <= int(before.sum()):
                break
        rank = self.rows.shape[1]
        new = len(self.found) < rank and bool((1 - (self.found @ direction).square() > _ALIKE**2).all())
        if zeros is not None and new and self._separates(zeros):
            self.found = torch.cat([self.found, direction[None]])
            white = (self.found @ self.turn.T) * self.sizes
            self.apart = torch.linalg.qr(torch.cat([white.T, torch.eye(rank).to(white)], 1))[0][:, :rank]

    def _separates(self, zeros: Tensor) -> bool:
        """Return whether some example would leave nearly these units (U,) dead."""
        living = 1 - 2 * zeros.to(self.rows)
        fitted = self.weights @ torch.linalg.lstsq(self.weights, living[:, None]).solution[:, 0]
        return float((fitted * living > 0).double().mean()) > _SEPARATED

    def _better(self, zeros: Tensor) -> Tensor:
        """A unit vector (n,) that is zero for units (U,), as one direction is, and for more if any can be.

        Of examples that are much alike each mixture is zero for all units that are dead for all of them, and few others
        tell them apart. One of two such mixtures is zero for more than others: an example, or a mixture of fewer.
        """
        kept, white = self.rows[zeros], self.white[zeros]
        only, least = torch.linalg.eigh(kept.T @ kept)[1][:, 0], torch.linalg.eigvalsh(white.T @ white)
        if len(least) > 2 and float(least[1]) > _GAP * float(least[2]):
            return only
        for _ in range(_FEW):
            values, vectors = torch.linalg.eigh(kept.T @ kept)
            if float(values[1]) < _ABSENT * len(kept):
                return self._mixture(vectors[:, :2])
            kept = kept[torch.arange(len(kept)) != int((kept @ vectors[:, 1]).abs().argmax())]
        return only

    def _mixture(self, among: Tensor) -> Tensor:
        """Return the mixture (n,) of two directions (n, 2) that is zero for the most units."""
        parts = self.rows @ among
        sizes = parts.norm(dim=1)
        plain = sizes > _PLAIN * _SURE
        across = torch.stack([-parts[:, 1], parts[:, 0]], 1)[plain] / sizes[plain, None]
        zeros = (across @ parts.T).abs() < _SURE * (1 + sizes / sizes[plain, None])
        own = parts[zeros[int(zeros.sum(1).argmax())]]
        return among @ torch.linalg.eigh(own.T @ own)[1][:, 0]

    def _zeros(self, direction: Tensor) -> Tensor | None:
        """The units (U,) that have none of a direction (n,), where these are too many for chance."""
        units, rank = self.rows.shape
        unit = direction / direction.norm()
        parts = (self.rows @ unit).abs()
        zeros = parts < _SURE
        enough = int(zeros.sum()) >= max(rank + _SPARE, _LEAST * units)
        living = parts[~zeros]
        return zeros if enough and len(living) and float(living.median()) > _PLAIN * _SURE else None

    def examples(self) -> Tensor | None:
        """All examples (n, D+1); None, and fewer directions found, where the weights contradict one."""
        mixtures = torch.linalg.inv(self.found.T) @ self.basis
        examples = mixtures / mixtures[:, -1:]
        parts = (self.rows @ self.found.T).abs()
        agreed = ((parts < _SURE) == (self.sent @ examples.T < 0)).to(parts).mean(0)
        if bool((agreed > _AGREED).all()):
            return examples
        # One wrong direction spoils the examples of all others, mostly of those that are near: the worst goes.
        self.found = self.found[torch.arange(len(agreed)) != int(agreed.argmin())]
        return None


def _least(moments: Tensor) -> Tensor:
    """Unit vectors (S, n, 1) along which second moments (S, n, n) are about the least."""
    size = moments.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    lower = torch.linalg.cholesky_ex(moments + _SMALL_RIDGE * size * torch.eye(moments.shape[1]).to(moments))[0]
    vector = torch.ones_like(moments[..., :1])
    for _ in range(_INVERSE):
        vector = torch.cholesky_solve(vector, lower)
        vector = vector / vector.norm(dim=1, keepdim=True)
    return vector


def _ranks(values: Tensor) -> Tensor:
    """Places (S, U) of values in their order, from -.5 to .5."""
    return values.argsort(1).argsort(1).to(values) / values.shape[1] - 0.5


def _lowest(values: Tensor, share: float = _DEAD) -> Tensor:
    """Return which of values (S, U) are the lowest of their row, a share of them."""
    count = int(share * values.shape[1])
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, values.argsort(1)[:, :count], True)
