"""Token rows: which row of a table is a word's or a place's is read from the network, not guessed from shapes."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.attacks import run_attack
from harness.attacks.attack import Attack
from harness.attacks.decode import Decode
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.span import Span
from harness.attacks.token_rows import TokenRows, read_tables, tables_of
from harness.base.errors import UsageError
from harness.base.words import PAD, tokens_of
from harness.datasets import Dataset
from harness.datasets.prior import Prior
from harness.models import RowModel
from harness.observation import Observation

WIDTH, MOST, FILLER = 64, 512, 7
Sides = tuple[Dataset, Prior]


class Reader(nn.Module):
    """Logits of tokens (B, T): one layer of attention, behind words and learned places."""

    def __init__(
        self, vocabulary: int, places: int, classes: int, more_words: int = 0, rows: int = 0, aside: bool = False
    ) -> None:
        super().__init__()
        # Before its places, and of their shape.
        self.aside = nn.Linear(WIDTH, places) if aside else None
        self.words: nn.Module = nn.Embedding(vocabulary + more_words, WIDTH)
        self.places = nn.Embedding(rows or places, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, classes)
        self.first = 0

    def vectors(self, tokens: Tensor) -> Tensor:
        vectors = self.words(tokens) + self.places.weight[self.first : self.first + tokens.shape[1]]
        return vectors if self.aside is None else vectors + self.aside(vectors).mean(2, keepdim=True)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.layer(self.vectors(tokens), src_key_padding_mask=tokens == PAD)
        hidden = hidden * (tokens != PAD)[..., None]
        return self.head(hidden.sum(1) / (tokens != PAD).sum(1, keepdim=True))


class Offset(Reader):
    """Its first place has row 2, as in OPT, of 512."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, rows=MOST)
        self.first = 2


class Bag(Reader):
    """Its vectors are bags of single words."""

    def __init__(self, vocabulary: int, places: int, classes: int) -> None:
        super().__init__(vocabulary, places, classes)
        self.words = nn.EmbeddingBag(vocabulary, WIDTH, mode="sum")

    def vectors(self, tokens: Tensor) -> Tensor:
        return self.words(tokens.reshape(-1, 1)).unflatten(0, tokens.shape) + self.places.weight


class Swapped(Reader):
    """Another number fills its places, which it swaps with 0 before it looks words up."""

    def vectors(self, tokens: Tensor) -> Tensor:
        own = torch.where(tokens == PAD, FILLER, torch.where(tokens == FILLER, PAD, tokens))
        return super().vectors(own)


class Begins(Reader):
    """It puts a word of its own before each text, and makes the vectors of words longer."""

    def __init__(self, vocabulary: int, places: int, classes: int) -> None:
        super().__init__(vocabulary, places, classes, more_words=1, rows=places + 1)
        self.begin = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        begun = functional.pad(tokens, (1, 0), value=self.begin)
        vectors = self.words(begun) * WIDTH**0.5 + self.places.weight
        return self.head(self.layer(vectors, src_key_padding_mask=begun == PAD)[:, 0])


class Tied(Reader):
    """The table of words is its output too."""

    def forward(self, tokens: Tensor) -> Tensor:
        assert isinstance(self.words, nn.Embedding)
        hidden = self.layer(self.vectors(tokens), src_key_padding_mask=tokens == PAD)
        said = functional.log_softmax(hidden @ self.words.weight.T, 2)
        return self.head(hidden.mean(1)) + said.logsumexp(1)[:, :6]


class Counted(nn.Module):
    """The mean of a text's words, without places."""

    def __init__(self, vocabulary: int, places: int, classes: int) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(vocabulary, WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.bag(tokens))


usual, offset, bag, swapped, begins, tied, counted = Reader, Offset, Bag, Swapped, Begins, Tied, Counted
more_places, more_words = partial(Reader, rows=MOST), partial(Reader, more_words=100)
aside = partial(Reader, aside=True)


def seen(name: str, sides: Sides, victims: int = 3) -> tuple[Observation, Tensor]:
    """The gradients of some notes with a common word, one of each victim, and their tokens (R, T)."""
    notes, prior = sides
    model, keys = RowModel(f"{__name__}:{name}", notes.image_shape, notes.num_classes), ((0, 0),) * victims
    weights, some = model.initial_weights(list(keys)), (tokens_of(notes.images) == FILLER).any(1).nonzero()[:victims]
    images = notes.images[some]
    gradients = model.gradient(weights, images, notes.labels[some])
    return Observation(model, weights, gradients, 1, keys, prior=prior), tokens_of(images)[:, 0]


def made(attack: Attack | TokenRows | Decode | Span, observation: Observation) -> Tensor:
    return tokens_of(run_attack(attack, observation).images)[:, 0]


@pytest.mark.parametrize("name", ["usual", "aside", "more_places", "offset", "more_words", "bag", "swapped", "begins"])
def test_texts_come_back_whatever_the_shapes_of_their_tables(name: str, sides: Sides) -> None:
    observation, texts = seen(name, sides)
    assert (texts == FILLER).any()  # the word whose row fills places in ``swapped``
    for attack in (TokenRows(), Decode(tries=0)):
        assert torch.equal(made(attack, observation), texts), attack


def test_rows_are_those_that_the_network_reads(sides: Sides) -> None:
    places = sides[0].image_shape[-1]
    for name, first in (("usual", 0), ("more_places", 0), ("offset", 2), ("begins", 1)):
        words, learned = tables_of(seen(name, sides, 1)[0].model, "token_rows")
        assert (words.name, learned and learned.name) == ("words.weight", "places.weight")
        assert words.index.tolist() == list(range(len(words.index)))
        assert learned is not None and learned.index.tolist() == list(range(first, first + places))
    words, _ = tables_of(seen("swapped", sides, 1)[0].model, "token_rows")
    assert words.index[[PAD, FILLER]].tolist() == [FILLER, PAD]


def test_without_places_words_are_a_bag(sides: Sides) -> None:
    observation, texts = seen("counted", sides)
    found = made(TokenRows(), observation)
    assert [set(one) - {PAD} for one in found.tolist()] == [set(one) - {PAD} for one in texts.tolist()]


def test_a_table_that_is_the_output_too_is_refused_in_one_line(sides: Sides) -> None:
    observation, texts = seen("tied", sides)
    with pytest.raises(UsageError, match=r"uses the table of words elsewhere too.*; use --attack span") as said:
        made(TokenRows(), observation)
    assert "\n" not in str(said.value)
    for attack in (Span(), Decode(tries=0)):
        assert torch.equal(made(attack, observation), texts), attack
    with pytest.raises(UsageError, match="or reads words elsewhere too"):
        made(MaximumAPosteriori(), observation)


@pytest.mark.parametrize("name", ["text_transformer", "text_transformer_64", "text_writer"])
def test_networks_of_our_own_have_the_rows_that_they_had(name: str, sides: Sides) -> None:
    notes = sides[0]
    model = RowModel(name, notes.image_shape, 2 if name == "text_writer" else notes.num_classes)
    tables, prefix = read_tables(model), "network." if name == "text_writer" else ""
    assert tables is not None and tables.places is not None and tables.words_alone
    assert (tables.words.name, tables.places.name) == (f"{prefix}words.weight", f"{prefix}places")
    for one, count in ((tables.words, 1024), (tables.places, notes.image_shape[-1])):
        assert torch.equal(one.index, torch.arange(count))
