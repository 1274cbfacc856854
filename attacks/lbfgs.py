"""L-BFGS over many independent rows at once, one curvature history per row.

Follows ``torch.optim.LBFGS`` with its defaults and no line search, row by row: an outer iteration is up to 20 inner
ones, each with one gradient evaluation. ``torch.optim.LBFGS`` itself would couple the rows: one step length, one
history. With ``descend``, which PyTorch lacks, a row whose loss would rise stays where it is and tries a shorter step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.attacks.curvature_history import CurvatureHistory

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
            if not moving.any():
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
        if seasoned.any():
            self._remember(gradient, seasoned)
            direction = self.history.newton_direction(gradient, self.scale)
            self.direction = torch.where(seasoned[:, None], direction, self.direction)
            self.step_length = torch.where(seasoned, self.settings.learning_rate, self.step_length)
        if fresh.any():
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
