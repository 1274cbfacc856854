"""Several texts of networks that read no later words, told by the beginnings of texts."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack, sentences
from harness.attacks.sentences import first_attention
from harness.attacks.span import Span, prefix_layer, takes_beginnings
from harness.base.errors import UsageError
from harness.base.words import PAD, TextShape, images_of, tokens_of
from harness.models import MODELS, NextWord, RowModel
from harness.observation import Observation

SHAPE = TextShape(60, 12)
TEXTS = torch.tensor([
    [5, 9, 7, 31, 12, 0, 0, 0, 0, 0, 0, 0],
    [5, 9, 8, 31, 7, 44, 3, 2, 0, 0, 0, 0],
    [21, 9, 7, 5, 5, 5, 30, 0, 0, 0, 0, 0],
])  # fmt: skip


class Later(nn.Module):
    """Logits of each place by the words up to it; ``cuts`` says whether it takes fewer words than it has places."""

    def __init__(self, vocabulary: int, places: int, cuts: bool, layers: int) -> None:
        super().__init__()
        self.cuts, self.words, self.places = cuts, nn.Embedding(vocabulary, 48), nn.Parameter(torch.randn(places, 48))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(48, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places[: tokens.shape[1]] if self.cuts else self.places
        hidden = self.words(tokens) + places
        for layer in self.layers:
            hidden = layer(hidden, src_mask=torch.ones(2 * tokens.shape[1:], dtype=torch.bool).triu(1))
        return self.head(hidden)


class OfImages(NextWord):
    vocabulary = 60

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(tokens_of(images).clamp_max(59))


@pytest.fixture(params=[(True, 1), (False, 2)], ids=["cuts", "whole"])
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RowModel:
    monkeypatch.setitem(MODELS._entries, "later", lambda shape, classes: OfImages(Later(60, shape[2], *request.param)))
    return RowModel("later", SHAPE, 2)


def seen(model: RowModel, texts: Tensor) -> Observation:
    keys = ((0, 0),)
    weights = model.initial_weights(list(keys))
    gradients = model.gradient(weights, images_of(texts)[None], torch.zeros(1, len(texts), dtype=torch.long))
    return Observation(model, weights, gradients, len(texts), keys)


def read(observation: Observation) -> list[tuple[int, ...]]:
    return sorted(map(tuple, tokens_of(run_attack(Span(), observation).images)[0].tolist()))


def test_several_texts_come_back_whole(own: RowModel) -> None:
    observation = seen(own, TEXTS)
    assert read(observation) == sorted(map(tuple, TEXTS.tolist()))
    later = prefix_layer(own)
    assert later is not None and later.prefix == "network.layers.0.linear1"
    assert takes_beginnings(own, later) == own.plain_module.network.cuts
    # Each example's clip gives it a scale that nobody knows.
    alone = [seen(own, one[None]).target for one in TEXTS]
    mixed = sum(scale * one for scale, one in zip((0.2, 3.0, 1.0), alone, strict=True))
    assert read(replace(observation, target=mixed)) == sorted(map(tuple, TEXTS.tolist()))


def test_what_is_not_told_is_not_made_up(own: RowModel) -> None:
    """Noise fills the span, a gradient without a text has none, and as many beginnings as a vector has numbers."""
    observation = seen(own, TEXTS)
    for target in (torch.randn(observation.target.shape), 0 * observation.target, torch.nan * observation.target):
        assert (torch.tensor(read(replace(observation, target=target))) == PAD).all()
    many = torch.randint(2, 60, (8, 12), generator=torch.Generator().manual_seed(0))
    assert (torch.tensor(read(seen(own, many))) == PAD).all()


@pytest.mark.parametrize("chosen", [(1, 2, 1), (1, 1, 1), (1, 2, None), (None, 1, 1, 2)])
def test_texts_that_are_equal_or_begin_others_are_told_by_the_whole_gradient(
    own: RowModel, chosen: tuple[int | None, ...]
) -> None:
    """None: the first four words of text 1."""
    texts = torch.stack([torch.where(torch.arange(12) < 4, TEXTS[1], PAD) if n is None else TEXTS[n] for n in chosen])
    observation = seen(own, texts)
    assert read(observation) == sorted(map(tuple, texts.tolist()))
    assert read(replace(observation, target=0.2 * observation.target)) == sorted(map(tuple, texts.tolist()))


def test_few_numbers_of_many_beginnings_tell_equal_ones(own: RowModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, held, solve = TEXTS[[1, 2, 1]], list[int](), sentences.nonnegative
    monkeypatch.setattr(sentences, "_MOST_KEPT", 2**13)
    monkeypatch.setattr(sentences, "nonnegative", lambda *given: held.append(given[0].numel()) or solve(*given))
    assert read(seen(own, texts)) == sorted(map(tuple, texts.tolist()))
    assert max(held) <= 2**13


def test_attention_that_reads_later_words_has_no_such_layer() -> None:
    assert prefix_layer(RowModel("text_transformer", SHAPE, 6)) is None


def test_a_network_whose_head_alone_is_later_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pooled(Later):
        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.words(tokens) + self.places
            later = torch.ones(12, 12, dtype=torch.bool).triu(1)
            mixed = self.layers[0].self_attn(hidden, hidden, hidden, attn_mask=later)[0]
            return self.head(mixed.mean(1))

    class Classes(Pooled):
        vocabulary = 60

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(tokens_of(images).clamp_max(59))

    monkeypatch.setitem(MODELS._entries, "pooled", lambda shape, classes: Classes(60, shape[2], True, 1))
    model = RowModel("pooled", SHAPE, 60)
    assert prefix_layer(model) is None
    with pytest.raises(UsageError, match="reads no later words; use --batch-size 1, or --attack identify"):
        first_attention(model)
