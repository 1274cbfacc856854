"""torchvision's vision transformers for many rows together."""

import sys
from typing import Any

from torch import Tensor, nn

from harness.models.row_transformer import LayerNames, Named, RowTransformer

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
        for name in self._layers:
            tokens = rows.encoder_layer(f"encoder.layers.{name}", tokens, first_only=name == self._layers[-1])
        return rows.named_linear("heads.head", rows.norm("encoder.ln", tokens))[:, :, 0]


def torchvision_transformer(network: nn.Module) -> TorchvisionTransformer | None:
    """For a network as torchvision makes it; None for any other, or one that somebody has changed."""
    kinds: Any = sys.modules.get("torchvision.models.vision_transformer")  # slow to load, and there if one is
    if kinds is None or type(network) is not kinds.VisionTransformer or not _is_plain(network, kinds):
        return None
    return TorchvisionTransformer(network)


def _is_plain(network: Any, kinds: Any) -> bool:
    """Whether nobody has put anything else into its places. Types come first: what was put there has other parts."""
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
