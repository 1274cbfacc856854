"""Signs of both gradients behind two local steps of Adam, AdamW or RMSprop.

In units of the learning rate the first step is the sign of its gradient g1 (or a multiple of it), and the second lies
between known bounds, whatever its gradient g2: what the weights moved by together has the sign of g1. How far they
moved says whether g2 is of the same sign, and where the first step ended is known: so each gradient is attacked by its
own signs, at its own weights. How this is done is ours, derived from the optimizers' equations.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.base.local_optimizer import LocalOptimizer, Remembered, UpdateReading, spacing
from harness.observation import Observation

# Of gradients: so large beside another one that it counts as nothing.
_FAR = 1e6


def tells_both(observation: Observation) -> bool:
    """Whether what was read is of two adaptive steps whose signs it tells."""
    optimizer, reading = observation.optimizer, observation.reading
    changed = observation.noise is not None or observation.clipping is not None or observation.correction is not None
    if observation.local_steps != 2 or reading is None or reading.shares is not None or changed or observation.sparse:
        return False
    if optimizer.first_step is None or optimizer.groups or optimizer.schedule is not None:
        return False
    first, second = _played(optimizer, 1.0, -_FAR)
    return first + second > 0


def by_signs(observation: Observation, blur: float) -> Observation:
    """The same, whose target (R, 2 P) is the signs of both gradients, compared as blurred as is said."""
    optimizer = observation.optimizer
    assert optimizer.first_step is not None
    reading = UpdateReading(2, observation.learning_rate, None, adaptive=replace(optimizer.first_step, blur=blur))
    return replace(observation, target=_signs(observation), reading=reading, certainty=None)


def at_second_step(observation: Observation) -> Tensor:
    """The weights (R, P) after the first step, of an observation by signs."""
    first = observation.target[:, : observation.weights.shape[1]]
    made, _ = observation.optimizer.direction(first, observation.weights, Remembered())
    return observation.weights - observation.learning_rate * made


def _signs(observation: Observation) -> Tensor:
    """Signs (R, 2 P) of the first gradient and the second; 0 where they are not told."""
    optimizer, weights = observation.optimizer, observation.weights
    moved = observation.target * 2
    if optimizer.weight_decay:  # of AdamW
        moved = moved - 2 * optimizer.weight_decay * weights
    first, neither = _played(optimizer, 1.0, 0.0)
    _, lone = _played(optimizer, 0.0, 1.0)
    size = moved.abs()
    # Rounding of the weights moves what is read by as much.
    near = spacing(weights.abs().clamp_min(observation.learning_rate), weights.dtype) / observation.learning_rate
    apart = size - (first + neither)
    only = (size - lone).abs() <= near
    ones = torch.where(only, torch.zeros_like(moved), moved.sign())
    others = torch.where(only, moved.sign(), moved.sign() * apart.sign() * (apart.abs() > near))
    return torch.cat([ones, others], 1)


def _played(optimizer: LocalOptimizer, one: float, other: float) -> tuple[float, float]:
    """The two steps that gradients of these sizes make, in units of the learning rate."""
    nowhere, memory = torch.zeros(1, 1, dtype=torch.float64), Remembered()
    first, memory = optimizer.direction(torch.full_like(nowhere, one), nowhere, memory)
    second, _ = optimizer.direction(torch.full_like(nowhere, other), nowhere, memory)
    return float(first), float(second)
