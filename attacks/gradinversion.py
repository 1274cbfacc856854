"""GradInversion: L2 matching with image priors, BatchNorm statistics and agreement between several starts.

Source: Yin et al., "See through Gradients: Image Batch Recovery via GradInversion" (CVPR 2021). Registration of the
group mean is left out: starts are averaged pixel by pixel.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from harness.attacks.adam import Adam
from harness.attacks.attack import ATTACKS, Attack, Count, Dummy, NonNegative, validated_attack
from harness.attacks.objectives import total_variation
from harness.base.randomness import normal_rows
from harness.base.ranges import CountOrNone, Positive
from harness.observation import Observation

# What BatchNorm layers are given of dummy images, beside what an adversary knows of the victim's own batch there.


class Moments(NamedTuple):
    """Mean and (biased) variance of a layer's input, (R, channels) or (channels,)."""

    mean: Tensor
    variance: Tensor


def statistics_of(observation: Observation, images: Tensor) -> list[tuple[Moments, Moments]]:
    """Return the statistics of dummies and the known statistics, for each BatchNorm in the order of the forward pass.

    Known are the victim's own where running statistics travelled, else the running ones of the model it started from.
    Of several batches behind an observation both are means, weighted as the running statistics weight local steps; the
    dummies' are taken at the weights of the first step.

    Args:
        observation: R rows.
        images: (R, n, C, H, W).
    """
    batches = observation.batches
    count = 1 if batches is None else images.shape[1] // batches.size
    weights, own = observation.weights, images
    if count > 1:
        weights, own = weights.repeat_interleave(count, 0), images.unflatten(1, (count, -1)).flatten(0, 1)
    found = []
    for layer in observation.model.batch_norm_statistics(weights, own):
        made, known = Moments(layer.mean, layer.variance), Moments(*observation.model.running_statistics(layer.name))
        shares = (1 / count,) * count
        if batches is not None and (sent := batches.of_layer(layer.name)):
            known, shares = Moments(*sent), batches.shares[layer.name]
        if count > 1:
            weighting = made.mean.new_tensor(shares)[:, None]
            made = Moments(*((values.unflatten(0, (-1, count)) * weighting).sum(1) for values in made))
        found.append((made, known))
    return found


@ATTACKS.register("gradinversion")
@validated_attack
class GradInversion(Attack):
    """Adam with cosine decay and Langevin noise; every penalty's weight is a setting.

    ``matching_weight`` multiplies the L2 matching term inside the optimised loss. ``group`` pulls a victim's starts
    towards their mean. Statistics are those of the victim's batch where running ones travel (``--batch-norm sent``),
    else the running ones of the model it started from. Networks without BatchNorm have none, so that term is zero.
    """

    init: str = "gauss"
    restarts: Count = 2
    max_iterations: Count = 2500
    tv: NonNegative = 1e-4
    box: bool = True
    patience: CountOrNone = 0
    loss_stop: NonNegative = 0.0
    rate: Positive = 0.1
    warm_up: CountOrNone = 50
    langevin: NonNegative = 0.01
    matching_weight: Positive = 1e-4
    l2_prior: NonNegative = 1e-6
    batch_norm: NonNegative = 0.1
    first_batch_norm: NonNegative = 10.0
    group: NonNegative = 0.01

    def optimizer(self) -> Adam:
        return Adam(self.max_iterations, self.rate, decay="cosine", warm_up=self.warm_up)

    def penalty(self, observation: Observation, dummy: Dummy, victims: Tensor) -> Tensor | float:
        """Priors relative to the matching term, which the runner adds with weight one."""
        images = dummy.images
        prior = self.tv * total_variation(images) + self.l2_prior * images.flatten(1).norm(dim=1)
        if self.batch_norm:
            prior = prior + self.batch_norm * self._statistics(observation, images)
        if self.group and self.restarts > 1:
            prior = prior + self.group * (images - _group_mean(images.detach(), victims)).flatten(1).norm(dim=1)
        return prior / self.matching_weight

    def _statistics(self, observation: Observation, images: Tensor) -> Tensor | float:
        total: Tensor | float = 0.0
        for number, (made, known) in enumerate(statistics_of(observation, images)):
            weight = self.first_batch_norm if number == 0 else 1.0
            distance = (made.mean - known.mean).norm(dim=1) + (made.variance - known.variance).norm(dim=1)
            total = total + weight * distance
        return total

    def after_step(self, position: Tensor, keys: list[tuple[int | str, ...]], iteration: int) -> Tensor:
        noise_keys = [("langevin", *key, iteration) for key in keys]
        scale = self.langevin * self.optimizer().rate(iteration - 1)
        noisy = position + scale * normal_rows(noise_keys, tuple(position.shape[1:]), position)
        return noisy.clamp(0.0, 1.0) if self.box else noisy


def _group_mean(images: Tensor, victims: Tensor) -> Tensor:
    """For every row the mean image of all rows with the same victim."""
    _, index, counts = victims.unique(return_inverse=True, return_counts=True)
    sums = images.new_zeros(len(counts), *images.shape[1:]).index_add_(0, index, images)
    return torch.div(sums, counts.reshape(-1, *[1] * (images.dim() - 1)))[index]
