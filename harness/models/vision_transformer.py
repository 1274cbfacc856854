"""A small vision transformer.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), pre-norm encoder with a class token; width 192,
3 heads and a hidden layer of 768 are DeiT-Ti's (Touvron et al., ICML 2021), two layers and patches of 4 pixels ours.
"""

import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.models.networks import MODELS, ImageShape, refuse_table_rows
from harness.models.row_transformer import Named, RowTransformer

_PATCH, _WIDTH, _HEADS, _HIDDEN, _LAYERS = 4, 192, 3, 768, 2


class VisionTransformer(nn.Module):
    """Patches as tokens, a class token before them, learned places, an encoder, a linear layer on the class token."""

    def __init__(self, channels: int, patches: int, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Conv2d(channels, _WIDTH, _PATCH, _PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.places = nn.Parameter(torch.randn(1, patches + 1, _WIDTH) * 0.02)
        self.encoder = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(_WIDTH, _HEADS, _HIDDEN, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(_LAYERS)
            ]
        )
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        patches = self.tokens(images).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], 1) + self.places
        *layers, last = self.encoder
        for layer in layers:
            tokens = layer(tokens)
        return self.head(self.norm(_first_token(last, tokens)))

    def row_logits(self, named: Named, images: Tensor, gradient_once: bool) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under named parameters (R, ...), as :meth:`forward` has them."""
        rows, last = RowTransformer(named, _HEADS, gradient_once), len(self.encoder) - 1
        tokens = rows.tokens_of("tokens", images, _PATCH, "class_token") + named["places"]
        for number in range(last + 1):
            tokens = rows.encoder_layer(f"encoder.{number}", tokens, first_only=number == last)
        return rows.named_linear("head", rows.norm("norm", tokens))[:, :, 0]


def _first_token(layer: nn.Module, tokens: Tensor) -> Tensor:
    """What an encoder layer makes of the first of tokens (B, T, E), and it alone, as nothing reads the others: (B, E).

    Every token goes into its attention, none but the first through all that follows.
    """
    assert isinstance(layer, nn.TransformerEncoderLayer)
    normed = layer.norm1(tokens)
    attended, _ = layer.self_attn(normed[:, :1], normed, normed, need_weights=False)
    own = tokens[:, 0] + attended[:, 0]
    return own + layer.linear2(layer.activation(layer.linear1(layer.norm2(own))))


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
