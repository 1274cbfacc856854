"""Layers of a network that is evaluated for one row at a time, with fast derivatives of derivatives.

On a CPU a convolution's own second derivative takes kernels as large as its images, and matrix products go to MKL,
which on some processors uses half of what they can do; oneDNN, which PyTorch brings along, does not.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.models.bilinear import multiply
from harness.models.feature_extractor import FeatureExtractor
from harness.models.row_operators import Size, is_plain_convolution, zero_padding

_BACKWARD = torch.ops.aten.convolution_backward
# Left (M, K) and right (N, K) to left times right transposed, whatever their strides.
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_WORTH_ONEDNN = 2**20
"""Multiplications of a product below which oneDNN costs more than it saves."""

_BATCH: ContextVar[Tensor | None] = ContextVar("batch", default=None)


@contextmanager
def gradient_once(batch: Tensor) -> Iterator[None]:
    """Around the forward pass on a batch whose gradient by the weights is taken in one pass that creates a graph, and
    is differentiated by the batch only."""
    token = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(token)


def _passes(values: Tensor) -> tuple[bool, bool]:
    """``kernels_once`` and ``first`` of :class:`~harness.models.bilinear.Bilinear` for a layer with this input."""
    batch = _BATCH.get()
    return batch is not None, values is batch


@dataclass(frozen=True)
class _Convolution:
    """Images (B, C, H, W) with kernels (O, C, k, k)."""

    stride: Size
    padding: Size
    kernels_once: bool
    first: bool

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        return torch.conv2d(values, kernels, None, self.stride, self.padding)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return self._backward(outer, values, kernels, [True, False, False])[0]

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return self._backward(outer, values, kernels, [False, True, False])[1]

    def _backward(self, outer: Tensor, values: Tensor, kernels: Tensor, mask: list[bool]) -> tuple[Tensor, ...]:
        return _BACKWARD(outer, values, kernels, None, self.stride, self.padding, (1, 1), False, (0, 0), 1, mask)


@dataclass(frozen=True)
class _Linear:
    """Values (T, F) with kernels (O, F)."""

    kernels_once: bool
    first: bool

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        return transposed_product(values, kernels)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return transposed_product(outer, kernels.mT)

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return transposed_product(outer.mT, values.mT)


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """Left (M, K) times right (N, K) transposed."""
    large = len(left) * right.numel() >= _WORTH_ONEDNN
    if _ONEDNN is not None and large and left.dtype == torch.float32 and left.device.type == "cpu":
        return _ONEDNN(left, right, None, "none", [], "")
    return left @ right.mT


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = multiply(values.flatten(0, -2), weight, _Linear(*_passes(values)))
    product = product.reshape(*values.shape[:-1], len(weight))
    return product if bias is None else product + bias


class LoneConv2d(nn.Conv2d):
    """A plain convolution."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4:
            return super().forward(input)
        geometry = _Convolution(self.stride, zero_padding(self), *_passes(input))
        product = multiply(input, self.weight, geometry)
        return product if self.bias is None else product + self.bias[:, None, None]


class LoneLinear(nn.Linear):
    """A linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        return _linear(input, self.weight, self.bias) if input.dim() > 1 else super().forward(input)


class LoneAttention(nn.MultiheadAttention):
    """Attention of tokens among themselves."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Any:
        if not self._is_plain(query, key, value, rest, named):
            return super().forward(query, key, value, *rest, **named)
        tokens = query if self.batch_first else query.transpose(0, 1)
        packed = _linear(tokens, self.in_proj_weight, self.in_proj_bias)
        queries, keys, values = packed.unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        attended = (queries * (1 / math.sqrt(self.head_dim)) @ keys.mT).softmax(-1) @ values
        made = _linear(attended.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        return made if self.batch_first else made.transpose(0, 1), None

    def _is_plain(
        self, query: Tensor, key: Tensor, value: Tensor, rest: tuple[Any, ...], named: dict[str, Any]
    ) -> bool:
        """Whether nothing is asked for but the tokens: no weights, no mask."""
        asked = any(
            one is not None and one is not False for name, one in named.items() if name != "average_attn_weights"
        )
        return (
            query is key is value and query.dim() == 3 and not rest and named.get("need_weights") is False and not asked
            and self._qkv_same_embed_dim and self.bias_k is None and not self.add_zero_attn
            and not (self.training and self.dropout)
        )  # fmt: skip


_LONE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: LoneConv2d, nn.Linear: LoneLinear, nn.MultiheadAttention: LoneAttention,
}  # fmt: skip


def with_lone_layers(module: nn.Module) -> nn.Module:
    """A copy of a network with these layers in the place of its own; one that asks for their kind finds it still.

    A feature extractor's layers stay as they are.
    """
    clone = copy.deepcopy(module)
    _replace(clone)
    return clone


def _replace(layer: nn.Module) -> None:
    if isinstance(layer, FeatureExtractor):
        return
    if type(layer) in _LONE and not (type(layer) is nn.Conv2d and not is_plain_convolution(layer)):
        layer.__class__ = _LONE[type(layer)]  # pyright: ignore[reportAttributeAccessIssue]  # a subclass of its own
    for child in layer.children():
        _replace(child)
