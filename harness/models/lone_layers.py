"""Layers of a network that is evaluated for one row at a time, with fast derivatives of derivatives."""

import copy
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from harness.models.bilinear import multiply
from harness.models.differentiated_once import passes
from harness.models.feature_extractor import FeatureExtractor
from harness.models.lone_class_token import spare_other_tokens
from harness.models.lone_convolution import LoneConv2d
from harness.models.onednn import transposed_product
from harness.models.row_operators import is_plain_convolution


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


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = multiply(values.flatten(0, -2), weight, _Linear(*passes(values)))
    product = product.reshape(*values.shape[:-1], len(weight))
    return product if bias is None else product + bias


class LoneLinear(nn.Linear):
    """A linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        return _linear(input, self.weight, self.bias) if input.dim() > 1 else super().forward(input)


class LoneAttention(nn.MultiheadAttention):
    """Attention of tokens among themselves."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Any:
        if not self._is_plain(query, key, value, rest, named):
            return super().forward(query, key, value, *rest, **named)
        tokens, asking = (values if self.batch_first else values.transpose(0, 1) for values in (key, query))
        if query is key:
            queries, keys, values = self._projected(tokens, 0, 3)
        else:
            (queries,), (keys, values) = self._projected(asking, 0, 1), self._projected(tokens, 1, 3)
        attended = (queries * (1 / math.sqrt(self.head_dim)) @ keys.mT).softmax(-1) @ values
        made = _linear(attended.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        return made if self.batch_first else made.transpose(0, 1), None

    def _projected(self, tokens: Tensor, first: int, last: int) -> Tensor:
        """Of queries, keys and values (0, 1, 2) of tokens (B, T, E) those from the first to before the last."""
        part = slice(first * self.embed_dim, last * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[part]
        made = _linear(tokens, self.in_proj_weight[part], bias)
        return made.unflatten(-1, (last - first, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)

    def _is_plain(
        self, query: Tensor, key: Tensor, value: Tensor, rest: tuple[Any, ...], named: dict[str, Any]
    ) -> bool:
        """Whether nothing is asked for but the tokens: no weights, no mask."""
        asked = any(
            one is not None and one is not False for name, one in named.items() if name != "average_attn_weights"
        )
        return (
            key is value and query.dim() == 3 and not rest and named.get("need_weights") is False and not asked
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
    spare_other_tokens(layer)
    if type(layer) in _LONE and not (type(layer) is nn.Conv2d and not is_plain_convolution(layer)):
        layer.__class__ = _LONE[type(layer)]  # pyright: ignore[reportAttributeAccessIssue]  # a subclass of its own
    for child in layer.children():
        _replace(child)
