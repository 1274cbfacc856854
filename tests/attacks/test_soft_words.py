"""Map on texts: it changes the vectors of words little by little, behind the table that puts them out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack, run_reference
from harness.attacks.blind import Blind
from harness.attacks.map import MaximumAPosteriori
from harness.attacks.suites import reading
from harness.base.errors import UsageError
from harness.base.vectors import clip
from harness.base.words import PAD, tokens_of
from harness.datasets import Dataset
from harness.datasets.prior import Prior
from harness.models import RowModel
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


class NoTable(nn.Module):
    """Words are columns of a linear layer."""

    def __init__(self, vocabulary: int, places: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(vocabulary, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(nn.functional.one_hot(tokens, self.head.in_features).to(self.head.weight).mean(1))


small, looks, untabled, unplaced = Reader, Looks, NoTable, partial(Reader, learned=False)


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


def test_texts_come_back_by_their_vectors(sides: Sides) -> None:
    observation, texts = seen(sides, f"{__name__}:small")
    assert right(MaximumAPosteriori(), observation, texts) == [1.0] * 4
    assert max(right(Blind(), observation, texts)) < 0.7


def test_behind_known_noise_more_comes_back_than_a_guess_has(sides: Sides) -> None:
    observation, texts = seen(sides, f"{__name__}:small", sigma=0.002)
    found, guessed = (right(attack, observation, texts) for attack in (MaximumAPosteriori(), Blind()))
    assert sum(found) > 3.5 and sum(guessed) < 2.5


def test_without_learned_places_lengths_are_found(sides: Sides) -> None:
    observation, texts = seen(sides, f"{__name__}:unplaced", victims=1)
    made = tokens_of(run_attack(MaximumAPosteriori(), observation).images)[:, 0]
    assert torch.equal(made, texts)


@pytest.mark.slow
def test_adapters_give_texts_with_more_words_than_their_rank(sides: Sides) -> None:
    observation, texts = seen(sides, "text_transformer_64+adapters(16)", victims=1)
    made = tokens_of(run_attack(MaximumAPosteriori(), observation).images)[:, 0]
    assert torch.equal(made, texts) and int((texts != PAD).sum()) > 16


def test_the_network_behind_its_table_has_the_same_gradients(sides: Sides) -> None:
    observation, _ = seen(sides, f"{__name__}:small", victims=1)
    soft = MaximumAPosteriori().read_as(observation)(observation)  # type: ignore[misc]
    assert torch.allclose(soft._gradient(sides[0].images[:1, None], sides[0].labels[:1, None]), soft.target, atol=1e-6)
    assert soft.target.shape[1] == observation.target.shape[1] - observation.model.vocabulary * WIDTH
    observation.model.layout.split(observation.weights)["head.weight"].zero_()  # so vectors do not change what is said
    observation.model.plain(observation.weights[0])
    assert MaximumAPosteriori().read_as(observation)


def test_no_suite_takes_it_on_texts_and_the_truth_never_reaches_it(sides: Sides) -> None:
    assert "map" not in reading("auto", texts=True)
    observation, texts = seen(sides, f"{__name__}:small", victims=1)
    assert observation.labels is None and not any(
        isinstance(value, Tensor) and value.shape[-1:] == texts.shape[-1:] for value in vars(observation).values()
    )


MISTAKES: dict[str, tuple[str, Callable[[Observation], Observation], str]] = {
    "several": ("small", lambda seen: replace(seen, examples=2), "reads one text per observation, not 2"),
    "no public texts": ("small", lambda seen: replace(seen, prior=None), "needs public"),
    "noise of no known level": ("small", lambda seen: replace(seen, noise=Noise("gaussian", None)), "of a known level"),
    "words read elsewhere too": ("looks", lambda seen: seen, "or reads words elsewhere too"),
    "no table": ("untabled", lambda seen: seen, "has none, or reads words elsewhere"),
    "next words": (
        "text_writer",
        lambda seen: replace(seen, labels=torch.zeros(1, 1).long()),
        "as one that predicts the next word does",
    ),
}


@pytest.mark.parametrize(("name", "change", "said"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_it_cannot_read_is_one_line(
    sides: Sides, name: str, change: Callable[[Observation], Observation], said: str
) -> None:
    own = name if name == "text_writer" else f"{__name__}:{name}"
    if name == "text_writer":
        sides = sides[0].unlabelled(), sides[1]
    with pytest.raises(UsageError, match=said) as told:
        run_attack(MaximumAPosteriori(), change(seen(sides, own, victims=1)[0]))
    assert "\n" not in str(told.value)


def test_the_reference_engine_says_that_it_reads_no_texts_so(sides: Sides) -> None:
    with pytest.raises(UsageError, match="use --engine batched"):
        run_reference(MaximumAPosteriori(), seen(sides, f"{__name__}:small", victims=1)[0])
