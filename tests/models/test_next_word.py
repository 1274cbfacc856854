"""Networks that predict the next word: their loss is that of a network of two classes, and their texts come back."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness.attacks import run_attack
from harness.attacks.span import Span
from harness.attacks.token_rows import TokenRows
from harness.base.errors import UsageError
from harness.base.words import TextShape, images_of, tokens_of
from harness.evaluation.observe import Stage
from harness.experiment import cell_settings
from harness.models import NextWord, RowModel
from harness.models.next_word import predicts_next
from harness.observation import Observation

FACTORY = """
import torch
from torch import nn
from harness.models import NextWord


class Writer(nn.Module):
    def __init__(self, vocabulary, places, width=48):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.words(tokens) + self.places.weight, src_mask=mask))


def make(vocabulary, places, classes):
    return NextWord(Writer(vocabulary, places))
"""
TEXTS = torch.tensor([[5, 9, 7, 9, 3, 0, 0, 0, 0, 0, 0, 0], [8, 2, 6, 30, 4, 8, 11, 12, 13, 14, 15, 0]])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowModel:
    (tmp_path / "network_that_writes.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    return RowModel("network_that_writes:make", TextShape(60, 12), 2)


def test_the_loss_is_that_of_the_next_words(model: RowModel) -> None:
    network = model.plain(model.initial_weights([(0, 0)])[0])
    assert isinstance(network, NextWord)
    parameters = list(network.parameters())
    expected = [functional.cross_entropy(network.network(row[None])[0, :count], row[1 : count + 1])
                for row, count in zip(TEXTS, (5, 11), strict=True)]  # fmt: skip
    lost = functional.cross_entropy(network.forward(TEXTS), torch.zeros(2).long())
    torch.testing.assert_close(lost, sum(expected) / 2)
    made, wanted = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (lost, sum(expected) / 2))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_texts_come_back_and_no_next_word_is_given_as_a_label(model: RowModel) -> None:
    keys, labels = ((0, 0), (0, 1)), torch.zeros(2, 1).long()
    weights, images = model.initial_weights(list(keys)), images_of(TEXTS)[:, None]
    seen = Observation(model, weights, model.gradient(weights, images, labels), 1, keys)
    for attack in (TokenRows(), Span()):
        made = run_attack(attack, seen)
        assert torch.equal(tokens_of(made.images)[:, 0], TEXTS)
        assert torch.equal(made.labels, labels)


def test_what_is_certain_has_a_loss_and_a_gradient() -> None:
    sure = NextWord(nn.Sequential(nn.Embedding(4, 4)))
    with torch.no_grad():
        next(sure.parameters()).copy_(torch.eye(4)[[1, 2, 3, 0]] * 1e4)
    lost = functional.cross_entropy(sure(torch.tensor([[1, 2, 3, 0]])), torch.zeros(1).long())
    lost.backward()
    assert 0 <= float(lost.detach()) < 1e-5 and next(sure.parameters()).grad.isfinite().all()


def test_a_network_without_logits_of_each_place_gets_one_line() -> None:
    with pytest.raises(UsageError, match=r"shape \(2, 7\) for tokens \(2, 12\); let its network give \(B, T, vocab"):
        NextWord(nn.Sequential(nn.Embedding(60, 3), nn.Flatten(), nn.Linear(36, 7)))(TEXTS)


def test_the_network_of_the_project_learns_from_the_words_before_alone() -> None:
    shape = TextShape(60, 12)
    with pytest.raises(UsageError, match="predicts next words and has 2 classes, not 6"):
        RowModel("text_writer", shape, 6)
    model = RowModel("text_writer", shape, 2)
    network = model.plain(model.initial_weights([(0, 0)])[0])
    assert isinstance(network, NextWord) and predicts_next("text_writer", shape)
    assert not predicts_next("text_transformer_64", shape)
    other = TEXTS.clone()
    other[:, 6:] = 17
    before, after = (network.network(texts) for texts in (TEXTS, other))
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_evaluate_gives_it_texts_without_topics(tmp_path: Path) -> None:
    stage = Stage(tmp_path, 8)
    settings = cell_settings(dataset="notes", model="text_writer", attack="span", victims=2)
    scene = stage.set(settings)
    assert scene.dataset.num_classes == 2 and scene.truth.labels.unique().tolist() == [0]
    made = run_attack(Span(), scene.observation)
    assert torch.equal(made.images, scene.truth.images)
    assert stage.dataset("notes", "text_transformer").num_classes == 6
    assert stage.split(cell_settings(dataset="notes", model="text_transformer")).private.num_classes == 6
