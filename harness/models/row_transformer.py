"""Layers of a transformer for many rows together, each with weights of its own: every one a product of all rows.

Evaluated row by row, or under ``vmap``, a small transformer spends most of its time on starting some thousand small
operations for every row.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from harness.models.bilinear import multiply
from harness.models.row_operators import patches_of
from harness.models.row_products import LinearRows
from harness.models.row_sigmoid import Context


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
    """What the parts of an encoder layer are called; as it stands, by ``nn.TransformerEncoderLayer``."""

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

    def encoder_layer(self, name: str, tokens: Tensor, first_only: bool = False) -> Tensor:
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
        """What the first token attends to, without any other's key and value.

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
    """How much each of queries (..., Q, F) attends to each of keys (..., K, F), of heads of so many coordinates."""
    return (queries * width**-0.5 @ keys.mT).softmax(-1)
