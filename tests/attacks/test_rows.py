"""Whole rows of a table from the gradient of a batch, and what is checked of one row without the others."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, run_attack
from harness.attacks.row_checks import Batch, Checks, Network, fitted, layer_names
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


@pytest.mark.parametrize("model", ["mlp2", "mlp"])
def test_all_rows_of_a_batch_come_back(model: str) -> None:
    made = run_attack(build(ATTACKS, "rows", FEW), seen(2, 8, model)).images
    assert brought_back(made, table(2, 8)[0]).all()


def test_a_second_layer_tells_more_rows_apart_than_a_row_has_features() -> None:
    examples = 20
    observation = seen(1, examples)
    assert examples > COLUMNS.width  # so that the first layer's gradient spans all rows there are
    made = run_attack(build(ATTACKS, "rows", FEW), observation).images
    assert brought_back(made, table(1, examples)[0]).float().mean() >= 0.9


def test_what_comes_back_is_what_was_read() -> None:
    """Of another batch's gradient come the rows of that batch."""
    made = run_attack(build(ATTACKS, "rows", FEW), seen(1, 8, seed=1)).images
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


def test_noise_and_clips_only_make_it_worse() -> None:
    observation, attack = seen(1, 4), build(ATTACKS, "rows", {"draws": 50, "searches": 3})
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    for changed in (
        replace(observation, target=observation.target + noise),
        replace(observation, target=observation.target * 0.01, clipping=Clipping(1.0, "whole", "update")),
    ):
        made = run_attack(attack, changed).images
        assert made.isfinite().all() and made.min() >= 0 and made.max() <= 1
    noisy = run_attack(attack, replace(observation, target=observation.target + noise)).images
    assert not brought_back(noisy, table(1, 4)[0]).all()


def test_a_clip_of_the_update_hides_nothing() -> None:
    observation = seen(1, 6)
    clipped = replace(observation, target=observation.target * 0.01, clipping=Clipping(1.0, "whole", "update"))
    assert brought_back(run_attack(build(ATTACKS, "rows", FEW), clipped).images, table(1, 6)[0]).float().mean() >= 0.8


@pytest.mark.parametrize("model", ["lenet", "logistic"])
def test_other_networks_are_refused(model: str, victims: Callable[..., Observation]) -> None:
    with pytest.raises(UsageError, match=r"needs a fully connected network with a hidden layer.*use --model mlp2"):
        run_attack(build(ATTACKS, "rows", {}), victims(1, model=model))
