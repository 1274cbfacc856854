"""Layers of a transformer for many rows together, each with weights of its own: every one a product of all rows.

Evaluated row by row, or under ``vmap``, a small transformer spends most of its time on starting some thousand small
operations for every row.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from harness.base.errors import UsageError
from harness.models.bilinear import Context, LinearRows, multiply
from harness.models.networks import MODELS, ImageShape, refuse_table_rows
from harness.models.row_operators import patches_of


class _Gelu(torch.autograd.Function):
    """x Phi(x), with derivatives of few passes: PyTorch composes the second one of a dozen."""

    @staticmethod
    def forward(ctx: Context, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return functional.gelu(values)

    @staticmethod
    def backward(ctx: Context, outer: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        return _GeluSlope.apply(outer, values)


class _GeluSlope(torch.autograd.Function):
    """Outer derivatives times Phi(x) + x phi(x), whose own derivative is phi(x) (2 - x^2)."""

    @staticmethod
    def forward(ctx: Context, outer: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(outer, values)
        return torch.ops.aten.gelu_backward(outer, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, further: Tensor) -> tuple[Tensor, Tensor]:
        outer, values = ctx.saved_tensors
        square = values.square()
        curvature = (square * -0.5).exp_().mul_(square.neg_().add_(2.0)).mul_(outer).mul_(further)
        return torch.ops.aten.gelu_backward(further, values), curvature.mul_(_DENSITY_AT_ZERO)


_DENSITY_AT_ZERO = (2 * math.pi) ** -0.5


def gelu(values: Tensor) -> Tensor:
    """x Phi(x), differentiable twice; of the second derivative no graph is made."""
    return _Gelu.apply(values)


Named = Mapping[str, Tensor]
"""Parameters by name, each (R, ...)."""


@dataclass(frozen=True)
class _Linear(LinearRows):
    kernels_once: bool
    first: bool


@dataclass(frozen=True)
class LayerNames:
    """Names of the parts of an encoder layer; the defaults are those of ``nn.TransformerEncoderLayer``."""

    norm: str = "norm1"
    attention: str = "self_attn"
    norm_after: str = "norm2"
    hidden: str = "linear1"
    out: str = "linear2"


@dataclass(frozen=True)
class RowTransformer:
    """The layers of one network, found by the names of their parameters.

    ``gradient_once``: ``kernels_once`` of :class:`~harness.models.bilinear.Bilinear`, for every layer. ``epsilon``: of
    the normalisations.
    """

    named: Named
    heads: int
    gradient_once: bool = False
    names: LayerNames = LayerNames()
    epsilon: float = 1e-5

    def linear(self, values: Tensor, weight: Tensor, bias: Tensor, first: bool = False) -> Tensor:
        """(R, B, T, O) of values (R, B, T, F), weights (R, O, ...) and biases (R, O); ``first``: of the images."""
        layer = _Linear(self.gradient_once, self.gradient_once and first)
        product = multiply(values.flatten(1, 2), weight.flatten(2), layer).add_(bias[:, None])  # nobody keeps a product
        return product.unflatten(1, values.shape[1:3])

    def norm(self, name: str, values: Tensor) -> Tensor:
        """A layer normalisation."""
        normed = functional.layer_norm(values, values.shape[-1:], eps=self.epsilon)
        return (normed * self.named[f"{name}.weight"][:, None, None]).add_(self.named[f"{name}.bias"][:, None, None])

    def encoder_layer(self, name: str, tokens: Tensor, first_only: bool) -> Tensor:
        """A pre-norm encoder layer of tokens (R, B, T, E).

        ``first_only``: of the first token alone, where nothing reads the others; all go into its attention.
        """
        names = self.names
        normed, attention = self.norm(f"{name}.{names.norm}", tokens), f"{name}.{names.attention}"
        if first_only:
            tokens = tokens[:, :, :1] + self._attention_of_first(attention, normed)
        else:
            tokens = tokens + self._attention(attention, normed)
        hidden = self.named_linear(f"{name}.{names.hidden}", self.norm(f"{name}.{names.norm_after}", tokens))
        return tokens + self.named_linear(f"{name}.{names.out}", gelu(hidden))

    def first_token(self, layers: list[str], tokens: Tensor) -> Tensor:
        """Return what encoder layers make of the first of tokens (R, B, T, E): (R, B, 1, E)."""
        for name in layers:
            tokens = self.encoder_layer(name, tokens, first_only=name == layers[-1])
        return tokens

    def named_linear(self, name: str, values: Tensor, first: bool = False) -> Tensor:
        """:meth:`linear` with parameters of its own."""
        return self.linear(values, self.named[f"{name}.weight"], self.named[f"{name}.bias"], first)

    def tokens_of(self, name: str, images: Tensor, patch: int, class_token: str) -> Tensor:
        """Tokens (R, B, 1 + T, E) of images (R, B, C, H, W): the class token, then one of each patch."""
        patches = patches_of(images, (patch, patch), (0, 0), (patch, patch)).mT
        made = self.named_linear(name, patches, first=True)
        return torch.cat([self.named[class_token].expand(-1, images.shape[1], -1, -1), made], 2)

    def _attention(self, name: str, tokens: Tensor) -> Tensor:
        parts = self.linear(tokens, self.named[f"{name}.in_proj_weight"], self.named[f"{name}.in_proj_bias"])
        queries, keys, values = (part.unflatten(-1, (self.heads, -1)).transpose(2, 3) for part in parts.chunk(3, -1))
        attended = _shares(queries, keys, queries.shape[-1]) @ values
        return self.named_linear(f"{name}.out_proj", attended.transpose(2, 3).flatten(3))

    def _attention_of_first(self, name: str, tokens: Tensor) -> Tensor:
        """Return what the first token attends to, without any other's key and value.

        Both are linear in the tokens: in place of every token the one query goes through the keys' matrix, and the
        mean of the tokens through the values'. The keys' bias adds the same to every score, and so nothing.
        """
        width = tokens.shape[-1]
        weight, for_keys, for_values = self.named[f"{name}.in_proj_weight"].split(width, 1)
        bias, _, value_bias = self.named[f"{name}.in_proj_bias"].split(width, 1)
        heads = torch.eye(self.heads).to(tokens).repeat_interleave(width // self.heads, 1)  # (H, E), what is whose
        queries = self.linear(tokens[:, :, :1], weight, bias) * heads
        asked = (queries.flatten(1, 2) @ for_keys).unflatten(1, (-1, self.heads))
        means = _shares(asked, tokens, width // self.heads) @ tokens
        attended = ((means.flatten(1, 2) @ for_values.mT).unflatten(1, (-1, self.heads)) * heads).sum(2, keepdim=True)
        return self.named_linear(f"{name}.out_proj", attended + value_bias[:, None, None])


def _shares(queries: Tensor, keys: Tensor, width: int) -> Tensor:
    """Return how much each of queries (..., Q, F) attends to each of keys (..., K, F). Heads have so many
    coordinates."""
    return (queries * width**-0.5 @ keys.mT).softmax(-1)


# torchvision's vision transformers for many rows together.

_NAMES = LayerNames("ln_1", "self_attention", "ln_2", "mlp.0", "mlp.3")


class TorchvisionTransformer:
    """A ``VisionTransformer`` as :class:`~harness.models.rows.EvaluatesRows`."""

    def __init__(self, network: Any) -> None:
        self._heads, self._patch = network.encoder.layers[0].num_heads, network.patch_size
        self._epsilon, self._layers = network.encoder.ln.eps, list(dict(network.encoder.layers.named_children()))

    def row_logits(self, named: Named, images: Tensor, gradient_once: bool) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under named parameters (R, ...)."""
        rows = RowTransformer(named, self._heads, gradient_once, _NAMES, self._epsilon)
        tokens = rows.tokens_of("conv_proj", images, self._patch, "class_token") + named["encoder.pos_embedding"]
        tokens = rows.first_token([f"encoder.layers.{name}" for name in self._layers], tokens)
        return rows.named_linear("heads.head", rows.norm("encoder.ln", tokens))[:, :, 0]


def torchvision_transformer(network: nn.Module) -> TorchvisionTransformer | None:
    """For a network as torchvision makes it; None for any other, or one that somebody has changed."""
    kinds: Any = sys.modules.get("torchvision.models.vision_transformer")  # slow to load, and there if one is
    if kinds is None or type(network) is not kinds.VisionTransformer or not _is_plain(network, kinds):
        return None
    return TorchvisionTransformer(network)


def _is_plain(network: Any, kinds: Any) -> bool:
    """Return whether nobody has put anything else into its places. Types come first: what was put there has other
    parts."""
    if type(network.encoder) is not kinds.Encoder or type(network.encoder.layers) is not nn.Sequential:
        return False
    layers, stem, last = list(network.encoder.layers), network.conv_proj, network.encoder.ln
    size = (network.patch_size, network.patch_size)
    return (
        type(stem) is nn.Conv2d and stem.kernel_size == stem.stride == size and stem.padding == (0, 0)
        and stem.groups == 1 and stem.bias is not None and type(last) is nn.LayerNorm
        and type(network.heads) is nn.Sequential
        and {name: type(part) for name, part in network.heads.named_children()} == {"head": nn.Linear}
        and len(layers) > 0 and all(_is_plain_layer(layer, kinds, last.eps) for layer in layers)
    )  # fmt: skip


def _is_plain_layer(layer: Any, kinds: Any, epsilon: float) -> bool:
    if type(layer) is not kinds.EncoderBlock or type(layer.mlp) is not kinds.MLPBlock:
        return False
    norms, attention = (layer.ln_1, layer.ln_2), layer.self_attention
    return (
        all(type(norm) is nn.LayerNorm and norm.eps == epsilon for norm in norms)
        and type(attention) is nn.MultiheadAttention and attention.batch_first
        and attention.bias_k is None and not attention.add_zero_attn
        and [type(part) for part in layer.mlp] == [nn.Linear, nn.GELU, nn.Dropout, nn.Linear, nn.Dropout]
        and layer.mlp[1].approximate == "none"
    )  # fmt: skip


# A small vision transformer.
#
# Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), pre-norm encoder with a class token; width
# 192, 3 heads and a hidden layer of 768 are DeiT-Ti's (Touvron et al., ICML 2021), two layers and patches of 4 pixels
# ours.

_PATCH, _WIDTH, _HEADS, _HIDDEN, _LAYERS = 4, 192, 3, 768, 2


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token before them, learned places, an encoder, a linear layer on the class token."""

    def __init__(self, channels: int, patches: int, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Conv2d(channels, _WIDTH, _PATCH, _PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.places = nn.Parameter(torch.randn(1, patches + 1, _WIDTH) * 0.02)
        self.encoder = nn.Sequential(*encoder_layers(_LAYERS, _WIDTH, _HEADS, _HIDDEN))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        patches = self.tokens(images).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], 1) + self.places
        return self.head(self.norm(first_token(self.encoder, tokens)))

    def row_logits(self, named: Named, images: Tensor, gradient_once: bool) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under named parameters (R, ...), as :meth:`forward` has them."""
        rows = RowTransformer(named, _HEADS, gradient_once)
        tokens = rows.tokens_of("tokens", images, _PATCH, "class_token") + named["places"]
        tokens = rows.first_token([f"encoder.{number}" for number in range(_LAYERS)], tokens)
        return rows.named_linear("head", rows.norm("norm", tokens))[:, :, 0]


def encoder_layers(count: int, width: int, heads: int, hidden: int) -> list[nn.Module]:
    """Pre-norm encoder layers without dropout."""
    return [
        nn.TransformerEncoderLayer(width, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True)
        for _ in range(count)
    ]


def first_token(encoder: nn.Sequential, tokens: Tensor) -> Tensor:
    """Return what encoder layers make of the first of tokens (B, T, E), and it alone, as nothing reads the others:
    (B, E).

    Every token goes into the last layer's attention, none but the first through all that follows.
    """
    *layers, last = encoder
    for layer in layers:
        tokens = layer(tokens)
    assert isinstance(last, nn.TransformerEncoderLayer)
    normed = last.norm1(tokens)
    attended, _ = last.self_attn(normed[:, :1], normed, normed, need_weights=False)
    own = tokens[:, 0] + attended[:, 0]
    return own + last.linear2(last.activation(last.linear1(last.norm2(own))))


@MODELS.register("vit")
def vit(image_shape: ImageShape, classes: int) -> nn.Module:
    """A vision transformer of two layers on patches of 4x4 pixels (914,122 parameters at 32x32, ten classes)."""
    refuse_table_rows("vit", image_shape)
    channels, height, width = image_shape
    if height % _PATCH or width % _PATCH:
        raise UsageError(
            f"model 'vit' takes images of multiples of {_PATCH} pixels, not {height}x{width}; use another --model"
        )
    return VisionTransformer(channels, (height // _PATCH) * (width // _PATCH), classes)
