"""Networks that predict the next word, as networks of two classes of which all texts have the first."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.errors import UsageError
from harness.base.words import MOST_WORDS, PAD, tokens_of
from harness.models.networks import MODELS, ImageShape, build_module
from harness.models.text_transformer import places_in
from harness.models.transformer import encoder_layers

# Of a loss: below that no logit says it.
_LEAST = 1e-6
_WIDTH = 384
#: Of such a network; every text has the first.
CLASSES = 2


class NextWord(nn.Module):
    """A network of two classes whose cross-entropy under label 0 is how badly another predicts the next words.

    With l the mean cross-entropy of a text's next words, its logits are 0 and log(exp(l) - 1): the loss under label 0
    is l, and so are its gradients. So labels say nothing, and next words are no labels, which an attacker would be
    told. The end of a text is predicted too, as token 0, where it has places behind it.

    Args:
        network: gives logits (B, T, V) of tokens (B, T), those at a place by the tokens up to there.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, 2) of tokens (B, T). Raises UsageError: the network gives no logits of each place."""
        logits = self.network(tokens)
        if logits.dim() != 3 or logits.shape[:2] != tokens.shape:
            raise UsageError(
                f"NextWord got logits of shape {tuple(logits.shape)} for tokens {tuple(tokens.shape)}; let its network "
                "give (B, T, vocabulary)"
            )
        lost = functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
        there = (tokens[:, :-1] != PAD).to(lost)
        loss = ((lost * there).sum(1) / there.sum(1).clamp_min(1.0)).clamp_min(_LEAST)
        return torch.stack([torch.zeros_like(loss), loss + torch.log(-torch.expm1(-loss))], 1)


@lru_cache(maxsize=16)
def predicts_next(name: str, image_shape: ImageShape) -> bool:
    """Return whether the network of a name, for texts of a shape, is a :class:`NextWord`."""
    try:
        return isinstance(build_module(name, image_shape, CLASSES, seed=0), NextWord)
    except UsageError:  # which who needs the network will see
        return False


class Writer(nn.Module):
    """Logits (B, T, V) of tokens (B, T): two layers of attention, each place by the places up to it."""

    def __init__(self, vocabulary: int, places: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, _WIDTH)
        self.places = nn.Parameter(torch.randn(1, places, _WIDTH) * 0.02)
        nn.init.normal_(self.words.weight, std=0.02)
        self.layers = nn.ModuleList(encoder_layers(2, _WIDTH, 6, 2 * _WIDTH))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens.clamp_max(self.vocabulary - 1)) + self.places[:, : tokens.shape[1]]
        later = torch.ones(2 * tokens.shape[1:], dtype=torch.bool, device=tokens.device).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=later)
        return self.head(self.norm(hidden))


class TextWriter(NextWord):
    """:class:`Writer` of texts as images (B, 1, BITS, T).

    Attributes:
        vocabulary: how many token numbers there are.
    """

    def __init__(self, network: Writer) -> None:
        super().__init__(network)
        self.vocabulary = network.vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens_of(tokens))


@MODELS.register("text_writer")
def text_writer(image_shape: ImageShape, classes: int) -> nn.Module:
    """Transformer that predicts the next word: two causal layers, width 384, 1,024 words (3.2 million parameters)."""
    places = places_in("text_writer", image_shape)
    if classes != CLASSES:
        raise UsageError(
            f"model 'text_writer' predicts next words and has {CLASSES} classes, not {classes}; attack it with harness "
            "evaluate, or train text_transformer"
        )
    return TextWriter(Writer(MOST_WORDS, places))
