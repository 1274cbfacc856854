"""Texts: the notes, their bits, what a network of texts gives away, and what is said where none can be read."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack
from harness.attacks.among import require_several
from harness.attacks.blind import Blind
from harness.attacks.cpl import CPL
from harness.attacks.decode import Decode
from harness.attacks.identify import Identify
from harness.attacks.residual import improbability
from harness.attacks.sentences import FirstAttention, Reader, first_attention, unexplained
from harness.attacks.span import Span, prefix_layer, told
from harness.attacks.token_layers import (
    candidates_at,
    outside,
    rank_of,
    read_before,
    row_space,
    token_layer,
    token_layers,
)
from harness.attacks.token_rows import TokenRows, ordered
from harness.base.errors import UsageError
from harness.base.vectors import Layout, clip, group_products
from harness.base.words import (
    BITS,
    MARKS,
    MOST_WORDS,
    PAD,
    UNKNOWN,
    TextShape,
    Words,
    images_of,
    require_texts_for,
    tokens_of,
)
from harness.datasets import Dataset, divide
from harness.datasets.notes import PLACES, vocabulary, written
from harness.datasets.prior import fit_prior
from harness.models import MODELS, RowModel
from harness.models.rows import LoneRows
from harness.models.text_transformer import TextTransformer
from harness.observation import Clipping, Noise, Observation
from harness.scoring import Pairs, TextScale, measured


@pytest.fixture(scope="module")
def model(notes: Dataset) -> RowModel:
    return RowModel("text_transformer", notes.image_shape, notes.num_classes)


def seen(model: RowModel, notes: Dataset, chosen: list[list[int]], seed: int = 0) -> tuple[Observation, Tensor]:
    """Gradients of some notes, a batch for each victim, and the tokens that are behind them (R, n, T)."""
    keys = tuple((seed, row) for row in range(len(chosen)))
    weights, places = model.initial_weights(list(keys)), torch.tensor(chosen)
    gradients = model.gradient(weights, notes.images[places], notes.labels[places])
    return Observation(model, weights, gradients, len(chosen[0]), keys), tokens_of(notes.images[places])


def made(attack: Span | TokenRows | Decode, observation: Observation) -> Tensor:
    return tokens_of(run_attack(attack, observation).images)


def test_notes_are_what_they_were(notes: Dataset) -> None:
    texts, labels = written()
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "8dc8bd9048dd9c76"
    lengths = (tokens_of(notes.images) != PAD).sum(-1)
    assert len(set(texts)) == len(texts) == 2_000
    assert int(lengths.min()) >= 8 and int(lengths.max()) <= PLACES
    assert len(vocabulary().vocabulary) <= 1_024
    assert torch.tensor(labels).bincount().min() > 300
    assert [vocabulary().text(row) for row in tokens_of(notes.images[:5]).tolist()] == texts[:5]
    assert not (tokens_of(notes.images) == UNKNOWN).any()


def test_no_note_is_private_and_public(notes: Dataset) -> None:
    sides = divide(notes, "notes", "auto", Path())
    private, public = ({row.numpy().tobytes() for row in one.images} for one in (sides.private, sides.public))
    assert len(private) == len(sides.private.images) and not private & public


def test_blind_says_a_public_note_of_the_class(notes: Dataset) -> None:
    public = divide(notes, "notes", "auto", Path()).public
    prior = fit_prior(public)
    held = {row.numpy().tobytes(): int(label) for row, label in zip(public.images, public.labels, strict=True)}
    for label, mean in enumerate(prior.means):
        assert held[mean.reshape(notes.image_shape).numpy().tobytes()] == label


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_bits_are_exact_in_every_precision(dtype: torch.dtype) -> None:
    tokens = torch.tensor([[0, 1, 2**BITS - 1, 12_345]])
    assert images_of(tokens).shape == (1, 1, BITS, 4)
    assert torch.equal(tokens_of(images_of(tokens).to(dtype)), tokens)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("known  known.", "known known [unknown]"),
        ("unknown known", "[unknown] known"),
        ("", ""),
        ("\0\x1b[31m known", "[unknown] [unknown] [unknown] [unknown]"),
        ("Καλημέρα known \U0001f600", "[unknown] known [unknown]"),
        ("known " * 9, "known known known known"),
    ],
)
def test_other_scripts_and_control_characters_are_unknown(text: str, read: str) -> None:
    words = Words((*MARKS, "known"))
    assert words.text(words.tokens([text], 4)[0].tolist()) == read


def test_places_behind_the_end_have_no_gradient(model: RowModel, notes: Dataset) -> None:
    observation, tokens = seen(model, notes, [[0]])
    places = model.layout.split(observation.target)["places"][0, 0]
    assert torch.equal(places.abs().amax(1) > 0, tokens[0, 0] != PAD)


def test_one_text_comes_back_whole(model: RowModel, notes: Dataset) -> None:
    observation, tokens = seen(model, notes, [[place] for place in range(0, 6, 2)])
    for attack in (Span(), TokenRows()):
        assert torch.equal(made(attack, observation), tokens)
        # A clip takes one unknown scale, and pruning of what is zero anyway nothing.
        assert torch.equal(made(attack, replace(observation, target=observation.target * 1e-3)), tokens)


@pytest.mark.parametrize("attack", [TokenRows(), Span(), Decode()])
def test_one_text_in_several_steps_is_one_text(
    attack: TokenRows | Span | Decode, model: RowModel, notes: Dataset
) -> None:
    observation, truth = seen(model, notes, [[3], [4]])
    observation = replace(observation, examples=3, local_steps=3, update_model="avg", places=(0, 0, 0))
    assert torch.equal(made(attack, observation), truth.expand(-1, 3, -1))


def test_noise_ends_it(model: RowModel, notes: Dataset) -> None:
    observation, tokens = seen(model, notes, [[1], [2]])
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    for attack in (Span(), TokenRows()):
        found = made(attack, replace(observation, target=observation.target + 0.1 * noise))
        assert not (found == tokens).all(-1).any()
    broken = replace(observation, target=observation.target * torch.nan)
    assert (made(Span(), broken) == PAD).all() and (made(TokenRows(), broken) == PAD).all()


def test_the_span_holds_the_tokens_that_were_used_and_no_others(model: RowModel, notes: Dataset) -> None:
    observation, tokens = seen(model, notes, [[3]])
    layer = token_layer(model, "span")
    gradient = model.layout.split(observation.target)[layer.weight][0]
    length = int((tokens != PAD).sum())
    basis = row_space(gradient)
    assert rank_of(gradient) == len(basis) == length == int(torch.linalg.matrix_rank(gradient.double(), rtol=1e-6))
    assert rank_of(0 * gradient) == len(row_space(0 * gradient)) == rank_of(torch.nan * gradient) == 0
    off = outside(candidates_at(model, layer.prefix, observation.weights[0]), basis)
    there = torch.zeros(off.shape, dtype=torch.bool)
    there[tokens[0, 0, :length], torch.arange(length)] = True
    assert off[there].max() < 1e-5
    assert off[~there][:, None].min() > 0.2


def test_words_are_put_where_they_stood_by_hand() -> None:
    places = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    places[4] = 0
    table = torch.zeros(9, 8)
    for word, place in ((7, 0), (2, 1), (7, 2), (3, 3)):
        table[word] += places[place]
    assert ordered(table, places, 5).tolist() == [7, 2, 7, 3, PAD]
    assert ordered(table, None, 5).tolist() == [2, 3, 7, PAD, PAD]


class NormBehind(nn.Module):
    """Attention reads what a norm made of the words, and adds what it says to that, as BERT does."""

    def __init__(self, vocabulary: int, places: int, classes: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words, self.places = nn.Embedding(vocabulary, 192), nn.Parameter(torch.randn(1, places, 192))
        self.first, self.layer = nn.LayerNorm(192), nn.TransformerEncoderLayer(192, 4, 64, 0.0, batch_first=True)
        self.head = nn.Linear(192, classes)
        nn.init.normal_(self.first.bias, std=0.1)

    def forward(self, images: Tensor) -> Tensor:
        tokens = tokens_of(images).clamp_max(self.vocabulary - 1)
        there = tokens != PAD
        hidden = self.layer(self.first(self.words(tokens) + self.places), src_key_padding_mask=~there)
        return self.head((hidden * there[..., None]).sum(1) / there.sum(1, keepdim=True))


@pytest.fixture(scope="module")
def behind(notes: Dataset) -> Iterator[RowModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS._entries, "norm_behind", lambda shape, classes: NormBehind(1_024, shape[2], classes))
        yield RowModel("norm_behind", notes.image_shape, notes.num_classes)


def as_sets(texts: Tensor) -> list[set[tuple[int, ...]]]:
    return [{tuple(text) for text in row} for row in texts.tolist()]


def test_attention_that_reads_places_first_is_read(notes: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's attention does by default; several texts are not told apart there, in words."""

    class Turned(nn.TransformerEncoderLayer):
        def forward(self, src: Tensor, **masks: Tensor) -> Tensor:
            return super().forward(src.transpose(0, 1), **masks).transpose(0, 1)

    class PlacesFirst(NormBehind):
        def __init__(self, vocabulary: int, places: int, classes: int) -> None:
            super().__init__(vocabulary, places, classes)
            self.layer = Turned(192, 4, 64, 0.0)

    monkeypatch.setitem(MODELS._entries, "places_first", lambda shape, classes: PlacesFirst(1_024, shape[2], classes))
    turned = RowModel("places_first", notes.image_shape, notes.num_classes)
    observation, tokens = seen(turned, notes, [[3]])
    assert torch.equal(made(Span(), observation), tokens)
    with pytest.raises(UsageError, match=r"first attention \(with batch_first\) behind a table"):
        made(Span(), seen(turned, notes, [[3, 4]])[0])


@pytest.mark.parametrize(("network", "texts"), [
    ("model", 3), ("behind", 3), ("behind", 12), pytest.param("model", 8, marks=pytest.mark.slow),
])  # fmt: skip
def test_several_texts_come_back_whole(
    network: str, texts: int, notes: Dataset, request: pytest.FixtureRequest
) -> None:
    """Also with more pairs of a word and a place than a vector has numbers: 12 texts have 208, at width 192."""
    of = request.getfixturevalue(network)
    observation, tokens = seen(of, notes, [list(range(texts))])
    assert as_sets(made(Span(), observation)) == as_sets(tokens)


@pytest.mark.parametrize("network", ["model", "behind"])
@pytest.mark.parametrize(("places", "labels", "words"), [
    ([0, 0, 2], [1, 1, 3], PLACES), ([0, 0, 2], [1, 4, 3], PLACES), ([0, 0, 0], [1, 4, 4], PLACES),
    ([0, 1, 2], [1, 1, 3], 1), ([0, 0, 2], [1, 4, 3], 1),
], ids=["equal", "equal, other labels", "all equal", "one word", "equal, one word"])  # fmt: skip
def test_equal_texts_and_texts_of_one_word_come_back(
    network: str, places: list[int], labels: list[int], words: int, notes: Dataset, request: pytest.FixtureRequest
) -> None:
    """Note 0 is cut after some words. Equal texts have several times the share of one text, whatever the scale."""
    of, keys = request.getfixturevalue(network), ((0, 0),)
    tokens, texts = tokens_of(notes.images[places]), torch.tensor(places)[:, None]
    tokens[(texts == 0) & (torch.arange(PLACES) >= words)] = PAD
    weights = of.initial_weights(list(keys))
    gradients = of.gradient(weights, images_of(tokens)[None], torch.tensor([labels]))
    for scale in (1.0, 0.2):
        found = made(Span(), Observation(of, weights, scale * gradients, 3, keys))[0]
        assert sorted(found.tolist()) == sorted(tokens.tolist())


ALIKE = {
    "another order": [[5, 9, 7, 31, 12], [9, 5, 31, 7, 12]],
    "no word of their own": [[5, 9, 7], [9, 31, 7], [5, 31, 9]],
    "beside another text": [[44, 8, 3, 17, 29, 50], [5, 9, 7], [9, 7, 5]],
    "one of them twice": [[5, 9, 7], [9, 7, 5], [5, 9, 7]],
}  # fmt: skip


@pytest.mark.parametrize("case", ALIKE)
def test_texts_of_the_same_words_are_told_by_the_whole_gradient(case: str) -> None:
    alike = RowModel("text_transformer", TextShape(60, 12), 6)
    texts = torch.stack([torch.tensor(one + [PAD] * (12 - len(one))) for one in ALIKE[case]])
    keys, labels = ((0, 0),), torch.tensor([[0, 1, 0]])[:, : len(texts)]
    weights = alike.initial_weights(list(keys))
    target = alike.gradient(weights, images_of(texts)[None], labels)
    read = made(Span(), Observation(alike, weights, target, len(texts), keys))[0]
    assert sorted(map(tuple, read.tolist())) == sorted(map(tuple, texts.tolist()))
    noisy = target + 1e-3 * torch.randn(target.shape, generator=torch.Generator().manual_seed(0))
    assert not made(Span(), Observation(alike, weights, noisy, len(texts), keys)).any()


def test_each_text_has_a_scale_of_its_own(model: RowModel, notes: Dataset) -> None:
    """As clips of single examples leave it: a sum of gradients, each times a number that nobody knows."""
    (one, of_one), (other, of_other) = (seen(model, notes, [[place]]) for place in (0, 1))
    both = replace(one, target=0.3 * one.target + 0.05 * other.target, examples=2)
    assert as_sets(made(Span(), both)) == as_sets(torch.cat([of_one, of_other], 1))


def test_a_norm_without_a_gain_says_nothing_and_breaks_nothing(behind: RowModel, notes: Dataset) -> None:
    keys, chosen = ((0, 0),), torch.tensor([[0, 1]])
    weights = behind.initial_weights(list(keys))
    behind.layout.split(weights)["first.weight"][0, 5] = 0.0
    gradients = behind.gradient(weights, notes.images[chosen], notes.labels[chosen])
    assert (made(Span(), Observation(behind, weights, gradients, 2, keys)) == PAD).all()


def test_a_text_of_no_words_explains_nothing(behind: RowModel, notes: Dataset) -> None:
    """Where no word that was chosen is listened to, shares of attention are no numbers, and LAPACK refuses these."""
    observation = seen(behind, notes, [[0, 1]])[0]
    reader = Reader(behind, observation.weights[0], observation.target[0])
    pairs = reader.pairs(observation.target[0])
    assert pairs is not None
    heard = reader.listening(pairs, 0)
    assert heard is not None
    assert unexplained(pairs, heard, torch.zeros(len(pairs.word), dtype=torch.float64)) == torch.inf


def test_where_attention_stands_is_found(model: RowModel, behind: RowModel) -> None:
    assert first_attention(model) == FirstAttention("encoder.0.self_attn", "encoder.0.norm1", before=True)
    assert first_attention(behind) == FirstAttention("layer.self_attn", "first", before=False)


@pytest.mark.parametrize(("vocabulary", "places"), [(60, 2), (3, 5), (4, 5), (4, 6)])
def test_few_words_and_places_are_told_apart(vocabulary: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._entries, "few", lambda shape, classes: NormBehind(vocabulary, shape[2], classes))
    few, texts = RowModel("few", TextShape(vocabulary, places), 2), torch.full((1, places), 2)
    assert [one.prefix for one in token_layers(few, "span")] == ["layer.self_attn"]
    assert prefix_layer(few) is None
    assert first_attention(few) == FirstAttention("layer.self_attn", "first", before=False)
    weights = few.initial_weights([(0, 0)])
    gradient = few.gradient(weights, images_of(texts)[None], torch.zeros(1, 1, dtype=torch.long))
    target = gradient + torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0))
    found = made(Decode(), Observation(few, weights, target, 1, ((0, 0),), noise=Noise("gaussian", 1.0)))[0, 0]
    assert (found != PAD).sum() == (found != PAD).nonzero().max() + 1  # a text ends once


def test_what_a_network_of_texts_cannot_give(model: RowModel, notes: Dataset) -> None:
    observation, _ = seen(model, notes, [[0], [1]])
    pair, _ = seen(model, notes, [[0, 1]])
    with pytest.raises(UsageError, match="attack 'cpl' changes an image little by little, which a text cannot be"):
        run_attack(CPL(), observation)
    adam = replace(pair, certainty=torch.ones_like(pair.target), prior=fit_prior(notes))
    with pytest.raises(UsageError, match=r"gradients that add up.*; use --optimizer sgd, or --batch-size 1"):
        require_several("identify", adam)
    with pytest.raises(UsageError, match="not of 2; use --batch-size 1"):
        run_attack(TokenRows(), pair)
    with pytest.raises(UsageError, match="reads texts, and model 'lenet' takes images"):
        token_layer(RowModel("lenet", (1, 28, 28), 10), "span")
    fixed = RowModel("text_transformer+only(head)", notes.image_shape, notes.num_classes)
    with pytest.raises(UsageError, match="attack 'span' needs a table of words that is trained here"):
        first_attention(fixed)
    with pytest.raises(UsageError, match="reads the vectors of single tokens"):
        token_layer(fixed, "span")
    with pytest.raises(UsageError, match="reads texts, not images of"):
        RowModel("text_transformer", (1, 28, 28), 10)
    for name, head in (("text_transformer", "head.weight"), ("text_writer", "network.head.weight")):
        of = RowModel(name, notes.image_shape, 2)
        below, _ = seen(of, replace(notes, labels=0 * notes.labels), [[0], [1]])
        of.layout.split(below.weights)[head][1] = 0.0  # one victim's
        for attack in (TokenRows(), Span()):
            with pytest.raises(UsageError, match="' is not applicable: the head's weights"):
                run_attack(attack, below)
            assert run_attack(attack, replace(below, local_steps=2)).images.any()
    blind = run_attack(Blind(), replace(observation, prior=fit_prior(notes)))
    assert torch.equal(images_of(tokens_of(blind.images)), blind.images)


@pytest.mark.parametrize(
    ("known", "words", "said"),
    [
        (None, Words(MARKS), "reads images, and the data are texts"),
        (5, None, "reads texts, and the data are none"),
        (1, Words(MARKS), "knows 1 tokens, and the data's vocabulary has 2"),
    ],
)
def test_a_network_fits_its_data(known: int | None, words: Words | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        require_texts_for("some", known, words)


def test_nothing_of_a_text_is_told_to_an_attack() -> None:
    told = {one.name for one in fields(Observation)}
    assert not told & {"tokens", "lengths", "mask", "text", "words"}


def test_texts_are_measured_token_by_token() -> None:
    truth = torch.tensor([[5, 6, 7, PAD], [5, 6, 7, PAD], [5, 6, PAD, PAD]])
    guess = torch.tensor([[5, 6, 7, PAD], [5, 9, 7, 8], [6, 5, PAD, PAD]])
    metrics, missing = measured(Pairs(images_of(truth), images_of(guess), TextScale()))
    assert metrics["text_exact"].tolist() == [1, 0, 0]
    assert metrics["tokens_right"].tolist() == pytest.approx([1, 2 / 3, 0])
    assert metrics["mse"].tolist() == [0, 0.5, 0.5]
    assert metrics["rmse"].tolist() == metrics["rmse_raw"].tolist()
    assert TextScale().strict(images_of(truth), images_of(guess)).tolist() == [True, False, False]
    assert missing["psnr"] == "it compares images, and a text is none"
    assert "continuous_rmse" not in metrics and "continuous_rmse" not in missing


def test_an_end_is_seen_where_vectors_behind_it_lie_near(model: RowModel) -> None:
    """The vectors of a trained network are alike: a token behind the end may lie within what noise is allowed."""
    width = 6
    basis = torch.eye(width)[:3]
    vectors = torch.nn.functional.normalize(torch.ones(4, 5, width) - 2 * torch.eye(width)[4], dim=2)
    for place, token in enumerate((2, 3, 1)):
        vectors[token, place] = basis[place]
    vectors[2, 3] = basis[0] + 0.07 * torch.eye(width)[5]
    assert told(torch.diag(torch.tensor([3.0, 2, 1, 0, 0, 0])), vectors).tolist() == [2, 3, 1, PAD, PAD]


def test_unknown_words_come_back_as_such(model: RowModel, notes: Dataset) -> None:
    """The row of no token has no vector of its own, and must not stand for that of another."""
    images = images_of(torch.tensor([[[5, UNKNOWN, 7, UNKNOWN, *[PAD] * (PLACES - 4)]]]))
    weights, labels = model.initial_weights([(0,)]), torch.zeros(1, 1, dtype=torch.long)
    unknown = Observation(model, weights, model.gradient(weights, images, labels), 1, ((0, 0),))
    assert made(Span(), unknown)[0, 0, :5].tolist() == [5, UNKNOWN, 7, UNKNOWN, PAD]


def test_which_weights_come_before_a_layer(model: RowModel, behind: RowModel) -> None:
    names = {"words.weight", "places", "encoder.0.norm1.weight", "encoder.0.norm1.bias"}
    assert set(read_before(model, token_layer(model, "span"))) == names
    assert set(read_before(behind, token_layer(behind, "span"))) == {
        "words.weight",
        "places",
        "first.weight",
        "first.bias",
    }


def calls(model: RowModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of places of each forward pass from now on."""
    found, forward = [], TextTransformer.forward
    monkeypatch.setattr(
        TextTransformer, "forward", lambda own, images: found.append(images.shape[-1]) or forward(own, images)
    )
    return found


def test_gradients_of_several_texts_at_the_same_weights(
    model: RowModel, notes: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed together, without places that are empty in all; no bit depends on how many there are."""
    short = (tokens_of(notes.images) != PAD).sum(-1).argsort()[:9]
    texts, labels, weights = notes.images[short], notes.labels[short], model.initial_weights([(3, 0)])[0]
    alone = model.per_example_gradients(weights[None], texts[None], labels[None])[0].split(model.layout.sizes, 1)
    model.gradients_by_tensor(weights, texts[:8], labels[:8])
    passes = calls(model, monkeypatch)
    whole = model.gradients_by_tensor(weights, texts[:8], labels[:8])
    assert model.group == 8 and len(passes) == 1 and passes[0] < PLACES
    for part, truth in zip(whole, alone, strict=True):
        torch.testing.assert_close(part, truth[:8], rtol=1e-5, atol=1e-5 * float(truth.abs().max()))
    fewer = model.gradients_by_tensor(weights, texts[2:8].flip(0), labels[2:8].flip(0))
    assert len(passes) == 2
    for part, other in zip(fewer, whole, strict=True):
        torch.testing.assert_close(part.flip(0), other[2:8], rtol=1e-5, atol=1e-7)
    model.gradients_by_tensor(weights, texts, labels)
    assert len(passes) == 4


def test_inner_products_need_no_gradients(model: RowModel, notes: Dataset) -> None:
    """Of texts whose number is no multiple of a group's, with words that come more than once."""
    texts, labels, (weights, read) = notes.images[:11], notes.labels[:11], model.initial_weights([(3, 0), (4, 0)])
    assert model.tells_products(weights, texts, labels)
    both, own = model.gradient_products(weights, texts, labels, read)
    gradients = model.per_example_gradients(weights[None], texts[None], labels[None])[0]
    wanted, squares, lengths = group_products(gradients, read.expand_as(gradients), model.layout.sizes)
    torch.testing.assert_close(own, squares, rtol=1e-5, atol=1e-12)
    assert ((both - wanted).abs() <= 1e-6 * (squares * lengths).sqrt() + 1e-9).all()


class Twice(TextTransformer):
    """Its table of words is used a second time."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (1 + self.words.weight.sum())


class Scaled(TextTransformer):
    """What a layer gives is used with a parameter of no layer."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * self.scale


class Placed(TextTransformer):
    """Its places are a table that is read without a text."""

    def __init__(self, vocabulary: int, places: int, width: int, classes: int) -> None:
        super().__init__(vocabulary, places, width, classes)
        self.table = nn.Embedding(places, classes)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + self.table(torch.arange(images.shape[-1])).sum(0)


@pytest.mark.parametrize("network", [Twice, Scaled, Placed])
def test_networks_that_use_weights_otherwise_tell_no_products(network: type[TextTransformer], notes: Dataset) -> None:
    torch.manual_seed(0)
    built = network(MOST_WORDS, PLACES, 64, 6)
    layout = Layout.of(built)
    rows = LoneRows(built, layout)
    flat = torch.cat([one.detach().flatten() for one in built.parameters()])
    assert not rows.tells_products(flat, notes.images[:8], notes.labels[:8])


@pytest.mark.parametrize("clipping", [None, Clipping(0.05, "layer", "example"), Clipping(0.1, "whole", "example")])
@pytest.mark.parametrize("deviation", [None, 1e-3, 0.6])
def test_identify_compares_texts_as_one_by_one(
    deviation: float | None, clipping: Clipping | None, model: RowModel, notes: Dataset
) -> None:
    clean, _ = seen(model, notes, [[3], [70]])
    bound = (
        clean.target
        if clipping is None
        else clip(clean.target, clipping.bound or 0, model.layout.groups(clipping.grouping))
    )
    noise = torch.randn(bound.shape, generator=torch.Generator().manual_seed(0)) * (deviation or 0.0)
    read = replace(
        clean,
        target=bound + noise,
        noise=None if deviation is None else Noise("gaussian", deviation),
        clipping=clipping,
    )
    texts, labels = notes.images[[3, 70, 5, 8, 11, 13, 17, 19, 23]], notes.labels[[3, 70]]
    found = Identify().distances(read, texts.expand(2, *texts.shape), labels)
    gradients = torch.stack([
        model.per_example_gradients(read.weights[row : row + 1], texts[None], labels[row].expand(1, len(texts)))[0]
        for row in range(2)
    ])  # fmt: skip
    if clipping is not None:
        gradients = clip(gradients, clipping.bound or 0, model.layout.groups(clipping.grouping))
    wanted = torch.stack([improbability(read, gradients[:, place]) for place in range(len(texts))], 1)
    # Of large numbers that nearly cancel, single precision leaves a thousandth.
    near = {"rtol": 1e-5, "atol": max(1e-3, 1e-5 * float(wanted.max() - wanted.min()))}
    torch.testing.assert_close(found, wanted, **near)
    # A text under each topic, as attack decode asks; a single candidate is told by its gradient.
    topics = torch.arange(6).expand(2, -1)
    found = Identify().distances(read, texts[:1].expand(2, 6, *texts.shape[1:]), topics)
    alone = [Identify().distances(read, texts[:1].expand(2, *texts[:1].shape), topic) for topic in topics.T]
    torch.testing.assert_close(found, torch.cat(alone, 1), **near)


def test_rows_that_span_everything_tell_no_text() -> None:
    """Behind noise nothing lies outside of them but rounding, which is another one for each number of threads."""
    draws = torch.Generator().manual_seed(0)
    vectors = torch.randn(9, 5, 16, generator=draws)
    used = vectors[torch.tensor([3, 4, 5, 6, 7]), torch.arange(5)]
    within = torch.randn(40, 5, generator=draws) @ used
    assert told(within, vectors).tolist() == [3, 4, 5, 6, 7]
    assert told(within + 0.1 * torch.randn(40, 16, generator=draws), vectors).tolist() == [PAD] * 5
