"""Signs of both gradients behind two local steps of Adam or AdamW.

In units of the learning rate the first step is the sign of its gradient g1, and the second is smaller, whatever its
gradient g2: what the weights moved by together has the sign of g1. How far they moved says whether g2 is of the same
sign. Where the first step ended is then known, so each gradient is attacked by its own signs, at its own weights. This
is ours, derived from the optimizers' equations.
"""

from dataclasses import replace

import torch
from torch import Tensor

from harness.base.local_optimizer import LocalOptimizer, Remembered, UpdateReading, spacing
from harness.observation import Observation

# Of gradients: so large beside another one that it counts as nothing.
_FAR = 1e6
# Steps of gradients that are not far above eps are shorter by as much.
_NEAR = 1e-3
# Of the coordinates that moved, so many have both signs told.
_TOLD = 0.9


def is_of_two(observation: Observation) -> bool:
    """Return whether what was read is of two adaptive steps that signs could be told of."""
    optimizer, reading = observation.optimizer, observation.reading
    changed = observation.noise is not None or observation.clipping is not None or observation.correction is not None
    if observation.update_model != "unroll" or observation.local_steps != 2 or changed or observation.sparse:
        return False
    if reading is None or reading.shares is not None or optimizer.first_step is None or optimizer.groups:
        return False
    known = optimizer.schedule is None and not optimizer.fedprox
    return known and sum(_played(optimizer, 1.0, -_FAR)) > _NEAR


def tells_both(observation: Observation) -> Tensor:
    """Rows (R,) of two adaptive steps that tell both signs of nearly all weights that moved.

    Gradients near eps make shorter steps, which tell less; and of a network whose units do not all take part, many
    weights have one gradient alone.
    """
    size, least = _moved(observation).abs(), sum(_played(observation.optimizer, 1.0, -_FAR))
    ones, others = _signs(observation).chunk(2, 1)
    told = (size >= least - _NEAR) & (ones != 0) & (others != 0)
    return told.sum(1) >= _TOLD * (size > _NEAR).sum(1)


def by_signs(observation: Observation, blur: float) -> Observation:
    """Return the observation with the signs of both gradients as its target (R, 2 P), compared as blurred as ``blur``
    says."""
    optimizer = observation.optimizer
    assert optimizer.first_step is not None
    reading = UpdateReading(2, observation.learning_rate, None, adaptive=replace(optimizer.first_step, blur=blur))
    return replace(observation, target=_signs(observation), reading=reading, certainty=None)


def at_second_step(observation: Observation) -> Tensor:
    """The weights (R, P) after the first step, of an observation by signs."""
    first = observation.target[:, : observation.weights.shape[1]]
    made, _ = observation.optimizer.direction(first, observation.weights, Remembered())
    return observation.weights - observation.learning_rate * made


def _moved(observation: Observation) -> Tensor:
    """Return how far the weights moved against their gradients (R, P), in units of the learning rate."""
    moved, decay = observation.target * 2, observation.optimizer.weight_decay  # of AdamW alone
    return moved - 2 * decay * observation.weights if decay else moved


def _signs(observation: Observation) -> Tensor:
    """Signs (R, 2 P) of the first gradient and the second; 0 where they are not told."""
    optimizer, weights, moved = observation.optimizer, observation.weights, _moved(observation)
    first, neither = _played(optimizer, 1.0, 0.0)
    _, lone = _played(optimizer, 0.0, 1.0)
    size = moved.abs()
    # Rounding of the weights moves what is read by as much; what only decays is taken for still.
    near = spacing(weights.abs().clamp_min(observation.learning_rate), weights.dtype) / observation.learning_rate
    near, apart = near + _NEAR, size - (first + neither)
    only, sign = (size - lone).abs() <= near, moved.sign() * (size > near)
    ones = torch.where(only, torch.zeros_like(moved), sign)
    others = torch.where(only, sign, sign * apart.sign() * (apart.abs() > near))
    return torch.cat([ones, others], 1)


def _played(optimizer: LocalOptimizer, one: float, other: float) -> tuple[float, float]:
    """The two steps that gradients of these sizes make, in units of the learning rate."""
    nowhere, memory = torch.zeros(1, 1, dtype=torch.float64), Remembered()
    first, memory = optimizer.direction(torch.full_like(nowhere, one), nowhere, memory)
    second, _ = optimizer.direction(torch.full_like(nowhere, other), nowhere, memory)
    return float(first), float(second)
