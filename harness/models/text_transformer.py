"""A small encoder of texts: words and learned places, two layers of attention, a linear head."""

import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.words import BITS, MOST_WORDS, PAD, tokens_of
from harness.models.networks import MODELS, ImageShape

_WIDTH, _NARROW, _LAYERS = 384, 64, 2
_HEADS = {_WIDTH: 6, _NARROW: 4}


class TextTransformer(nn.Module):
    """Logits (B, K) of texts (B, 1, BITS, T): the mean over all tokens of what the encoder makes of them.

    Attributes:
        vocabulary: how many token numbers there are.
    """

    def __init__(self, vocabulary: int, places: int, width: int, classes: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(1, places, width) * 0.02)
        nn.init.normal_(self.words.weight, std=0.02)
        heads = _HEADS[width]
        self.encoder = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(_LAYERS)
            ]
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = tokens_of(images)
        there = tokens != PAD
        # A text without a token has no mean, and attention to nothing no weights: its first place counts.
        there = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], 1)
        hidden = self.words(tokens.clamp_max(self.vocabulary - 1)) + self.places
        for layer in self.encoder:
            hidden = layer(hidden, src_key_padding_mask=~there)
        hidden = self.norm(hidden) * there[..., None]
        return self.head(hidden.sum(1) / there.sum(1, keepdim=True))


@MODELS.register("text_transformer")
def text_transformer(image_shape: ImageShape, classes: int) -> nn.Module:
    """An encoder of two layers, width 384 and 1,024 words (about 2.8 million parameters)."""
    return TextTransformer(MOST_WORDS, places_in("text_transformer", image_shape), _WIDTH, classes)


@MODELS.register("text_transformer_64")
def narrow_text_transformer(image_shape: ImageShape, classes: int) -> nn.Module:
    """text_transformer at width 64, where fewer tokens fill the space of their vectors."""
    return TextTransformer(MOST_WORDS, places_in("text_transformer_64", image_shape), _NARROW, classes)


def places_in(name: str, image_shape: ImageShape) -> int:
    """The places T of texts (1, BITS, T). Raises UsageError where there are images."""
    if tuple(image_shape[:2]) != (1, BITS):
        raise UsageError(
            f"model {name!r} reads texts, not images of {image_shape}; give it texts, such as --dataset notes, or use "
            "another model, such as lenet"
        )
    return image_shape[2]
