"""Map on texts: it changes the vectors of words little by little, behind the table that puts them out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack, run_reference
from harness.attacks.blind import Blind
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.soft_words import Vectors, behind_words
from harness.attacks.suites import reading
from harness.base.errors import UsageError
from harness.base.vectors import clip
from harness.base.words import PAD, tokens_of
from harness.datasets import Dataset, divide, load_dataset
from harness.datasets.prior import Prior, fit_prior
from harness.models import NextWord, RowModel
from harness.observation import Clipping, Noise, Observation

Sides = tuple[Dataset, Prior]
WIDTH = 32


class Reader(nn.Module):
    """Logits of tokens (B, T): one layer of attention."""

    def __init__(self, vocabulary: int, places: int, classes: int, learned: bool = True) -> None:
        super().__init__()
        self.words, where = nn.Embedding(vocabulary, WIDTH), torch.randn(places, WIDTH)
        if learned:
            self.places = nn.Parameter(where)
        else:
            self.register_buffer("places", where)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != PAD
        there = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], 1)
        hidden = self.layer(self.words(tokens) + self.places, src_key_padding_mask=~there) * there[..., None]
        return self.head(hidden.sum(1) / there.sum(1, keepdim=True))


class Looks(Reader):
    """It also counts how often the first word stands anywhere."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + (tokens == 2).sum(1, keepdim=True)


small, looks, unplaced = Reader, Looks, partial(Reader, learned=False)


class NoTable(nn.Module):
    """Words are columns of a linear layer."""

    def __init__(self, vocabulary: int, places: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(vocabulary, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(nn.functional.one_hot(tokens, self.head.in_features).to(self.head.weight).mean(1))


@pytest.fixture(scope="module")
def sides() -> Sides:
    data = divide(load_dataset("notes", Path()), "notes", "auto", Path())
    return data.private, fit_prior(data.public)


def seen(sides: Sides, name: str, victims: int = 4, sigma: float = 0.0) -> tuple[Observation, Tensor]:
    """What notes send, clipped and behind noise where there is some, and their tokens (R, T)."""
    notes, prior = sides
    model, keys = RowModel(name, notes.image_shape, notes.num_classes), tuple((0, row) for row in range(victims))
    weights, rows = model.initial_weights(list(keys)), torch.arange(victims)[:, None]
    gradients = model.gradient(weights, notes.images[rows], notes.labels[rows])
    facts: dict[str, object] = {}
    if sigma:
        noise = torch.randn(gradients.shape, generator=torch.Generator().manual_seed(1))
        gradients = clip(gradients, 4.0, model.layout.sizes) + sigma * noise
        facts = {"noise": Noise("gaussian", sigma), "clipping": Clipping(4.0, "layer", "example")}
    return Observation(model, weights, gradients, 1, keys, prior=prior, **facts), tokens_of(notes.images[:victims])  # type: ignore[arg-type]


def right(attack: MaximumAPosteriori | Blind, observation: Observation, texts: Tensor) -> list[float]:
    """The share of each text's words that stand at their places."""
    made = tokens_of(run_attack(attack, observation).images)[:, 0]
    there = texts != PAD
    return (((made == texts) & there).sum(1) / there.sum(1)).tolist()
