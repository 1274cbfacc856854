"""A module that a tampering server puts before a network, and the network behind it.

Source: Fowl et al., "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models" (ICLR
2022), section 4; the copies for several clients are those of Zhao et al., "LOKI: Large-scale Data Reconstruction Attack
against Federated Learning through Model Manipulation" (IEEE S&P 2024), section 4. Their way back to an image is a
linear layer; here it has no parameters, since all that matters is that every unit's derivative is the same.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from harness.models.networks import ImageShape

Front = Callable[[ImageShape], nn.Module]
"""Makes what is put before a network, from the shape (C, H, W) of its images; images come out of it again."""


class Lightened(nn.Module):
    """Images (B, C, H, W), all pixels of each moved by the mean of its hidden units (B, K) times ``gain``."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, hidden: Tensor, images: Tensor) -> Tensor:
        moved = self.gain * hidden.mean(-1)
        return images + moved.reshape(*moved.shape, 1, 1, 1)


class Imprint(nn.Module):
    """Rectified linear units over a whole image, all of which move the image on its way to the network alike.

    Args:
        image_shape: (C, H, W).
        bins: K, units.
        clients: copies of the image that ``copy``, a convolution of single pixels, can make; 1 has no such layer.
        gain: how much the units' mean moves a pixel.

    All weights are zero until a server sends others.
    """

    def __init__(self, image_shape: ImageShape, bins: int, clients: int = 1, gain: float = 1.0) -> None:
        super().__init__()
        channels, pixels = image_shape[0] * clients, math.prod(image_shape)
        # Made without a draw: the weights of the network behind it are those that it has alone.
        self.copy = _zeros(nn.Conv2d, image_shape[0], channels, 1, bias=False) if clients > 1 else None
        self.flatten = nn.Flatten()
        self.linear = _zeros(nn.Linear, pixels * clients, bins)
        self.relu = nn.ReLU()
        self.back = Lightened(gain)

    def forward(self, images: Tensor) -> Tensor:
        copies = images if self.copy is None else self.copy(images)
        return self.back(self.relu(self.linear(self.flatten(copies))), images)


class WithInsertedModule(nn.Module):
    """A network behind a module that was put before it."""

    def __init__(self, front: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.front, self.network = front, network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(self.front(images))


def _zeros(kind: type[nn.Module], *sizes: int, **options: bool) -> nn.Module:
    layer = nn.utils.skip_init(kind, *sizes, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer
