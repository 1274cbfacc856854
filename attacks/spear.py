"""Spear: whole batches, exactly, from a network whose first layer is fully connected with rectified units.

The gradient of such a layer has the rank of the batch, and the units that an example leaves dead are zeros in its
factor. Source: Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning" (NeurIPS 2024). They
search for directions with many zeros by sampling sets of rows, at a cost that grows exponentially with the batch. Here,
which is ours, the known weights tell which units an example leaves dead: examples that some unit holds alone are taken
out one by one (:mod:`harness.attacks.relu_layer`), and the others are looked for together
(:mod:`harness.attacks.relu_layer`). The server is honest: it only reads.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from harness.attacks.attack import ATTACKS, ClosedForm, Dummy, validated_attack
from harness.attacks.bins import blank_of
from harness.attacks.relu_layer import of_rank, peeled, rectified_layer
from harness.base.errors import UsageError
from harness.models.side_by_side import side_by_side
from harness.observation import Observation


@ATTACKS.register("spear")
@validated_attack
class Spear(ClosedForm):
    """Attack without settings of its own; batches may be as large as a tenth of the layer, and often larger."""

    uses_labels: ClassVar[bool] = False

    def solved(self, observation: Observation) -> Tensor:
        return solved_by_layer(observation, "spear")

    def matching(self, observation: Observation, dummy: Dummy) -> Tensor:
        """The share (R,) of the layer's gradient that no mixture of the images makes; labels do not matter to it."""
        return super().matching(observation, dummy) + unexplained(observation, dummy.images.detach(), "spear")


def unexplained(observation: Observation, images: Tensor, attack: str) -> Tensor:
    """Return the part of the gradient E X of a first layer that is outside the span of the rows of X. These are
    examples with a one behind each.

    Args:
        images: (R, n, C, H, W).

    Returns:
        Squared lengths (R,) of what is left, as shares of the whole.

    Raises:
        UsageError: the network has no such layer.
    """
    weight, bias = rectified_layer(observation.model, attack)
    gradients = observation.model.layout.split(observation.target)
    seen = torch.cat([gradients[weight], gradients[bias][..., None]], 2).double()
    examples = functional.pad(images.flatten(2), (0, 1), value=1.0).double()
    left = seen - seen @ torch.linalg.pinv(examples) @ examples
    shares = left.flatten(1).square().sum(1) / seen.flatten(1).square().sum(1).clamp_min(1e-300)
    return shares.to(observation.target)


def solved_by_layer(observation: Observation, attack: str) -> Tensor:
    """Images (R, n*D) by a rectified first layer, each once; the mean of public images, or grey, where none is found.

    Raises:
        UsageError: the network has no such layer, or it has fewer units than examples are behind an observation.
    """
    weight, bias = rectified_layer(observation.model, attack)
    layout, blank, count = observation.model.layout, blank_of(observation), observation.unknowns
    gradients, sent = (layout.split(flat) for flat in (observation.target, observation.weights))
    exact = None if observation.certainty is None else layout.split(observation.certainty)
    units = gradients[weight].shape[1]
    if count > units:
        raise UsageError(
            f"attack {attack!r} tells at most as many examples apart as the first layer of model "
            f"{observation.model.name!r} has units, {units}, and {count} are behind one observation; use a smaller "
            "--batch-size"
        )

    def joined(parts: Mapping[str, Tensor], row: int) -> Tensor:
        return torch.cat([parts[weight][row], parts[bias][row, :, None]], 1).double()

    def of_row(row: int) -> Tensor:
        read, known = joined(gradients, row), joined(sent, row)
        if not read.isfinite().all():
            return blank.repeat(count)
        if exact is not None:
            read = of_rank(read, joined(exact, row), count)
        found = peeled(read, known, count).to(blank)
        return torch.cat([found, blank.expand(count - len(found), -1)]).flatten()

    # Many small decompositions: threads that shared each of them would mostly wait for each other.
    return torch.stack(side_by_side(of_row, range(observation.rows), observation.target.device.type == "cpu"))
