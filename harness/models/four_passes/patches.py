"""Patches of images as tokens, in four passes."""

import torch
from torch import Tensor

from harness.models.four_passes.weights import Weight
from harness.models.onednn import transposed_product, transposed_product_into


class Patches:
    """Square patches X of images make tokens X W^T + b, a class token goes before them, and all have places.

    Nothing lies before it: the images do not move, and what is wanted is dX. = dy. W + dy W. alone.
    """

    def __init__(self, weight: Weight, bias: Weight, class_token: Weight, places: Weight) -> None:
        self._weight, self._bias, self._class_token, self._places = weight, bias, class_token, places

    def forward(self, images: Tensor) -> Tensor:
        """Tokens (B T, E) of images (B, C, H, W)."""
        count, channels, height, width = images.shape
        side = self._weight.value.shape[-1]
        self._apart = (count, height // side, width // side, channels, side, side)
        parts = images.reshape(count, channels, height // side, side, width // side, side).permute(0, 2, 4, 1, 3, 5)
        self._patches = parts.reshape(-1, channels * side * side)
        made = transposed_product(self._patches, self._weight.value.flatten(1), self._bias.value)
        return self._tokens(made, self._class_token.value, self._places.value)

    def backward(self, outer: Tensor) -> None:
        """Writes the gradients, from that by the tokens."""
        of_places = outer.view(self._apart[0], -1, outer.shape[1])
        torch.sum(of_places, 0, keepdim=True, out=self._places.gradient)
        self._class_token.gradient.copy_(self._places.gradient[:, :1])
        self._outer = of_places[:, 1:].flatten(0, 1)
        torch.sum(self._outer, 0, out=self._bias.gradient)
        transposed_product_into(self._weight.gradient.flatten(1), self._outer.mT, self._patches.mT)

    def forward_moved(self) -> Tensor:
        """Tokens as they move with the weights."""
        made = transposed_product(self._patches, self._weight.direction.flatten(1), self._bias.direction)
        return self._tokens(made, self._class_token.direction, self._places.direction)

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        """The derivative (B, C, H, W) by the images."""
        moved = outer_moved.view(self._apart[0], -1, outer_moved.shape[1])[:, 1:].flatten(0, 1)
        made = transposed_product(moved, self._weight.value.flatten(1).mT)
        made.add_(transposed_product(self._outer, self._weight.direction.flatten(1).mT))
        count, rows, columns, channels, side, _ = self._apart
        return made.view(self._apart).permute(0, 3, 1, 4, 2, 5).reshape(count, channels, rows * side, columns * side)

    def _tokens(self, patches: Tensor, class_token: Tensor, places: Tensor) -> Tensor:
        count = self._apart[0]
        tokens = torch.cat([class_token.expand(count, -1, -1), patches.view(count, -1, patches.shape[1])], 1)
        return tokens.add_(places).flatten(0, 1)
