"""Max pooling that is fast on a CPU."""

import torch
from torch import Tensor, nn


class RowMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` on images whose channels lie side by side in memory, which the library compares together.

    The results are the same to the bit, where the channels lie apart it goes number by number.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu" or self.return_indices:
            return super().forward(input)
        return super().forward(input.contiguous(memory_format=torch.channels_last)).contiguous()
