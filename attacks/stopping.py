"""When a row of an attack stops, and why (docs/attacks.md)."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from harness.attacks.attack import Attack

CAP, CONVERGED, DIVERGED, HOPELESS = range(4)
REASONS = ("cap", "converged", "diverged", "hopeless")

_DIVERGENCE = 1e3


class StopRules:
    """Decides after each outer iteration which rows stop, from losses only."""

    def __init__(self, attack: "Attack", stop_below: Tensor) -> None:
        self.attack = attack
        self.stop_below = stop_below.cpu()
        self.history: list[Tensor] = []

    def record(self, best_loss: Tensor) -> None:
        """Appends the best matching losses (R,) of all rows after one more outer iteration."""
        self.history.append(best_loss.detach().cpu().clone())

    def stopped(self, active: Tensor, first_loss: Tensor, last_loss: Tensor) -> Tensor:
        """Stop codes (A,) of the active rows; ``CAP`` means not stopped yet.

        Divergence is relative to the row's own first loss: under heavy noise an honest loss starts at 1e7.
        """
        best = self.history[-1][active]
        first, last = first_loss.cpu()[active], last_loss.cpu()[active]
        codes = torch.full((len(active),), CAP)
        codes[self._hopeless(best, first, active)] = HOPELESS
        codes[self._stalled(best, active) | (best <= self.stop_below[active])] = CONVERGED
        codes[~last.isfinite() | (last > _DIVERGENCE * first.abs())] = DIVERGED
        return codes

    def _hopeless(self, best: Tensor, first: Tensor, active: Tensor) -> Tensor:
        attack = self.attack
        if not attack.patience or len(self.history) < attack.patience:
            return torch.zeros(len(active), dtype=torch.bool)
        slow = best > (1 - attack.patience_drop) * self._ago(attack.patience_window, active)
        return slow & (best > attack.patience_floor * first)

    def _stalled(self, best: Tensor, active: Tensor) -> Tensor:
        # An attack without patience changes its step size on purpose; a standstill means nothing there.
        window, change = self.attack.standstill
        if not self.attack.patience or len(self.history) <= window:
            return torch.zeros(len(active), dtype=torch.bool)
        before = self._ago(window, active)
        return (before - best).abs() <= change * before.abs()

    def _ago(self, iterations: int, active: Tensor) -> Tensor:
        return self.history[max(len(self.history) - 1 - iterations, 0)][active]
