"""Adam over many independent rows at once, with the variants gradient-leakage attacks use."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; one iteration is one gradient evaluation.

    ``signed``: use only the sign of each gradient coordinate (Geiping et al.). ``decay``: ``step`` multiplies the rate
    by 0.1 at 3/8, 5/8 and 7/8 of the iterations, ``cosine`` anneals it to 0 after ``warm_up`` linear steps.
    """

    iterations: int
    learning_rate: float = 0.1
    signed: bool = False
    decay: Literal["none", "step", "cosine"] = "none"
    warm_up: int = 0
    betas: tuple[float, float] = (0.9, 0.999)

    def start(self, position: Tensor) -> "AdamState":
        """A fresh state for positions (R, n)."""
        return AdamState(self, position)

    def rate(self, iteration: int) -> float:
        """Learning rate of 0-based ``iteration``."""
        if iteration < self.warm_up:
            return self.learning_rate * (iteration + 1) / self.warm_up
        if self.decay == "step":
            passed = sum(iteration >= self.iterations / part for part in (2.667, 1.6, 1.142))
            return self.learning_rate * 0.1**passed
        if self.decay == "cosine":
            done = (iteration - self.warm_up) / max(self.iterations - self.warm_up, 1)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate


class AdamState:
    """Positions (R, n) and running moments."""

    def __init__(self, settings: Adam, position: Tensor) -> None:
        self.settings = settings
        self.position = position.clone()
        self.first = torch.zeros_like(position)
        self.second = torch.zeros_like(position)
        self.iteration = 0

    def take(self, index: Tensor) -> None:
        """Keeps some rows only, in the given order."""
        self.position, self.first, self.second = self.position[index], self.first[index], self.second[index]

    def step(self, evaluate: Evaluate) -> Tensor:
        """One Adam step of every row; returns gradient evaluations per row (R,)."""
        _, gradient = evaluate(self.position)
        if self.settings.signed:
            gradient = gradient.sign()
        beta1, beta2 = self.settings.betas
        rate = self.settings.rate(self.iteration)
        self.iteration += 1
        self.first = beta1 * self.first + (1 - beta1) * gradient
        self.second = beta2 * self.second + (1 - beta2) * gradient.square()
        mean = self.first / (1 - beta1**self.iteration)
        spread = (self.second / (1 - beta2**self.iteration)).sqrt() + 1e-8
        self.position = self.position - rate * mean / spread
        return gradient.new_ones(len(gradient))
