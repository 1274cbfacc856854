"""The last steps of many independent rows, from which L-BFGS estimates each row's curvature."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class CurvatureHistory:
    """Up to H steps of R rows in n dimensions, and what each did to the gradient.

    Both are divided by the root of their inner product, so that it is 1. Rows are independent: a row keeps its last H
    useful steps, whatever the rows beside it do. A row with fewer steps than another has zeros before them.

    Attributes:
        changes: (H, R, n), changes of position. gradient_changes: (H, R, n), of the gradient.
        products: (R, H, H), of each step's change of position with every later change of gradient, newest step last.
        order: places along the first axis in use, oldest step first: they go round.
    """

    changes: Tensor
    gradient_changes: Tensor
    products: Tensor
    order: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, capacity: int, position: Tensor) -> "CurvatureHistory":
        """No steps yet; at most ``capacity`` of them for positions (R, n)."""
        rows, length = position.shape
        kept = (position.new_empty((capacity, rows, length)) for _ in range(2))
        return cls(*kept, position.new_zeros((rows, capacity, capacity)))

    def take(self, index: Tensor) -> None:
        """Keeps some rows only, in the given order. Places that no step has reached yet cost no memory."""
        used = len(self.order)
        for name in ("changes", "gradient_changes"):
            kept = getattr(self, name)
            fewer = kept.new_empty((len(kept), len(index), kept.shape[2]))
            torch.index_select(kept[:used], 1, index, out=fewer[:used])
            setattr(self, name, fewer)
        self.products = self.products[index]

    def append(self, change: Tensor, gradient_change: Tensor, curvature: Tensor, useful: Tensor) -> None:
        """Notes a step (R, n) with its change of gradient (R, n) and their inner product (R,) in the ``useful`` rows.

        The steps of the other rows move up by one place, so that the newest of every row share a place.
        """
        older = self.order
        full = len(older) == len(self.changes)
        self.order = older[1:] + older[:1] if full else [*older, len(older)]
        idle = (~useful).nonzero()[:, 0]
        root = torch.where(useful, curvature, 1.0).rsqrt()[:, None]
        for kept, latest in ((self.changes, change), (self.gradient_changes, gradient_change)):
            if len(idle):
                places = torch.tensor(self.order if full else self.order[1:], dtype=torch.long, device=idle.device)
                before = torch.tensor(older, dtype=torch.long, device=idle.device)
                kept[places[:, None], idle] = kept[before[:, None], idle]
                if not full:
                    kept[self.order[0], idle] = 0.0
            newest = kept[self.order[-1]]
            newest.copy_(torch.where(useful[:, None], latest * root, newest))
        self._note_products(useful)

    def _note_products(self, useful: Tensor) -> None:
        """Notes those of the newest step, in rows that have taken it."""
        latest = self._with_each(self.changes, self.gradient_changes[self.order[-1]])
        moved = torch.zeros_like(self.products)
        moved[:, :-1, :-1] = self.products[:, 1:, 1:]
        moved[:, -latest.shape[1] :, -1] = latest
        self.products = moved if useful.all() else torch.where(useful[:, None, None], moved, self.products)

    def newton_direction(self, gradient: Tensor, scale: Tensor) -> Tensor:
        """Minus the approximate inverse Hessian times gradients (R, n); ``scale`` (R,) is that of the first guess.

        Nocedal and Wright, "Numerical Optimization", algorithm 7.4. Each of its two loops goes from step to step and
        takes off what the steps before have put in, and so solves a triangular system.
        """
        used = len(self.order)
        upper = self.products[:, -used:, -used:]
        weights = _solved(upper, self._with_each(self.changes, gradient), upper=True)
        guess = (gradient - self._sum(self.gradient_changes, weights)) * scale[:, None]
        weights = _solved(upper.mT, weights - self._with_each(self.gradient_changes, guess), upper=False)
        return -(guess + self._sum(self.changes, weights))

    def _with_each(self, kept: Tensor, vectors: Tensor) -> Tensor:
        """Inner products (R, used) of vectors (R, n) with what was kept of each step, oldest first."""
        return _of_rows(vectors, kept[: len(self.order)].permute(1, 2, 0)).roll(-self.order[0], 1)

    def _sum(self, kept: Tensor, weights: Tensor) -> Tensor:
        """The sum (R, n) of what was kept of each step, with weights (R, used), oldest first."""
        return _of_rows(weights.roll(self.order[0], 1), kept[: len(self.order)].transpose(0, 1))


def _of_rows(vectors: Tensor, matrices: Tensor) -> Tensor:
    """Products (R, l) of vectors (R, k) and matrices (R, k, l); a single row takes the kernels of several."""
    rows = len(vectors)
    several = max(rows, 2)
    return torch.bmm(vectors[:, None].expand(several, -1, -1), matrices.expand(several, -1, -1))[:rows, 0]


def _solved(system: Tensor, values: Tensor, upper: bool) -> Tensor:
    """Solutions (R, k) of triangular systems (R, k, k), with ones on the diagonal, for values (R, k)."""
    return torch.linalg.solve_triangular(system, values[..., None], upper=upper, unitriangular=True)[..., 0]
