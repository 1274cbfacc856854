"""The adversary's model of what it read: the gradient or update that dummy data would have produced."""

import torch
from torch import Tensor

from harness.attacks.covered_zeros import chosen_alone
from harness.base.clipping import clip, example_factors
from harness.base.errors import UsageError
from harness.base.layout import group_sums, spread
from harness.observation import Clipping, Observation


def dummy_gradient(
    observation: Observation, images: Tensor, targets: Tensor, apply_clipping: bool, differentiable: bool = True
) -> Tensor:
    """The gradient (R, P) to compare with ``observation.target``.

    Args:
        observation: what was read; its ``update_model`` decides between one gradient at the known weights (``first``,
            ``avg``) and the mean gradient along a simulated run of local steps (``unroll``).
        images: (R, n, C, H, W).
        targets: labels (R, n) or probabilities (R, n, K).
        apply_clipping: clip the dummy's gradient as the defense is known to (``known_clip``).
        differentiable: in images and targets; without, it costs less memory.

    Raises:
        UsageError: clients differ in clip or pace, and what is to be simulated needs those of each.
    """
    simulates = apply_clipping or observation.update_model == "unroll"
    if simulates and observation.clipping is not None:
        _common_bound(observation.clipping)
    if observation.update_model == "unroll":
        candidate = _unrolled(observation, images, targets, apply_clipping, differentiable)
    else:
        candidate = _local_gradient(observation, observation.weights, images, targets, apply_clipping, differentiable)
    if apply_clipping and observation.clipping is not None and observation.clipping.unit == "update":
        # The bound is on the update of all local steps; the target is that update averaged over them.
        return clip(
            chosen_alone(observation, candidate),
            _common_bound(observation.clipping) / _averaged_steps(observation),
            observation.clipping_groups,
        )
    return candidate


def _common_bound(clipping: Clipping) -> float:
    if clipping.bound is None:
        raise UsageError(
            "clients differ in their clips and steps, which an attack does not simulate; use --attack-arg scale=free "
            "with --update-model first or avg"
        )
    return clipping.bound


def _averaged_steps(observation: Observation) -> int:
    return 1 if observation.update_model == "first" else observation.local_steps


def _unrolled(
    observation: Observation, images: Tensor, targets: Tensor, apply_clipping: bool, differentiable: bool
) -> Tensor:
    batch = observation.examples // observation.local_steps
    weights = observation.weights
    total = torch.zeros_like(weights)
    for step in range(observation.local_steps):
        part = slice(step * batch, (step + 1) * batch)
        gradient = _local_gradient(
            observation, weights, images[:, part], targets[:, part], apply_clipping, differentiable
        )
        direction = gradient if observation.correction is None else gradient + observation.correction
        weights = weights - observation.learning_rate * direction
        total = total + gradient
    return total / observation.local_steps


def _local_gradient(
    observation: Observation,
    weights: Tensor,
    images: Tensor,
    targets: Tensor,
    apply_clipping: bool,
    differentiable: bool,
) -> Tensor:
    clipping = observation.clipping
    if not apply_clipping or clipping is None or clipping.unit != "example":
        return _mean_gradient(observation, weights, images, targets, differentiable)
    sizes = observation.model.layout.sizes
    gradients = observation.model.per_example_gradients(weights, images, targets, create_graph=differentiable)
    # A tiny offset keeps the derivative of the norm finite where a layer's gradient vanishes.
    norms = (group_sums(gradients.square(), sizes) + 1e-30).sqrt()
    return (gradients * spread(example_factors(norms, _common_bound(clipping), clipping.grouping), sizes)).mean(1)


def _mean_gradient(
    observation: Observation, weights: Tensor, images: Tensor, targets: Tensor, differentiable: bool
) -> Tensor:
    """The gradient of the mean loss; where batches are normalised as a whole, each of them by itself."""
    if observation.batches is not None and images.shape[1] > observation.batches.size:
        count = images.shape[1] // observation.batches.size
        weights = weights.repeat_interleave(count, 0)
        images, targets = (values.unflatten(1, (count, -1)).flatten(0, 1) for values in (images, targets))
        gradients = observation.model.gradient(weights, images, targets, create_graph=differentiable)
        return gradients.unflatten(0, (-1, count)).mean(1)
    return observation.model.gradient(weights, images, targets, create_graph=differentiable)
