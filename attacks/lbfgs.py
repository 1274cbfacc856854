"""L-BFGS over many independent rows at once, one curvature history per row.

Follows ``torch.optim.LBFGS`` with its defaults and no line search, row by row: an outer iteration is up to 20 inner
ones, each with one gradient evaluation. ``torch.optim.LBFGS`` itself would couple the rows: one step length, one
history. With ``descend``, which PyTorch lacks, a row whose loss would rise stays where it is and tries a shorter step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# The last steps of many independent rows, from which L-BFGS estimates each row's curvature.


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
        noted: how often steps were noted, up to H; no row has more of them.
    """

    changes: Tensor
    gradient_changes: Tensor
    products: Tensor
    newest: Tensor
    order: Tensor
    noted: int = 0

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
        self.noted = min(self.noted + 1, capacity)
        if self.noted > self.room:
            raise IndexError(f"a step beyond the {self.room} that there is room for")
        self.newest = torch.where(useful, (self.newest + 1) % capacity, self.newest)
        root = torch.where(useful, curvature, 1.0).rsqrt()[:, None]
        # Rows without a useful step write what is there already, so that nobody has to count the others.
        places = self.newest.clamp(min=0) * rows + torch.arange(rows, device=useful.device)
        for kept, latest in ((self.changes, change), (self.gradient_changes, gradient_change)):
            flat = kept.flatten(0, 1)
            flat.index_copy_(0, places, torch.where(useful[:, None], latest * root, flat[places]))
        self._put_in_order(self.room)
        self._note_products(gradient_change * root, useful)

    def _note_products(self, gradient_change: Tensor, useful: Tensor) -> None:
        """Notes those of the newest step, in rows that have taken it."""
        moved = torch.zeros_like(self.products)
        moved[:, :-1, :-1] = self.products[:, 1:, 1:]
        moved[:, -self.room :, -1] = self._with_each(self.changes, gradient_change)
        self.products = torch.where(useful[:, None, None], moved, self.products) if _may_hold(~useful) else moved

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


def _may_hold(rows: Tensor) -> bool:
    """Return whether a mask holds for any row. To look at a GPU's mask means to wait for it, so there it always may."""
    return rows.device.type == "cuda" or bool(rows.any())


def _of_rows(vectors: Tensor, matrices: Tensor) -> Tensor:
    """Products (R, l) of vectors (R, k) and matrices (R, k, l); a single row takes the kernels of several."""
    rows = len(vectors)
    several = max(rows, 2)
    return torch.bmm(vectors[:, None].expand(several, -1, -1), matrices.expand(several, -1, -1))[:rows, 0]


def _solved(system: Tensor, values: Tensor, upper: bool) -> Tensor:
    """Solutions (R, k) of triangular systems (R, k, k), with ones on the diagonal, for values (R, k)."""
    return torch.linalg.solve_triangular(system, values[..., None], upper=upper, unitriangular=True)[..., 0]


Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class LBFGS:
    """Settings, named and defaulted as in ``torch.optim.LBFGS``."""

    learning_rate: float = 1.0
    inner_iterations: int = 20
    history: int = 100
    tolerance_gradient: float = 1e-7
    tolerance_change: float = 1e-9
    descend: bool = False

    def start(self, position: Tensor) -> "LBFGSState":
        """A fresh state for positions (R, n)."""
        return LBFGSState(self, position)


class LBFGSState:
    """Positions (R, n) and each row's history. :meth:`step` is one outer iteration."""

    def __init__(self, settings: LBFGS, position: Tensor) -> None:
        rows, _ = position.shape
        self.settings = settings
        self.position = position.clone()
        self.direction = torch.zeros_like(position)
        self.step_length = position.new_zeros(rows)
        self.previous_gradient = torch.zeros_like(position)
        self.scale = position.new_ones(rows)
        self.started = torch.zeros(rows, dtype=torch.bool, device=position.device)
        self.refused = torch.zeros_like(self.started)
        self.history = CurvatureHistory.of(settings.history, position)

    def take(self, index: Tensor) -> None:
        """Keeps some rows only, in the given order."""
        for name in ("position", "direction", "step_length", "previous_gradient", "scale", "started", "refused"):
            setattr(self, name, getattr(self, name)[index])
        self.history.take(index)

    def step(self, evaluate: Evaluate) -> Tensor:
        """One outer iteration of every row.

        Args:
            evaluate: positions (R, n) to losses (R,) and gradients (R, n). Rows are independent.

        Returns:
            The number of gradient evaluations each row used, (R,).
        """
        settings = self.settings
        self.history.make_room(settings.inner_iterations)
        loss, gradient = evaluate(self.position)
        evaluations = torch.ones_like(self.step_length)
        moving = gradient.abs().amax(1) > settings.tolerance_gradient
        # Who descends has looked at every position it ends at, so the last evaluation leaves no step to take.
        for inner in range(1, settings.inner_iterations + (0 if settings.descend else 1)):
            self._update_direction(gradient, moving)
            slope = (gradient * self.direction).sum(1)
            moving = moving & ~(slope > -settings.tolerance_change)
            if not _may_hold(moving):
                break
            change = self.step_length[:, None] * self.direction
            before = self.position
            self.position = torch.where(moving[:, None], before + change, before)
            if inner == settings.inner_iterations and not settings.descend:
                break
            previous_loss, previous_gradient = loss, gradient
            loss, gradient = evaluate(self.position)
            evaluations += moving
            if settings.descend:
                self.refused = moving & ~(loss <= previous_loss)
                self.position = torch.where(self.refused[:, None], before, self.position)
                self.step_length = torch.where(self.refused, self.step_length / 4, self.step_length)
                loss = torch.where(self.refused, previous_loss, loss)
                gradient = torch.where(self.refused[:, None], previous_gradient, gradient)
            still = (loss - previous_loss).abs() < settings.tolerance_change
            moving = moving & (gradient.abs().amax(1) > settings.tolerance_gradient)
            moving = moving & (change.abs().amax(1) > settings.tolerance_change)
            moving = moving & (~still | self.refused)
        return evaluations

    def _update_direction(self, gradient: Tensor, moving: Tensor) -> None:
        fresh = moving & ~self.started & ~self.refused
        seasoned = moving & self.started & ~self.refused
        if _may_hold(seasoned):
            self._remember(gradient, seasoned)
            direction = self.history.newton_direction(gradient, self.scale)
            self.direction = torch.where(seasoned[:, None], direction, self.direction)
            self.step_length = torch.where(seasoned, self.settings.learning_rate, self.step_length)
        if _may_hold(fresh):
            first = (1.0 / gradient.abs().sum(1)).clamp(max=1.0) * self.settings.learning_rate
            self.direction = torch.where(fresh[:, None], -gradient, self.direction)
            self.step_length = torch.where(fresh, first, self.step_length)
        self.previous_gradient = torch.where(moving[:, None], gradient, self.previous_gradient)
        self.started = self.started | moving

    def _remember(self, gradient: Tensor, rows: Tensor) -> None:
        """Appends the last step to the history of ``rows``, where it says anything about the curvature."""
        gradient_change = gradient - self.previous_gradient
        change = self.direction * self.step_length[:, None]
        curvature = (gradient_change * change).sum(1)
        useful = rows & (curvature > 1e-10)
        self.scale = torch.where(useful, curvature / gradient_change.square().sum(1), self.scale)
        self.history.append(change, gradient_change, curvature, useful)
