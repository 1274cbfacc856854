"""Max pooling that is fast on a CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RowMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` on images whose channels lie side by side in memory, which the library compares together.

    The results are the same to the bit, where the channels lie apart it goes number by number.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu":
            return _pooled(self, input)
        if input.is_contiguous(memory_format=torch.channels_last):
            return _pooled(self, input)
        return _pooled(self, input.contiguous(memory_format=torch.channels_last)).contiguous()


def _pooled(layer: nn.MaxPool2d, images: Tensor) -> Tensor:
    return functional.max_pool2d(
        images, layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode
    )
