"""Decode: informed, it writes whole texts at noise at which attackers who do not know the noise write none."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.decode import Decode, Language, Mixture, together
from harness.attacks.span import Span
from harness.attacks.token_layers import directions
from harness.attacks.token_rows import TokenRows, tables_of
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.base.words import PAD, tokens_of
from harness.datasets import Dataset
from harness.datasets.prior import Prior
from harness.models import RowModel
from harness.observation import Clipping, Noise, Observation

Read = tuple[Observation, Tensor]


@pytest.fixture(scope="module")
def read(sides: tuple[Dataset, Prior]) -> Read:
    """Gradients of three notes without noise, and the notes (3, T)."""
    notes, prior = sides
    model, keys = (
        RowModel("text_transformer", notes.image_shape, notes.num_classes),
        tuple((0, row) for row in range(3)),
    )
    weights, rows = model.initial_weights(list(keys)), torch.arange(3)[:, None]
    gradients = model.gradient(weights, notes.images[rows], notes.labels[rows])
    return Observation(model, weights, gradients, 1, keys, prior=prior), tokens_of(notes.images[:3])


def noisy(observation: Observation, deviation: float) -> Observation:
    noise = deviation * torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(1))
    return replace(observation, target=observation.target + noise, noise=Noise("gaussian", deviation))


def made(attack: Decode | Span | TokenRows, observation: Observation) -> Tensor:
    return tokens_of(run_attack(attack, observation).images)[:, 0]


def test_a_text_comes_back_at_noise_that_stops_who_does_not_know_it(read: Read) -> None:
    observation, texts = read
    seen = noisy(observation, 0.015)
    assert torch.equal(made(Decode(tries=0), seen), texts)
    plain = replace(seen, noise=None, prior=None)
    assert not any((made(attack, plain) == texts).all(1).any() for attack in (Span(), TokenRows()))
    assert not (made(Decode(tries=0), noisy(observation, 1.0)) == texts).all(1).any()


def test_without_noise_and_public_texts_nothing_is_missed(read: Read) -> None:
    observation, texts = read
    assert torch.equal(made(Decode(tries=0), replace(observation, prior=None)), texts)
    assert torch.equal(made(Decode(tries=0), replace(observation, target=observation.target * 1e-3)), texts)


def test_broken_numbers_give_no_text(read: Read) -> None:
    broken = replace(read[0], target=read[0].target * torch.nan)
    assert (made(Decode(), broken) == PAD).all()
    nothing = replace(read[0], target=read[0].target * 0)  # as all is below a head of zeros
    assert made(Decode(tries=0), nothing).any()


def test_the_whole_gradient_decides_between_words_that_are_as_likely(read: Read) -> None:
    """At noise where the tables leave some words in doubt."""
    observation, texts = read
    seen, texts = noisy(observation, 0.04).take(torch.tensor([0])), texts[:1]
    right = [int((made(Decode(tries=tries), seen) == texts).sum()) for tries in (0, 40)]
    assert right[1] > right[0]


@pytest.mark.parametrize("name", ["text_transformer_64+adapters(64)", "text_transformer_64+only(encoder|head)"])
def test_texts_come_back_where_the_table_of_words_is_frozen(name: str, sides: tuple[Dataset, Prior]) -> None:
    """At noise that stops who does not know it; at much noise no text does."""
    notes, prior = sides
    model, rows, keys = RowModel(name, notes.image_shape, notes.num_classes), torch.arange(3)[:, None], ((0, 0),) * 3
    weights, texts = model.initial_weights(list(keys)), tokens_of(notes.images[:3])
    gradients = model.gradient(weights, notes.images[rows], notes.labels[rows])
    observation = Observation(model, weights, gradients, 1, keys, prior=prior)
    seen = noisy(observation, 0.01 * float(gradients.square().mean().sqrt()))
    assert torch.equal(made(Decode(), seen), texts)
    assert not (made(Span(), replace(seen, noise=None, prior=None)) == texts).all(1).any()
    strong = noisy(observation, 30 * float(gradients.square().mean().sqrt()))
    assert not (made(Decode(tries=4), strong) == texts).all(1).any()
    assert torch.equal(made(Decode(tries=0), replace(observation, prior=None)), texts)
    with pytest.raises(UsageError, match="2 texts needs a table of words and learned places that are trained"):
        run_attack(Decode(), replace(observation, examples=2))


def test_directions_are_those_of_the_covariance() -> None:
    """-log of the share of a vector that the inverse covariance, noise at least, leaves; half of it a direction."""
    random = torch.Generator().manual_seed(0)
    mixed = torch.randn(40, 5, generator=random) @ torch.randn(5, 12, generator=random)
    gradient = mixed.double() + 0.1 * torch.randn(40, 12, generator=random)
    values, vectors = torch.linalg.eigh(gradient.T @ gradient / 40)
    inverse = vectors @ (1 / values.clamp_min(0.01)).diag() @ vectors.T
    count = (1 - 0.01 / values.clamp_min(0.01)).sum()
    wanted = torch.cat([torch.randn(1, 5, generator=random).double() @ gradient[:5], torch.randn(3, 12).double()])
    left = 0.01 * torch.einsum("ne,ef,nf->n", wanted, inverse, wanted) / wanted.square().sum(1)
    told = directions(gradient, wanted[:, None], 0.1)[:, 0]
    assert torch.allclose(told, -count * left.log() / 2, atol=1e-6) and int(told.argmax()) == 0


@pytest.mark.parametrize("noise", [1e-3, 0.02, 0.05])
def test_scores_are_log_likelihood_ratios(noise: float) -> None:
    """A Gaussian log-likelihood ratio varies by twice the size of its mean, as here where a word did not stand. Where
    it stood it varies by half of that, since the noise of the place's row is in both and cancels."""
    random, width, stood, absent = torch.Generator().manual_seed(0), 300, [], []
    own = torch.randn(4, width, generator=random).double() / width**0.5
    for _ in range(400):
        words = torch.cat([own, torch.zeros_like(own)]) + noise * torch.randn(8, width, generator=random)
        scores = together(words, own + noise * torch.randn(4, width, generator=random), noise**2)
        stood.append(scores[:4].diagonal())
        absent.append(scores[4:].flatten())
    for values, share in ((torch.stack(stood), 0.5), (torch.stack(absent), 1.0)):
        assert 0.7 < float(values.var(0).mean() / (2 * values.mean().abs())) / share < 1.4
    assert float(torch.stack(stood).mean()) > 0 > float(torch.stack(absent).mean())


@pytest.fixture(scope="module")
def batch(sides: tuple[Dataset, Prior]) -> Read:
    """The gradient of a batch of four notes without noise, and the notes (4, T)."""
    notes, prior = sides
    model, rows = RowModel("text_transformer_64", notes.image_shape, notes.num_classes), torch.arange(4)[None]
    weights = model.initial_weights([(0, 0)])
    gradients = model.gradient(weights, notes.images[rows], notes.labels[rows])
    return Observation(model, weights, gradients, 4, ((0, 0),), prior=prior), tokens_of(notes.images[:4])


def test_several_texts_are_taken_apart_behind_noise(batch: Read) -> None:
    observation, texts = batch
    seen = noisy(observation, 0.003)
    found = tokens_of(run_attack(Decode(), seen).images)[0]
    whole = {tuple(text) for text in found.tolist()} & {tuple(text) for text in texts.tolist()}
    plain = tokens_of(run_attack(Span(), replace(seen, noise=None, prior=None)).images)[0]
    assert whole and (plain == PAD).all()
    right = [max(float(((one == text) & (text != PAD)).sum() / (text != PAD).sum()) for one in found) for text in texts]
    assert sum(right) / 4 > 0.6, right


def test_ends_and_classes_of_several_texts_are_read(batch: Read, sides: tuple[Dataset, Prior]) -> None:
    observation, texts = batch
    seen, (notes, prior) = noisy(observation, 0.003), sides
    assert prior.classes is not None and prior.texts is not None
    every = tokens_of(prior.texts.unflatten(1, (1, -1, texts.shape[1])))
    pool = torch.cat([(prior.classes == label).nonzero()[:8, 0] for label in range(notes.num_classes)])
    tables = tables_of(seen.model, "decode")
    mixture = Mixture(seen, tables, 0.003)
    found, labels = mixture.start(every[pool], prior.classes[pool])
    assert sorted(labels.tolist()) == sorted(notes.labels[:4].tolist())
    told = [sorted((one != PAD).sum(1).tolist()) for one in (found, texts)]
    assert max(abs(one - other) for one, other in zip(*told, strict=True)) <= 1


def test_words_are_put_in_the_order_of_public_texts() -> None:
    texts = torch.tensor([[2, 3, 4, 5, PAD]] * 20 + [[2, 4, 3, 5, PAD]])
    language = Language.of(texts, torch.zeros(7, 5).double())
    for order in ([4, 3, 2, 5], [2, 5, 4, 3]):
        assert language.ordered(torch.tensor(order)).tolist() == [2, 3, 4, 5]
    assert int(language.of_word(torch.tensor([2, 6, 4]), 1).argmax()) == 3


@pytest.mark.parametrize(("facts", "said"), [
    ({"prior": None}, "4 texts needs public texts; use --prior auto"),
    ({"clipping": Clipping(1.0, "whole", "update")}, "clips of single examples .*; use --attack identify"),
    ({"certainty": torch.ones(1)}, "gradients that add up; use --optimizer sgd"),
])  # fmt: skip
def test_several_texts_that_cannot_be_taken_apart(facts: dict[str, Any], said: str, batch: Read) -> None:
    with pytest.raises(UsageError, match=said):
        run_attack(Decode(), replace(batch[0], **facts))


def test_broken_numbers_of_several_texts_give_none(batch: Read) -> None:
    assert (tokens_of(run_attack(Decode(), replace(batch[0], target=batch[0].target * torch.nan)).images) == PAD).all()


def test_what_decode_cannot_read(read: Read, sides: tuple[Dataset, Prior]) -> None:
    observation, _ = read
    with pytest.raises(UsageError, match="noise of a known level"):
        run_attack(Decode(), replace(observation, noise=Noise("gaussian", None)))


def test_public_texts_are_drawn_as_they_are(sides: tuple[Dataset, Prior]) -> None:
    _, prior = sides
    assert prior.texts is not None and prior.classes is not None
    drawn = prior.drawn(2, 40, generator("a test"))
    known = {row.numpy().tobytes() for row in prior.texts[prior.classes == 2]}
    assert len({row.numpy().tobytes() for row in drawn}) == 40
    assert all(row.numpy().tobytes() in known for row in drawn)
    other = replace(prior, texts=prior.texts.flip(0))
    assert prior.fingerprint() != other.fingerprint() and prior.to(torch.device("cpu"), torch.float64).texts is not None
