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
        order: places along the first axis in use, oldest step first.
    """

    changes: Tensor
    gradient_changes: Tensor
    order: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, capacity: int, position: Tensor) -> "CurvatureHistory":
        """No steps yet; at most ``capacity`` of them for positions (R, n)."""
        return cls(position.new_empty((capacity, *position.shape)), position.new_empty((capacity, *position.shape)))

    def take(self, index: Tensor) -> None:
        """Keeps some rows only, in the given order. Places that no step has reached yet cost no memory."""
        used = len(self.order)
        for name in ("changes", "gradient_changes"):
            kept = getattr(self, name)
            fewer = kept.new_empty((len(kept), len(index), kept.shape[2]))
            torch.index_select(kept[:used], 1, index, out=fewer[:used])
            setattr(self, name, fewer)

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

    def newton_direction(self, gradient: Tensor, scale: Tensor) -> Tensor:
        """Minus the approximate inverse Hessian times gradients (R, n); ``scale`` (R,) is that of the first guess.

        Nocedal and Wright, "Numerical Optimization", algorithm 7.4.
        """
        changes, gradient_changes = self.changes.unbind(), self.gradient_changes.unbind()
        direction = -gradient
        weights: list[Tensor] = []
        for place in reversed(self.order):
            weight = (changes[place] * direction).sum(1)
            direction = torch.addcmul(direction, weight[:, None], gradient_changes[place], value=-1)
            weights.append(weight)
        direction = direction * scale[:, None]
        for place, weight in zip(self.order, reversed(weights), strict=True):
            correction = weight - (gradient_changes[place] * direction).sum(1)
            direction = torch.addcmul(direction, correction[:, None], changes[place])
        return direction
