"""Rows evaluated one after another, each by the network itself: what large networks are fastest by.

Rows with weights of their own share no arithmetic, so evaluating them together saves only calls. A network of hundreds
of thousands of weights spends its time on reading these, and products of many rows at once take slower kernels.
"""

import copy
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from harness.base.vectors import Layout
from harness.models.batch_norm import LayerStatistics, recorded
from harness.models.bilinear import multiply
from harness.models.feature_extractor import FeatureExtractor
from harness.models.row_layers import border_of, inner, places_along
from harness.models.row_operators import Size, images_of, is_plain_convolution, patches_of
from harness.models.side_by_side import twice_differentiable_attention

# torchvision's vision transformers, of whose last layer only the class token is computed: nothing reads the others.


def spare_other_tokens(network: Any) -> None:
    """Changes a network in place, if it is such a transformer."""
    kinds = sys.modules.get("torchvision.models.vision_transformer")  # which is slow to load, and there if one is
    if kinds is None or type(network) is not kinds.VisionTransformer:
        return
    *_, last = network.encoder.layers
    if type(last) is kinds.EncoderBlock:
        last.__class__ = type("FirstToken", (kinds.EncoderBlock,), {"forward": _first_token})


def _first_token(self: Any, input: Tensor) -> Tensor:
    """Tokens (B, T, E) to the first of them (B, 1, E): every token goes into its attention."""
    normed = self.ln_1(input)
    attended, _ = self.self_attention(normed[:, :1], normed, normed, need_weights=False)
    own = input[:, :1] + self.dropout(attended)
    return own + self.mlp(self.ln_2(own))


# Matrix products by oneDNN, which PyTorch brings along; MKL uses half of what some processors can do.

# Left (M, K) and right (N, K) to left times right transposed, whatever their strides.
_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_WORTH = 2**20
"""Multiplications of a product below which oneDNN costs more than it saves."""


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """Left (M, K) times right (N, K) transposed."""
    if len(left) * right.numel() >= _WORTH and is_possible(left):
        assert _LINEAR is not None
        return _LINEAR(left, right, None, "none", [], "")
    return left @ right.mT


def is_possible(values: Tensor) -> bool:
    """Whether oneDNN computes with values of this kind, here."""
    return _LINEAR is not None and values.dtype == torch.float32 and values.device.type == "cpu"


# What layers are told of the pass that they are in: that their weights' gradient is differentiated by images only.

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


def passes(values: Tensor) -> tuple[bool, bool]:
    """``kernels_once`` and ``first`` of :class:`~harness.models.bilinear.Bilinear` for a layer with this input."""
    batch = _BATCH.get()
    return batch is not None, values is batch


_ALIGNED = 64  # bytes, as all memory that PyTorch asks for


class LoneRows:
    """A network for rows (R, P) of weights; every result for a row depends on that row alone, to the bit.

    Args:
        module: the network.
        layout: of its parameters.
    """

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._original, self._layout = module, layout
        self._clones = threading.local()

    @property
    def _module(self) -> nn.Module:
        """The network; a copy in every other thread, since a call puts weights into it."""
        if threading.current_thread() is threading.main_thread():
            return self._original
        if not hasattr(self._clones, "module"):
            self._clones.module = copy.deepcopy(self._original)
        return self._clones.module

    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W)."""
        with twice_differentiable_attention():
            rows = zip(_rows(weights), _rows(images), strict=True)
            return torch.stack([self._call(self._layout.split(flat), batch) for flat, batch in rows])

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """Gradients (R, P) of each row's mean cross-entropy."""
        return self._gradients(_rows(weights), _rows(images), targets.unbind(), create_graph)

    def per_example_gradients(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """The same (R, B, P) of each example's own loss, without a copy of the weights for each."""
        batch = images.shape[1]
        repeated = [flat for flat in _rows(weights) for _ in range(batch)]
        examples, alone = _rows(images.flatten(0, 1)[:, None]), targets.flatten(0, 1)[:, None].unbind()
        return self._gradients(repeated, examples, alone, create_graph).unflatten(0, (-1, batch))

    def _gradients(
        self, weights: Sequence[Tensor], images: Sequence[Tensor], targets: Sequence[Tensor], create_graph: bool
    ) -> Tensor:
        rows = zip(weights, images, targets, strict=True)
        with torch.enable_grad(), twice_differentiable_attention():
            parts = [part.flatten() for row in rows for part in self._parts(*row, create_graph)]
        return torch.cat(parts).unflatten(0, (len(weights), -1))

    def _parts(self, flat: Tensor, batch: Tensor, targets: Tensor, create_graph: bool) -> tuple[Tensor, ...]:
        named = self._layout.split(flat)
        own_leaf = not flat.requires_grad
        if own_leaf:
            named = {name: part.detach().requires_grad_() for name, part in named.items()}
        with gradient_once(batch) if own_leaf and create_graph else nullcontext():
            loss = functional.cross_entropy(self._call(named, batch), targets)
        return torch.autograd.grad(loss, list(named.values()), create_graph=create_graph, materialize_grads=True)

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        """See :meth:`~harness.models.RowModel.batch_norm_statistics`."""
        rows = []
        with twice_differentiable_attention():
            for flat, batch in zip(_rows(weights), _rows(images), strict=True):
                with recorded(self._module) as seen:
                    self._call(self._layout.split(flat), batch)
                rows.append(seen)
        return [
            LayerStatistics(
                of_layer[0].name, torch.stack([one.mean for one in of_layer]),
                torch.stack([one.variance for one in of_layer]), of_layer[0].count,
            )
            for of_layer in zip(*rows, strict=True)
        ]  # fmt: skip

    def _call(self, named: dict[str, Tensor], batch: Tensor) -> Tensor:
        return functional_call(self._module, named, (batch,))


def _rows(values: Tensor) -> list[Tensor]:
    """Each row of (R, ...), none of which lies in memory in a way that depends on its place: sums round by that too."""
    return [row if row.data_ptr() % _ALIGNED == 0 else row.clone() for row in values.unbind()]


# A convolution of a network that is evaluated for one row at a time, with fast derivatives of derivatives.
#
# On a CPU a convolution's own second derivative takes kernels as large as its images.

_BACKWARD = torch.ops.aten.convolution_backward
# The convolution's own routines read such kernels several times, measured on layers of ResNet-18.
_FEW_PLACES, _LARGE_KERNELS = range(4, 17), 2**18


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

    def places(self, size: Size, kernel: Size) -> Size:
        """Rows and columns of the output for images of this size."""
        return tuple(map(places_along, size, kernel, self.padding, self.stride))


@dataclass(frozen=True)
class _AtFewPlaces(_Convolution):
    """The same as products of patches and kernels: fast where large kernels have few places."""

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        made = transposed_product(self._patches(values, kernels), kernels.flatten(1))
        places = self.places(values.shape[-2:], kernels.shape[-2:])
        return made.unflatten(0, (len(values), -1)).mT.unflatten(-1, places).contiguous()

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        patches = transposed_product(_by_place(outer.flatten(2)), kernels.flatten(1).mT)
        patches = patches.unflatten(0, (len(values), -1)).mT
        return images_of(patches, values.shape[-2:], kernels.shape[-2:], self.padding, self.stride)

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        made = transposed_product(_by_place(outer.flatten(2)).mT, self._patches(values, kernels).mT)
        return made.reshape(kernels.shape)

    def _patches(self, values: Tensor, kernels: Tensor) -> Tensor:
        return _by_place(patches_of(values, kernels.shape[-2:], self.padding, self.stride))


def _by_place(values: Tensor) -> Tensor:
    """Values (B, F, L) as (B*L, F)."""
    return values.mT.flatten(0, 1)


class LoneConv2d(nn.Conv2d):
    """A plain convolution."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4:
            return super().forward(input)
        border, padding = border_of(input.shape[-2:], self)
        kernels = inner(self.weight, border) if any(border) else self.weight
        geometry = _Convolution(self.stride, padding, *passes(input))
        rows, columns = geometry.places(input.shape[-2:], kernels.shape[-2:])
        if len(input) * rows * columns in _FEW_PLACES and kernels.numel() >= _LARGE_KERNELS and is_possible(input):
            geometry = _AtFewPlaces(self.stride, padding, *passes(input))
        product = multiply(input, kernels, geometry)
        return product if self.bias is None else product + self.bias[:, None, None]


# Layers of a network that is evaluated for one row at a time, with fast derivatives of derivatives.


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
