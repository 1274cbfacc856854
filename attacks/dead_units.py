"""Large batches by the units that each example leaves dead: a search from many starts.

Rows of a rectified layer's gradient are E X (:mod:`harness.attacks.relu_layer`). In a basis of its rank it is B = E C,
with C (n, n) unknown: for the column m of C's inverse that belongs to an example, B m is that example's column of E,
zero for each unit that it leaves dead. About half of all units are dead for one example, and these are far more than n,
so a direction is determined by a rough guess of them. A guess comes from both sides by turns: the units along which the
direction has least, and the units that an example would leave dead which fits this pattern best, by the known weights.
Where both agree the zeros are exact, and no other direction has so many. The next examples are looked for among those
that have no part in the directions found.

The directions are those of sparse dictionary learning, which Bakarsky et al., "SPEAR++" (2025), use by its general
solvers; that the weights, which the server knows, complete a guess is ours.
"""

import torch
from torch import Tensor

_SURE = 4.0
"""Standard deviations of the noise beyond which a number is not taken for it."""
_PLAIN = 3.0
"""So many times that is what a living unit usually has, at least."""
_DEAD, _SURELY = 0.5, (0.47, 0.4)
"""Share of units that are guessed dead, as of random weights half are; and of those that settle it, none of which may
be alive."""
_FEWEST = 8
"""Examples up to which some unit holds each alone, if noise does not hide it from a search too."""
_APT = 0.25
"""Share of units that are alive, and dead, for examples on the whole: of fewer, single ones are alone in some unit."""
_STARTS, _FRUITLESS, _HOPELESS = 32, 12, 1
"""Guesses side by side, how many rounds of them may bring nothing new, and how many nothing at all."""
_TURNS, _SETTLING = 40, 20
"""Turns of a guess between weights and gradient, and of the gradient alone after that."""
_FIRST, _LAST = 0.1, 1.0
"""How much the gradient counts in the first turn and in the last, and the weights one: what a direction has of a unit
is worth little before the direction is nearly right."""
_SPARE, _LEAST = 20, 0.25
"""Zeros more than the rank, and share of all units, below which they could be chance."""
_NOTHING, _FEW, _GAP = 25.0, 50, 0.3
"""Mean square of units along a direction, in variances of the noise, up to which they have none of it; how many units
may stand against that; and how much less than along others there has to be, for them to be looked for."""
_SEPARATED = 0.75
"""Share of units that a linear fit has to get right: about 0.9 where an example is behind it, and 0.6 where none is."""
_RIDGE = 1e-9
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
        for turn in range(_TURNS):
            small = _ranks((self._directions(dead) @ self.white.T).abs())
            by_weights = _ranks(small @ fitted.T @ weights.T)
            trust = _FIRST + (_LAST - _FIRST) * turn / _TURNS
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
        inner = turned[:, :known, :known] + _RIDGE * torch.eye(known).to(turned)
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
        """Whether some example would leave nearly these units (U,) dead."""
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
            if float(values[1]) < _NOTHING * len(kept):
                return self._mixture(vectors[:, :2])
            kept = kept[torch.arange(len(kept)) != int((kept @ vectors[:, 1]).abs().argmax())]
        return only

    def _mixture(self, among: Tensor) -> Tensor:
        """Of the mixtures (n,) of two directions (n, 2), the one that is zero for the most units."""
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
    lower = torch.linalg.cholesky_ex(moments + _RIDGE * size * torch.eye(moments.shape[1]).to(moments))[0]
    vector = torch.ones_like(moments[..., :1])
    for _ in range(_INVERSE):
        vector = torch.cholesky_solve(vector, lower)
        vector = vector / vector.norm(dim=1, keepdim=True)
    return vector


def _ranks(values: Tensor) -> Tensor:
    """Places (S, U) of values in their order, from -.5 to .5."""
    return values.argsort(1).argsort(1).to(values) / values.shape[1] - 0.5


def _lowest(values: Tensor, share: float = _DEAD) -> Tensor:
    """Which of values (S, U) are the lowest, a share of them."""
    count = int(share * values.shape[1])
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, values.argsort(1)[:, :count], True)
