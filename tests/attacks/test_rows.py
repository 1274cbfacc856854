"""Whole rows of a table from the gradient of a batch, and what is checked of one row without the others."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, run_attack
from harness.attacks.row_checks import Batch, Checks, Network, fitted, layer_names
from harness.attacks.row_tokens import TokenNetwork, mean_row, token_layers
from harness.attacks.rows import Rows
from harness.base.building import build
from harness.base.columns import Columns, Group
from harness.base.errors import UsageError
from harness.observation import Clipping, Observation
from harness.testing import undefended

COLUMNS = Columns(
    ("a", "b"), (Group("g", tuple("uvwxy")), Group("h", tuple("uvwx"), optional=True), Group("i", tuple("uv")))
)
FEW = {"draws": 200}


def table(rows: int, examples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images (R, n, 1, 1, D) of random rows of a table, and labels (R, n) of two classes."""
    random = torch.Generator().manual_seed(seed)
    made = torch.zeros(rows * examples, COLUMNS.width)
    made[:, :2] = torch.rand(len(made), 2, generator=random)
    for group, place in zip(COLUMNS.groups, COLUMNS.slices, strict=True):
        most = len(group.categories) + group.optional
        chosen = torch.randint(0, most, (len(made),), generator=random)
        there = (chosen < len(group.categories)).nonzero()[:, 0]
        made[there, place.start + chosen[there]] = 1.0
    labels = torch.randint(0, 2, (rows, examples), generator=random)
    return made.reshape(rows, examples, 1, 1, -1), labels


def seen(rows: int, examples: int, model: str = "mlp2", seed: int = 0) -> Observation:
    return undefended(*table(rows, examples, seed), classes=2, model=model, columns=COLUMNS)


def brought_back(made: Tensor, truth: Tensor) -> Tensor:
    """Which true rows (R, n) are among those made, to a hundredth in every feature."""
    apart = (truth.flatten(2)[:, :, None] - made.flatten(2)[:, None]).abs().amax(-1)
    return apart.amin(2) < 0.01


@pytest.mark.parametrize("model", ["mlp2", "mlp", "ft_transformer"])
def test_all_rows_of_a_batch_come_back(model: str) -> None:
    made = run_attack(build(ATTACKS, "rows", FEW), seen(2, 8, model)).images
    assert brought_back(made, table(2, 8)[0]).all()


def test_a_second_layer_tells_more_rows_apart_than_a_row_has_features() -> None:
    examples = 20
    observation = seen(1, examples)
    assert examples > COLUMNS.width  # so that the first layer's gradient spans all rows there are
    made = run_attack(build(ATTACKS, "rows", FEW), observation).images
    assert brought_back(made, table(1, examples)[0]).float().mean() >= 0.9


@pytest.mark.parametrize("model", ["mlp2", "ft_transformer"])
def test_what_comes_back_is_what_was_read(model: str) -> None:
    """Of another batch's gradient come the rows of that batch."""
    made = run_attack(build(ATTACKS, "rows", FEW), seen(1, 8, model, seed=1)).images
    assert not brought_back(made, table(1, 8)[0]).any() and brought_back(made, table(1, 8, seed=1)[0]).all()


def test_without_its_labels_and_columns_told() -> None:
    observation = seen(1, 8)
    assert observation.labels is None
    known = replace(observation, labels=table(1, 8)[1])
    made, told = (run_attack(build(ATTACKS, "rows", FEW), one).images for one in (observation, known))
    assert torch.equal(made, told)


def checked(observation: Observation, examples: int) -> Checks:
    model = observation.model
    named = model.layout.split(observation.target[0].double() * examples)
    sums = [torch.cat([named[one], named[other][:, None]], 1) for one, other in layer_names(model)]
    return Checks(Network.of(model, observation.weights[0]), sums, examples, COLUMNS, [0.0] * len(sums))


def test_only_rows_of_the_batch_pass_all_checks() -> None:
    images, labels = table(1, 8)
    checks = checked(seen(1, 8), 8)
    rows = images[0].flatten(1).double()
    assert checks.score(rows, labels[0]).max() < 1e-7 and checks.part(rows, labels[0]).sub(1).abs().max() < 1e-3
    others = table(1, 200, seed=2)[0][0].flatten(1).double()
    assert checks.score(others, torch.zeros(200, dtype=torch.long)).min() > 1e-3
    # A label of the other class turns the gradient of a row around.
    assert (checks.part(rows, 1 - labels[0]) < 0).all()


def test_numbers_are_fitted_whatever_the_other_rows_are() -> None:
    images, labels = table(1, 8)
    observation, rows = seen(1, 8), images[0].flatten(1).double()
    named = observation.model.layout.split(observation.target[0].double() * 8)
    sums = tuple(torch.cat([named[one], named[other][:, None]], 1) for one, other in layer_names(observation.model))
    batch = Batch(Network.of(observation.model, observation.weights[0]), sums)
    moved, free = rows[:5].clone(), torch.zeros(5, COLUMNS.width, dtype=torch.bool)
    moved[:, :2], free[:, :2] = (moved[:, :2] + 3e-4).clamp(0, 1), True
    made = fitted(batch, moved, labels[0, :5], free, 3)
    assert (made - rows[:5]).abs().max() < 1e-5 < 1e-4 < (moved - rows[:5]).abs().max()


def test_the_first_rows_are_the_most_certain() -> None:
    found = Rows(draws=200).found(seen(1, 8), 0)
    assert (found.entropy.diff() >= 0).all() and found.entropy.min() >= 0 and found.entropy.max() <= 1


@pytest.mark.parametrize("model", ["mlp2", "ft_transformer"])
def test_noise_and_clips_only_make_it_worse(model: str) -> None:
    observation, attack = seen(1, 4, model), build(ATTACKS, "rows", {"draws": 50, "searches": 3})
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    for changed in (
        replace(observation, target=observation.target + noise),
        replace(observation, target=observation.target * 0.01, clipping=Clipping(1.0, "whole", "update")),
    ):
        made = run_attack(attack, changed).images
        assert made.isfinite().all() and made.min() >= 0 and made.max() <= 1
    noisy = run_attack(attack, replace(observation, target=observation.target + noise)).images
    assert not brought_back(noisy, table(1, 4)[0]).all()


@pytest.mark.parametrize(("model", "least"), [("mlp2", 0.8), ("ft_transformer", 0.5)])
def test_a_clip_of_the_update_hides_little(model: str, least: float) -> None:
    observation = seen(1, 6, model)
    clipped = replace(observation, target=observation.target * 0.01, clipping=Clipping(1.0, "whole", "update"))
    made = run_attack(build(ATTACKS, "rows", FEW), clipped).images
    assert brought_back(made, table(1, 6)[0]).float().mean() >= least


@pytest.mark.parametrize("model", ["lenet", "logistic"])
def test_other_networks_are_refused(model: str, victims: Callable[..., Observation]) -> None:
    with pytest.raises(UsageError, match=r"needs a fully connected network with a hidden layer.*use --model mlp2"):
        run_attack(build(ATTACKS, "rows", {}), victims(1, model=model))


# --------------------------------------------------------------------------------------
# A network that makes a token of each column.


def by_tokens(observation: Observation, examples: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Rows (n, D), the derivatives (n, T, E) by their tokens in the sum of losses, and the gradient that was read."""
    images, labels = table(1, examples)
    module, given = observation.model.plain(observation.weights[0]), []
    hook = module.get_submodule("tokens").register_forward_hook(lambda *seen: given.append(seen[2]))
    loss = torch.nn.functional.cross_entropy(module(images[0]), labels[0], reduction="sum")
    hook.remove()
    named = observation.model.layout.split(observation.target[0].double() * examples)
    return images[0].flatten(1).double(), torch.autograd.grad(loss, given)[0].double(), named


def test_what_the_gradient_of_tokens_tells() -> None:
    """Column by column: of a number a mean of the rows' weighted by derivatives, of categories those that occur."""
    rows, errors, named = by_tokens(seen(1, 6, "ft_transformer"), 6)
    made, weight, bias = (
        mean_row(seen(1, 6, "ft_transformer").model, named),
        named["tokens.weight"],
        named["tokens.bias"],
    )
    for number in range(2):
        told = (errors[:, number] * rows[:, number, None]).sum(0), errors[:, number].sum(0)
        torch.testing.assert_close((weight[number], bias[number]), told, rtol=1e-4, atol=1e-7)
        assert made[number] == pytest.approx(float(told[0] @ told[1] / (told[1] @ told[1])), rel=1e-3)
    for token, place in enumerate(COLUMNS.slices, 2):
        for feature in range(place.start, place.stop):
            of_it = errors[rows[:, feature] == 1, token].sum(0)
            torch.testing.assert_close(weight[feature], of_it, rtol=1e-4, atol=1e-7)
            assert bool(weight[feature].any()) == bool((rows[:, feature] == 1).any())


@pytest.mark.parametrize("clipped", [False, True])
def test_one_row_is_told_in_closed_form(clipped: bool) -> None:
    """Of every victim, with missing values and whatever a clip made of each tensor."""
    observation, truth = seen(12, 1, "ft_transformer"), table(12, 1)[0]
    assert (COLUMNS.categories(truth.flatten(2)) == -1).any()
    if clipped:
        sizes = observation.model.layout.sizes
        shares = torch.cat([torch.full((size,), 1 / (place + 1)) for place, size in enumerate(sizes)])
        observation = replace(
            observation, target=observation.target * shares, clipping=Clipping(1.0, "layer", "example")
        )
    made = run_attack(build(ATTACKS, "rows", {"draws": 1}), observation).images
    assert (made - truth).abs().max() < 1e-4


def test_noise_hides_one_row() -> None:
    observation = seen(12, 1, "ft_transformer")
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    made = run_attack(build(ATTACKS, "rows", {}), replace(observation, target=observation.target + noise)).images
    assert brought_back(made, table(12, 1)[0]).float().mean() <= 0.1


def test_layers_behind_the_class_token_have_one_outer_product_per_row() -> None:
    observation, (images, labels) = seen(1, 5, "ft_transformer"), table(1, 5)
    names = token_layers(observation.model)
    assert [weight for weight, _ in names] == ["encoder.1.linear1.weight", "encoder.1.linear2.weight", "head.weight"]
    named = observation.model.layout.split(observation.target[0].double() * 5)
    network = TokenNetwork.of_tokens(observation.model, observation.weights[0], named)
    factors = network.factors(images[0].flatten(1).double(), labels[0])
    for (weight, bias), (errors, inputs) in zip(names, factors, strict=True):
        read = torch.cat([named[weight], named[bias][:, None]], 1)
        torch.testing.assert_close(errors.mT @ inputs, read, rtol=1e-4, atol=1e-6)
    rows = images[0].flatten(1)
    assert torch.equal(network.present(read), rows.any(0))
    assert torch.equal(network.without(rows[:3].double(), labels[0, :3]).present(read), rows[3:].any(0))


def test_a_first_order_change_of_numbers_is_that_of_the_layers() -> None:
    observation, rows = seen(1, 3, "ft_transformer"), table(1, 3)[0][0].flatten(1).double()
    named = observation.model.layout.split(observation.target[0].double())
    network = TokenNetwork.of_tokens(observation.model, observation.weights[0], named)
    other = rows.clone()
    other[:, :2] += 1e-3
    made = network.factors(other, torch.zeros(3, dtype=torch.long))
    for (slopes, constant, _), (_, inputs) in zip(network.moved(rows, 2), made, strict=False):
        assert ((slopes @ other[:, :2, None])[..., 0] + constant - inputs).abs().max() < 1e-4
