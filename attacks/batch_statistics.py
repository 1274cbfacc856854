"""What BatchNorm layers are given of dummy images, beside what an adversary knows of the victim's own batch there."""

from typing import NamedTuple

from torch import Tensor

from harness.observation import Observation


class Moments(NamedTuple):
    """Mean and (biased) variance of a layer's input, (R, channels) or (channels,)."""

    mean: Tensor
    variance: Tensor


def statistics_of(observation: Observation, images: Tensor) -> list[tuple[Moments, Moments]]:
    """Of dummies, and as they are known, for each BatchNorm in the order of the forward pass.

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
