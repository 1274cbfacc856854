"""The adversary's model of what it read: the gradient or update that dummy data would have produced."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from harness.attacks.residual import chosen_alone, improbability, knows_clip
from harness.attacks.stages import MOST_POINTS
from harness.attacks.step_signs import at_second_step
from harness.base.errors import UsageError
from harness.base.local_optimizer import Remembered, UpdateReading
from harness.base.randomness import generator
from harness.base.vectors import clip, example_factors, group_sums, spread
from harness.observation import Clipping, Observation


def dummy_gradient(
    observation: Observation, images: Tensor, targets: Tensor, apply_clipping: bool, differentiable: bool = True
) -> Tensor:
    """The gradient (R, P) to compare with ``observation.target``.

    Args:
        observation: what was read; its ``update_model`` decides at which weights gradients are taken.
        images: (R, n, C, H, W).
        targets: labels (R, n) or probabilities (R, n, K).
        apply_clipping: clip the dummy's gradient as the defense is known to (``known_clip``).
        differentiable: in images and targets; without, it costs less memory.

    Raises:
        UsageError: clients differ in clip or pace, and what is to be simulated needs those of each.
    """
    simulates = apply_clipping or observation.by_steps
    if simulates and observation.clipping is not None:
        _common_bound(observation.clipping)
    if observation.by_steps:
        candidate = _step_by_step(observation, images, targets, apply_clipping, differentiable)
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


def require_gradients(observation: Observation) -> None:
    """Raises UsageError: an attack that takes what was read for a gradient reads an update that is no sum of them."""
    if observation.reading is not None and observation.reading.shares is None:
        raise UsageError(
            f"what clients send after {observation.local_steps} step(s) of {observation.optimizer.text} is no sum of "
            "gradients, as this attack takes it; use --attack cpl or another that plays the optimizer"
        )


def _common_bound(clipping: Clipping) -> float:
    if clipping.bound is None:
        raise UsageError(
            "clients differ in their clips and steps, which an attack does not simulate; use --attack-arg scale=free "
            "with --update-model first or avg"
        )
    return clipping.bound


def _averaged_steps(observation: Observation) -> int:
    return 1 if observation.update_model == "first" else observation.local_steps


def _step_by_step(
    observation: Observation, images: Tensor, targets: Tensor, apply_clipping: bool, differentiable: bool
) -> Tensor:
    """The update that these examples make, read as the client's was."""
    steps, optimizer = observation.local_steps, observation.optimizer
    if observation.reading is not None and observation.reading.adaptive is not None:
        return _of_each_step(observation, images, targets, apply_clipping, differentiable)
    shares = (1.0,) * steps if observation.reading is None else observation.reading.shares
    batch, start, memory = observation.examples // steps, observation.weights, Remembered()
    here, total = start, torch.zeros_like(start)
    points, known = _points(observation), None
    if observation.update_model != "unroll" and not observation.model.evaluates_alone:
        known = _at_known_weights(observation, points, batch, images, targets, apply_clipping, differentiable)
    for place, (first, end) in enumerate(points):
        part = slice(first * batch, end * batch)
        if known is None:
            at = here if observation.update_model == "unroll" else _known_weights(observation, (first + end - 1) // 2)
            gradient = _local_gradient(
                observation, at, images[:, part], targets[:, part], apply_clipping, differentiable
            )
        else:
            gradient = known[place]
        direction = gradient if observation.correction is None else gradient + observation.correction
        for step in range(first, end):
            made, memory = optimizer.direction(direction, here, memory)
            here = here - observation.learning_rate * made
            total = total + (gradient if shares is None or shares[step] == 1.0 else gradient * shares[step])
    return total / steps if shares is not None else (start - here) / (observation.learning_rate * steps)


def _at_known_weights(
    observation: Observation, points: list[tuple[int, int]], batch: int, images: Tensor, targets: Tensor,
    apply_clipping: bool, differentiable: bool,
) -> Tensor | None:  # fmt: skip
    """The gradients (T, R, P) at points that need no other: all rows of all points together, which is faster; None
    where points have examples of different number."""
    sizes = {end - first for first, end in points}
    if len(sizes) > 1 or len(points) == 1:
        return None
    at = torch.cat([_known_weights(observation, (first + end - 1) // 2) for first, end in points])
    parts = [slice(first * batch, end * batch) for first, end in points]
    shown, labels = (torch.cat([values[:, part] for part in parts]) for values in (images, targets))
    made = _local_gradient(observation, at, shown, labels, apply_clipping, differentiable)
    return made.unflatten(0, (len(points), -1))


def _of_each_step(
    observation: Observation, images: Tensor, targets: Tensor, apply_clipping: bool, differentiable: bool
) -> Tensor:
    """The gradients (R, 2 P) of two steps, at the weights that signs tell."""
    half, made = observation.examples // 2, []
    for at, part in ((observation.weights, slice(0, half)), (at_second_step(observation), slice(half, None))):
        made.append(_local_gradient(observation, at, images[:, part], targets[:, part], apply_clipping, differentiable))
    return torch.cat(made, 1)


def _points(observation: Observation) -> list[tuple[int, int]]:
    """The first step and the end of those that share a point: each has its own, but on a long path."""
    steps = observation.local_steps
    long = observation.update_model == "path" and not observation.optimizer.is_plain
    count = min(steps, MOST_POINTS) if long else steps
    ends = [point * steps // count for point in range(count + 1)]
    return list(pairwise(ends))


def _known_weights(observation: Observation, step: int) -> Tensor:
    """Return the weights at which a step is assumed to begin. They are the weights before the round, or lie as far on
    the way to those after the round as equal steps lead.

    A clip or noise of the message is taken for a move of the client.
    """
    reading, steps = observation.reading, observation.local_steps
    if observation.update_model != "path" or step == 0:
        return observation.weights
    reading = reading or UpdateReading(steps, observation.learning_rate, (1.0,) * steps)
    moved = reading.update(observation.target, observation.weights)
    return observation.weights + moved * observation.optimizer.way(steps, observation.learning_rate)[step]


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
    norms = (group_sums(gradients.square(), sizes) + 1e-30).sqrt().unflatten(-1, (observation.model.layout.rounds, -1))
    factors = example_factors(norms, _common_bound(clipping), clipping.grouping).flatten(-2)
    return (gradients * spread(factors, sizes)).mean(1)


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


# Public examples in a victim's place: drawn of a class, and the gradients that they would have there.

# As many numbers of gradients are held at once: 128 MiB.
_HELD = 2**25


def drawn_of_class(observation: Observation, label: int, count: int, name: str) -> Tensor:
    """``count`` examples (N, D) drawn from what public data say of a class, the same ones for every observation."""
    assert observation.prior is not None
    return observation.prior.drawn(label, count, generator(name, label))


def gradient_of(seen: Observation, images: Tensor, label: int, differentiable: bool = True) -> Tensor:
    """The gradients (R, P) that images (R, D) of a class would have in their rows, clipped as it is known."""
    shaped = images.to(seen.target).reshape(seen.rows, 1, *seen.model.image_shape)
    labels = torch.full((seen.rows, 1), label, device=seen.target.device)
    return dummy_gradient(seen, shaped, labels, knows_clip(seen), differentiable)


def in_parts(attack: str, observation: Observation, compute: Callable[[Observation], Tensor]) -> Tensor:
    """Return what is computed of each row, in parts that fit into memory; of two rows at least, as one takes other
    kernels.

    Raises:
        UsageError: there are no public data, or several examples were read together.
    """
    if observation.prior is None:
        raise UsageError(
            f"attack {attack!r} needs public data; use --prior auto, or --prior FILE.npz with data of your own"
        )
    if observation.examples > 1:
        raise UsageError(
            f"attack {attack!r} reads one example per observation, not {observation.examples}; use --batch-size 1 and "
            "one local step, or another attack"
        )
    found = []
    for rows in torch.arange(observation.rows).split(max(2, _HELD // observation.target.shape[1])):
        pair = rows.repeat(2) if len(rows) == 1 else rows
        found.append(compute(observation.take(pair.to(observation.target.device)))[: len(rows)])
    return torch.cat(found)


# --------------------------------------------------------------------------------------
# Which of the known changes of images a client made before it computed gradients.


EXAMPLES_OF_FORMS = 16


def likely_disguises(observation: Observation, labels: Tensor) -> Tensor:
    """The places (R, W) of the changes of images that are known, the most likely first.

    The likelihood of a change is the mean of that of images drawn from what public data say of the class (R,). Rows
    are looked at one by one, so that none depends on the others.
    """
    shape = (EXAMPLES_OF_FORMS, 1, *observation.model.image_shape)
    found = []
    for row, label in enumerate(labels.tolist()):
        seen = observation.take(torch.full((EXAMPLES_OF_FORMS,), row, device=observation.target.device))
        images = drawn_of_class(observation, label, EXAMPLES_OF_FORMS, "disguised").to(seen.target).reshape(shape)
        classes = torch.full(shape[:2], label, device=seen.target.device)
        made = (
            dummy_gradient(seen, way(images), classes, knows_clip(seen), differentiable=False)
            for way in observation.disguises
        )
        found.append(torch.stack([torch.logsumexp(-improbability(seen, one), 0) for one in made]).cpu())
    return torch.stack(found).argsort(1, descending=True)
