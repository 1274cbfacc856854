"""The last steps of many independent rows, from which L-BFGS estimates each row's curvature."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class CurvatureHistory:
    """Up to H steps of R rows in n dimensions, and what each did to the gradient.

    Both are divided by the root of their inner product, so that it is 1. Rows are independent: a row keeps its last H
    useful steps, whatever the rows beside it do, and writes round and round over its own places. Those that it has not
    reached hold zeros. How many are reckoned with is said from outside, as sums of other lengths round differently.

    Attributes:
        changes: (H, R, n), changes of position. gradient_changes: (H, R, n), of the gradient.
        products: (R, H, H), of each step's change of position with every later change of gradient, newest step last.
        newest: (R,), each row's place of its newest step, -1 before its first one.
        order: (R, U), each row's places that are reckoned with, oldest step first.
    """

    changes: Tensor
    gradient_changes: Tensor
    products: Tensor
    newest: Tensor
    order: Tensor

    @classmethod
    def of(cls, capacity: int, position: Tensor) -> "CurvatureHistory":
        """No steps yet, and no room for one; at most ``capacity`` of them for positions (R, n)."""
        rows, length = position.shape
        changes, gradient_changes = (position.new_empty((capacity, rows, length)) for _ in range(2))
        products = position.new_zeros((rows, capacity, capacity))
        newest = torch.full((rows,), -1, device=position.device)
        return cls(changes, gradient_changes, products, newest, newest.new_empty((rows, 0)))

    @property
    def room(self) -> int:
        """U, the places that are reckoned with."""
        return self.order.shape[1]

    def make_room(self, steps: int) -> None:
        """Makes room for so many more steps of every row. Before that they cost no memory."""
        before, room = self.room, min(self.room + steps, len(self.changes))
        for kept in (self.changes, self.gradient_changes):
            kept[before:room] = 0.0
        self._put_in_order(room)

    def _put_in_order(self, room: int) -> None:
        ages = torch.arange(room - 1, -1, -1, device=self.newest.device)
        self.order = (self.newest[:, None] - ages) % room

    def take(self, index: Tensor) -> None:
        """Keeps some rows only, in the given order."""
        for name in ("changes", "gradient_changes"):
            kept = getattr(self, name)
            fewer = kept.new_empty((len(kept), len(index), kept.shape[2]))
            torch.index_select(kept[: self.room], 1, index, out=fewer[: self.room])
            setattr(self, name, fewer)
        self.products, self.newest, self.order = self.products[index], self.newest[index], self.order[index]

    def append(self, change: Tensor, gradient_change: Tensor, curvature: Tensor, useful: Tensor) -> None:
        """Notes steps (R, n), changes of gradient (R, n) and their inner products (R,) of the ``useful`` rows.

        Raises:
            IndexError: no room was made for a step.
        """
        capacity, rows, _ = self.changes.shape
        self.newest = torch.where(useful, (self.newest + 1) % capacity, self.newest)
        if int(self.newest.max()) >= self.room:
            raise IndexError(f"a step beyond the {self.room} that there is room for")
        moving, root = useful.nonzero()[:, 0], torch.where(useful, curvature, 1.0).rsqrt()[:, None]
        places = self.newest[moving] * rows + moving
        for kept, latest in ((self.changes, change), (self.gradient_changes, gradient_change)):
            kept.flatten(0, 1).index_copy_(0, places, (latest * root)[moving])
        self._put_in_order(self.room)
        self._note_products(gradient_change * root, useful)

    def _note_products(self, gradient_change: Tensor, useful: Tensor) -> None:
        """Notes those of the newest step, in rows that have taken it."""
        moved = torch.zeros_like(self.products)
        moved[:, :-1, :-1] = self.products[:, 1:, 1:]
        moved[:, -self.room :, -1] = self._with_each(self.changes, gradient_change)
        self.products = moved if useful.all() else torch.where(useful[:, None, None], moved, self.products)

    def newton_direction(self, gradient: Tensor, scale: Tensor) -> Tensor:
        """Minus the approximate inverse Hessian times gradients (R, n); ``scale`` (R,) is that of the first guess.

        Nocedal and Wright, "Numerical Optimization", algorithm 7.4. Each of its two loops goes from step to step and
        takes off what the steps before have put in, and so solves a triangular system.
        """
        upper = self.products[:, -self.room :, -self.room :]
        weights = _solved(upper, self._with_each(self.changes, gradient), upper=True)
        guess = (gradient - self._sum(self.gradient_changes, weights)) * scale[:, None]
        weights = _solved(upper.mT, weights - self._with_each(self.gradient_changes, guess), upper=False)
        return -(guess + self._sum(self.changes, weights))

    def _with_each(self, kept: Tensor, vectors: Tensor) -> Tensor:
        """Inner products (R, U) of vectors (R, n) with what was kept of each step, oldest first."""
        return _of_rows(vectors, kept[: self.room].permute(1, 2, 0)).gather(1, self.order)

    def _sum(self, kept: Tensor, weights: Tensor) -> Tensor:
        """The sum (R, n) of what was kept of each step, with weights (R, U), oldest first."""
        by_place = torch.empty_like(weights).scatter_(1, self.order, weights)
        return _of_rows(by_place, kept[: self.room].transpose(0, 1))


def _of_rows(vectors: Tensor, matrices: Tensor) -> Tensor:
    """Products (R, l) of vectors (R, k) and matrices (R, k, l); a single row takes the kernels of several."""
    rows = len(vectors)
    several = max(rows, 2)
    return torch.bmm(vectors[:, None].expand(several, -1, -1), matrices.expand(several, -1, -1))[:rows, 0]


def _solved(system: Tensor, values: Tensor, upper: bool) -> Tensor:
    """Solutions (R, k) of triangular systems (R, k, k), with ones on the diagonal, for values (R, k)."""
    return torch.linalg.solve_triangular(system, values[..., None], upper=upper, unitriangular=True)[..., 0]
