"""ResNet-8 for small images, with BatchNorm in training mode.

Source: He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), section 4.2: 6n + 2 layers with n = 1, of
16, 32 and 64 channels, and shortcuts without parameters (option A).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.networks import MODELS, ImageShape, refuse_table_rows


class _Block(nn.Module):
    """Two 3x3 convolutions, and their input added: where it has to fit, every second pixel, zeros for new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, values: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(values)))
        shortcut = values[..., :: self.stride, :: self.stride]
        if self.added:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.added))
        return functional.relu(self.second_norm(self.second(hidden)) + shortcut)


class ResNet8(nn.Module):
    """A convolution, three residual blocks, the mean over all places, one linear layer; He's normal weights."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2))
        self.head = nn.Linear(64, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(torch.relu(self.norm(self.convolution(images))))
        return self.head(features.mean((2, 3)))


@MODELS.register("resnet8")
def resnet8(image_shape: ImageShape, classes: int) -> nn.Module:
    """ResNet-8: three residual blocks of 16, 32 and 64 channels, BatchNorm in training mode (75,290 parameters)."""
    refuse_table_rows("resnet8", image_shape)
    return ResNet8(image_shape[0], classes)
