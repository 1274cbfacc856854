"""Adapters of low rank: what is trained and sent, and what span reads of it at which rank."""

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.attacks import run_attack
from harness.attacks.span import Span
from harness.attacks.token_layers import candidates_at, layers_of, readings
from harness.attacks.token_rows import TokenRows
from harness.base.errors import UsageError
from harness.base.words import PAD, tokens_of
from harness.cli import run
from harness.datasets import Dataset
from harness.models import RowModel, build_module
from harness.models.adapters import AdaptedAttention, AdaptedLinear, adapters
from harness.observation import Observation

FEW = ["--clients", "4", "--clients-per-round", "2", "--local-steps", "1", "--batch-size", "4", "--split", "iid"]


def network(notes: Dataset, name: str) -> RowModel:
    return RowModel(name, notes.image_shape, notes.num_classes)


def seen(model: RowModel, notes: Dataset, chosen: list[list[int]], trained: float = 0.0) -> tuple[Observation, Tensor]:
    """Gradients of some notes, a batch for each victim, and their tokens (R, n, T); ``trained``: how far B is from
    zero."""
    keys = tuple((0, row) for row in range(len(chosen)))
    weights, places = model.initial_weights(list(keys)), torch.tensor(chosen)
    for name, part in model.layout.split(weights).items():
        if name.endswith(".b.weight"):
            part += trained * torch.randn(part.shape, generator=torch.Generator().manual_seed(len(name)))
    gradients = model.gradient(weights, notes.images[places], notes.labels[places])
    return Observation(model, weights, gradients, len(chosen[0]), keys), tokens_of(notes.images[places])


def made(observation: Observation) -> Tensor:
    return tokens_of(run_attack(Span(), observation).images)


def test_adapters_and_the_head_are_all_that_is_sent(notes: Dataset) -> None:
    model = network(notes, "text_transformer_64+adapters(4)")
    of_layers = {
        f"encoder.{layer}.self_attn.{part}.{one}.weight"
        for layer in range(2) for part in ("query", "value") for one in "ab"
    }  # fmt: skip
    assert set(model.layout.names) == of_layers | {"head.weight", "head.bias"}
    assert model.layout.total == 2 * 2 * 2 * 64 * 4 + 65 * notes.num_classes
    without = network(notes, "text_transformer_64+adapters(4)+only(encoder)")
    assert set(without.layout.names) == of_layers


def test_adapters_follow_from_the_seed_and_leave_other_draws_alone(notes: Dataset) -> None:
    before = torch.get_rng_state()
    model = RowModel("text_transformer_64+adapters(4)", notes.image_shape, notes.num_classes)
    assert torch.equal(*model.initial_weights([(0,), (0,)]))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_with_new_adapters_computes_what_it_did(notes: Dataset) -> None:
    plain, adapted = (
        build_module(f"text_transformer_64{change}", notes.image_shape, 6, seed=3) for change in ("", "+adapters(4)")
    )
    torch.testing.assert_close(adapted(notes.images[:8]), plain(notes.images[:8]))


def test_the_first_gradients_by_hand(notes: Dataset) -> None:
    module = build_module("text_transformer_64+adapters(4|12)", notes.image_shape, 6, seed=3)
    attention = module.encoder[0].self_attn
    whole = attention.in_proj_weight.requires_grad_()
    loss = nn.functional.cross_entropy(module(notes.images[:3]), notes.labels[:3])
    own = [attention.query.a.weight, attention.query.b.weight, attention.value.a.weight, attention.value.b.weight]
    of_whole, *(of_query, query, of_value, value) = torch.autograd.grad(loss, [whole, *own])
    assert not of_query.any() and not of_value.any()
    for found, gradient, a in ((query, of_whole[:64], own[0]), (value, of_whole[128:], own[2])):
        torch.testing.assert_close(found, 3.0 * gradient @ a.T, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["nothing", "padding", "numbers", "words", "later"])
def test_adapted_attention_is_attention(batch_first: bool, masked: str) -> None:
    torch.manual_seed(0)
    plain, values = nn.MultiheadAttention(12, 3, batch_first=batch_first), torch.randn(5, 5, 12)
    later = nn.Transformer.generate_square_subsequent_mask(5)
    words = torch.rand(15, 5, 5) < 0.3
    words[:, :, 0] = False
    masks = {
        "nothing": {}, "padding": {"key_padding_mask": torch.arange(5) > torch.arange(5)[:, None]},
        "numbers": {"attn_mask": torch.randn(5, 5)}, "words": {"attn_mask": words},
        "later": {"attn_mask": later, "is_causal": True},
    }[masked]  # fmt: skip
    right = plain(values, values, values, need_weights=False, **masks)[0]
    found = AdaptedAttention(plain, 2, 4.0)(values, values, values, need_weights=False, **masks)[0]
    torch.testing.assert_close(found, right)


def test_linear_layers_that_make_queries_and_values_are_adapted() -> None:
    parts = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("query", "key", "value", "q_proj", "v_proj", "last")})
    adapted = adapters(parts, 6, 1.0)
    assert {name for name, one in adapted.named_children() if isinstance(one, AdaptedLinear)} == {
        "query", "value", "q_proj", "v_proj",
    }  # fmt: skip
    trained = {name.split(".")[0] for name, one in adapted.named_parameters() if one.requires_grad}
    assert trained == {"query", "value", "q_proj", "v_proj", "last"}
    assert not parts["query"].weight.requires_grad


def test_training_moves_adapters_and_leaves_the_rest(tmp_path: Path) -> None:
    line = [
        "train",
        "--dataset",
        "notes",
        "--model",
        "text_transformer_64",
        "--train-only",
        "adapters",
        "--rounds",
        "2",
    ]
    assert run([*line, *FEW, "--keep-rounds", "0,2", "--out", str(tmp_path)]) == 0
    before, after = (torch.load(path, weights_only=True) for path in sorted((tmp_path / "models").glob("*.pt")))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(name.endswith((".a.weight", ".b.weight")) or name.startswith("head") for name in moved)
    assert before["encoder.0.self_attn.query.a.weight"].shape == (8, 64)  # the default


@pytest.mark.slow
def test_a_rank_beyond_the_tokens_gives_the_first_step_away(notes: Dataset) -> None:
    """At width 64, rank 64 is no low rank, and B is read all the same."""
    for name in ("text_transformer+adapters(64)", "text_transformer_64+adapters(64)"):
        observation, tokens = seen(network(notes, name), notes, [[0], [8]])
        assert torch.equal(made(observation), tokens)
        assert torch.equal(made(observation.take(torch.tensor([1]))), tokens[1:])


def test_a_rank_below_the_tokens_gives_nothing_away_at_first(notes: Dataset) -> None:
    for rank in (1, 16):
        observation, tokens = seen(network(notes, f"text_transformer_64+adapters({rank})"), notes, [[0], [8]])
        assert int((tokens != PAD).sum(-1).min()) >= rank
        assert (made(observation) == PAD).all()


def test_later_all_first_adapters_together_tell_as_many_tokens_as_they_have_rows(notes: Dataset) -> None:
    lengths = tokens_of(notes.images[:60]) != PAD
    counts = lengths.flatten(1).sum(1)
    below, above = int((counts <= 24).nonzero()[0]), int((counts > 24).nonzero()[0])
    observation, tokens = seen(network(notes, "text_transformer+adapters(12)"), notes, [[below], [above]], 0.02)
    found = made(observation)
    assert torch.equal(found[0], tokens[0]) and not torch.equal(found[1], tokens[1])


def test_what_is_read_says_whether_it_explains_all(notes: Dataset) -> None:
    model = network(notes, "text_transformer+adapters(40)")
    observation, tokens = seen(model, notes, [[0]], 0.02)
    layers, parts = layers_of(model), model.layout.split(observation.target)
    vectors = cache(lambda source: candidates_at(model, source, observation.weights[0]))
    found = readings(layers, {one.weight: parts[one.weight][0] for one in layers})
    assert [len(one.layers) for one in found] == [1, 2, 1, 1]
    places = (tokens[0, 0] != PAD).nonzero()[:, 0]
    words = tokens[0, 0, places]
    for one in found:
        assert one.unexplained(vectors, (words, places)) < 1e-5
        assert one.unexplained(vectors, (words.roll(1), places)) > 0.01
        assert one.unexplained(vectors, (words[1:], places[1:])) > 1e-4


@pytest.mark.parametrize(("rank", "trained", "most"), [(4, 0.0, 3), (4, 0.02, 8), (64, 0.0, 63), (64, 0.02, 63)])
def test_the_rank_says_how_many_tokens_can_be_told(rank: int, trained: float, most: int, notes: Dataset) -> None:
    observation, _ = seen(network(notes, f"text_transformer_64+adapters({rank})"), notes, [[0], [1]], trained)
    empty = torch.zeros(2, 1)
    assert Span().measures(observation, empty, empty)["most_tokens"].tolist() == [most, most]
    plain, tokens = seen(network(notes, "text_transformer_64"), notes, [[0], [1]])
    told = Span().measures(plain, empty, empty)
    assert told["width"].tolist() == [64, 64]
    assert told["rank"].tolist() == (tokens != PAD).sum((1, 2)).tolist()


def test_noise_is_told_from_a_text_and_breaks_nothing(notes: Dataset) -> None:
    observation, tokens = seen(network(notes, "text_transformer_64+adapters(64)"), notes, [[0]])
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    for target in (observation.target + 0.1 * noise, observation.target * torch.nan, torch.zeros_like(noise)):
        of_noise = Observation(observation.model, observation.weights, target, 1, observation.keys)
        assert not torch.equal(made(of_noise), tokens)


def test_attacks_that_cannot_read_adapters_say_so(notes: Dataset) -> None:
    model = network(notes, "text_transformer_64+adapters(4)")
    several, _ = seen(model, notes, [[0, 1]])
    with pytest.raises(UsageError, match="reads one text from adapters, not 2; use --batch-size 1"):
        run_attack(Span(), several)
    one, _ = seen(model, notes, [[0]])
    with pytest.raises(UsageError, match="needs a table of words that is trained here"):
        run_attack(TokenRows(), one)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--dataset notes --train-only adapters --adapter-rank 0",
            "a rank of 1 to the width of the network, 384, not 0",
        ),
        ("--dataset notes --train-only adapters --adapter-rank 385", "width of the network, 384, not 385; change"),
        ("--dataset notes --model text_transformer+adapters(4|0)", "adapters have a positive alpha, not 0"),
        ("--dataset notes --model text_transformer+adapters(x)", "write text_transformer+adapters(16)"),
        ("--model lenet --train-only adapters", "there is no attention whose queries and values"),
        ("--dataset notes --adapter-rank 4", "--adapter-rank needs adapters; add --train-only adapters"),
        ("--dataset notes --train-only head", "--model 'NAME+only(head)'"),
        ("--dataset notes,digits --train-only adapters", "name it with --model"),
        ("--dataset notes --model text_transformer+adapters(4) --train-only adapters", "has adapters already"),
        ("--dataset notes --model text_transformer+adapters(4)+adapters(4)", "there is no attention whose"),
    ],
)
def test_what_is_impossible_is_one_line(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["evaluate", "--defense", "none", "--attack", "span", "--surface", "2", "--victims", "2"]
    assert run([*line, *options.split(), "--out", str(tmp_path)]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert said in error


def test_adapters_are_evaluated_as_they_are_named(tmp_path: Path) -> None:
    """A rank below the tokens is a counted failure; identify tells the truth all the same."""
    line = ["evaluate", "--defense", "none", "--attack", "span,identify", "--dataset", "notes", "--no-pictures"]
    small = ["--model", "text_transformer_64", "--train-only", "adapters", "--adapter-rank", "1"]
    assert run([*line, *small, "--surface", "2", "--victims", "4", "--out", str(tmp_path)]) == 0
    from harness.results import ResultDocument

    document = ResultDocument.model_validate_json((tmp_path / "results.json").read_text())
    span, identify = (
        next(cell for cell in document.cells if cell.attack == name and cell.role == "cell")
        for name in ("span", "identify")
    )
    assert span.model == "text_transformer_64+adapters(1)"
    assert span.asr["strict"].successes == 0 and span.asr["strict"].n == 4
    assert identify.identified is not None and identify.identified.rate == 1.0
