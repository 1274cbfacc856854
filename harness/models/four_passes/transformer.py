"""The small vision transformer in four passes."""

from torch import Tensor, nn

from harness.models.four_passes.attention import Attention, FirstAttention, FirstResidual
from harness.models.four_passes.gradient import Network, gradient
from harness.models.four_passes.layers import Chain, Gelu, Layer, LayerNorm, Linear, Residual
from harness.models.four_passes.patches import Patches
from harness.models.four_passes.weights import Weights
from harness.models.vision_transformer import VisionTransformer
from harness.vectors.layout import Layout


def is_written_out(module: nn.Module) -> bool:
    """Whether :func:`gradient_of` knows a network."""
    return type(module) is VisionTransformer


def gradient_of(module: nn.Module, layout: Layout, flat: Tensor, images: Tensor, targets: Tensor) -> Tensor:
    """The gradient (P,) by weights (P,) of the mean cross-entropy, differentiable once by images and targets.

    Args:
        module: such a network; its own weights are not looked at.
        images: (B, C, H, W).
        targets: labels (B,) or probabilities (B, K).
    """
    assert isinstance(module, VisionTransformer)
    weights = Weights(flat, layout)
    tokens = weights["places"].value.shape[1]
    names = [f"encoder.{place}" for place in range(len(module.encoder))]
    *encoders, last = zip(names, module.encoder, strict=True)
    layers = [_encoder(weights, *each, tokens) for each in encoders]
    layers += [_last_encoder(weights, *last, tokens), _norm(weights, "norm", module.norm), _linear(weights, "head")]
    front = Patches(
        weights["tokens.weight"], weights["tokens.bias"], weights["class_token"], weights["places"]
    )  # fmt: skip
    return gradient(images, targets, Network(weights, front, Chain(*layers)))


def _encoder(weights: Weights, name: str, layer: nn.Module, tokens: int) -> Layer:
    assert isinstance(layer, nn.TransformerEncoderLayer)
    project = Linear(weights[f"{name}.self_attn.in_proj_weight"], weights[f"{name}.self_attn.in_proj_bias"])
    attention = Attention(project, layer.self_attn.num_heads, tokens)
    own = Residual(
        _norm(weights, f"{name}.norm1", layer.norm1), attention, _linear(weights, f"{name}.self_attn.out_proj")
    )
    return Chain(own, _hidden(weights, name, layer))


def _last_encoder(weights: Weights, name: str, layer: nn.Module, tokens: int) -> Layer:
    """Of which the first token is read alone."""
    assert isinstance(layer, nn.TransformerEncoderLayer)
    weight, bias = weights[f"{name}.self_attn.in_proj_weight"], weights[f"{name}.self_attn.in_proj_bias"]
    width = weight.value.shape[1]
    ask, project = (Linear(weight.rows(*rows), bias.rows(*rows)) for rows in ((0, width), (width, 3 * width)))
    attention = FirstAttention(ask, project, layer.self_attn.num_heads, tokens)
    every = Chain(
        _norm(weights, f"{name}.norm1", layer.norm1), attention, _linear(weights, f"{name}.self_attn.out_proj")
    )
    return Chain(FirstResidual(every, tokens), _hidden(weights, name, layer))


def _hidden(weights: Weights, name: str, layer: nn.TransformerEncoderLayer) -> Layer:
    norm = _norm(weights, f"{name}.norm2", layer.norm2)
    return Residual(norm, _linear(weights, f"{name}.linear1"), Gelu(), _linear(weights, f"{name}.linear2"))


def _linear(weights: Weights, name: str) -> Linear:
    return Linear(weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Weights, name: str, layer: nn.LayerNorm) -> LayerNorm:
    return LayerNorm(weights[f"{name}.weight"], weights[f"{name}.bias"], layer.eps)
