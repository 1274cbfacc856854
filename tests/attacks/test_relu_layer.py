"""Whole batches from a rectified first layer: exact, told apart from accidents, and refused where there is none."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from large_batches import brought_back
from torch import Tensor

from harness.attacks import ATTACKS, relu_layer, run_attack
from harness.attacks.relu_layer import peeled, searched
from harness.attacks.spear import unexplained
from harness.base.building import build
from harness.base.errors import UsageError
from harness.observation import Observation
from harness.testing import undefended

Digits = Callable[..., tuple[Tensor, Tensor]]


def errors(name: str, observation: Observation, images: Tensor) -> Tensor:
    """The RMSE (V, n) from each true image to the nearest that came back."""
    made = run_attack(build(ATTACKS, name, {}), observation).images.clamp(0, 1)
    return torch.cdist(images.flatten(2), made.flatten(2)).amin(2) / images[0, 0].numel() ** 0.5


@pytest.mark.parametrize("batch", [4, 8])
def test_batches_come_back_exactly(batch: int, digits: Digits) -> None:
    images, labels = digits(6, batch)
    found = errors("spear", undefended(images, labels, model="mlp2"), images)
    assert (found <= 0.1).float().mean() >= 0.9 and found.median() < 1e-4


def test_the_peeling_is_that_of_a_layer_whatever_comes_behind_it() -> None:
    """From E X alone, where which units are dead follows from the weights: no network, no loss."""
    random = torch.Generator().manual_seed(0)
    truth, sent = torch.randn(6, 20, generator=random).double(), torch.randn(400, 21, generator=random).double()
    behind = torch.cat([truth, torch.ones(6, 1)], 1)
    signals = torch.randn(400, 6, generator=random).double() * (sent @ behind.T > 0)
    found = peeled(signals @ behind, sent, 6)
    assert torch.cdist(truth, found).amin(1).max() < 1e-8
    strangers = sent.roll(1, 0)  # the weights of other units confirm nothing
    assert relu_layer._next(relu_layer._Rest.of(signals @ behind, strangers, 6)) is None


def large_batch(examples: int, units: int, alike: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Examples (n, D), weights and the gradient of a layer with them, in which no unit holds one example alone."""
    random = torch.Generator().manual_seed(1)
    truth, sent = (torch.randn(many, 64, generator=random).double() for many in (examples, units))
    if alike:  # two that few units tell apart
        truth[1] = truth[0] + 0.4 * (truth[1] - truth[0])
    sent = torch.cat([sent, 0.1 * torch.randn(units, 1, generator=random).double()], 1)
    behind = torch.cat([truth, torch.ones(examples, 1)], 1)
    signals = torch.randn(units, examples, generator=random).double() * (sent @ behind.T > 0)
    return truth, sent, signals @ behind


@pytest.mark.parametrize("alike", [False, True])
def test_a_batch_of_which_no_unit_holds_one_alone_comes_back(alike: bool) -> None:
    truth, sent, gradient = large_batch(24, 400, alike)
    rest = relu_layer._Rest.of(gradient, sent, 24)
    assert relu_layer._next(rest) is None
    assert torch.cdist(truth, peeled(gradient, sent, 24)).amin(1).max() < 1e-6
    assert searched(rest.rows, rest.basis, sent.roll(1, 0)) is None  # of other units


@pytest.mark.slow
@pytest.mark.parametrize(("dataset", "examples", "units"), [
    ("mnist", 64, 1000), ("mnist", 100, 1000), ("mnist", 100, 4000), ("cifar10", 64, 1000),
])  # fmt: skip
def test_a_large_batch_of_images_comes_back(dataset: str, examples: int, units: int) -> None:
    found = brought_back(dataset, units, examples, 0)
    print(dataset, units, examples, found)
    assert found["images"] >= 0.9 * examples


def confirmed(observation: Observation, row: int) -> Tensor:
    """The examples (k, D) of one victim that the weights confirm, before anything is guessed."""
    gradients, sent = (observation.model.layout.split(flat) for flat in (observation.target, observation.weights))
    read, known = (
        torch.cat([one["1.weight"][row], one["1.bias"][row, :, None]], 1).double() for one in (gradients, sent)
    )
    rest, found = relu_layer._Rest.of(read, known, observation.examples), []
    while len(found) < observation.examples and (made := relu_layer._next(rest)) is not None:
        found.append(made[0])
        rest = made[1]
    return torch.stack(found).float()


def test_what_is_confirmed_is_an_example_and_no_mixture(digits: Digits) -> None:
    """A row of two examples may leave the units of one of them dead; taking it out would spoil what is left."""
    images, labels = digits(6, 32)
    seen = undefended(images, labels, model="mlp2", tamper=build(ATTACKS, "trap_weights", {}).tamper(1, 32))
    found = [torch.cdist(confirmed(seen, row), images[row].flatten(1)).amin(1) / 8 for row in range(6)]
    assert (torch.cat(found) <= 0.1).float().mean() > 0.97
    assert (errors("trap_weights", seen, images) <= 0.1).float().mean() > 0.8


@pytest.mark.parametrize(("step", "least", "most"), [(2**-22, 0.9, 1.0), (2**-18, 0.5, 1.0), (2**-3, 0.0, 0.1)])
def test_what_is_rounded_comes_back_as_far_as_rounding_allows(
    step: float, least: float, most: float, digits: Digits
) -> None:
    """A secure sum rounds to a fixed point; rows are told apart in units of what that costs."""
    images, labels = digits(6, 8)
    exact = undefended(images, labels, model="mlp2")
    found = errors("spear", replace(exact, target=(exact.target / step).round() * step), images)
    assert least <= (found <= 0.1).float().mean() <= most


def test_how_well_images_fit_needs_no_labels(digits: Digits) -> None:
    """Those that were sent leave nothing of the layer's gradient, whatever their order; others leave nearly all."""
    images, labels = digits(4, 8)
    seen = undefended(images, labels, model="mlp2")
    others = images.roll(1, 0)
    left = [unexplained(seen, some, "spear") for some in (images, images.flip(1), images[:, :4], others)]
    assert left[0].max() < 1e-10 and left[1].max() < 1e-10 and left[2].min() > 1e-3 and left[3].min() > 0.05
    made = run_attack(build(ATTACKS, "spear", {}), seen)
    torn = seen.target[:, torch.randperm(seen.target.shape[1], generator=torch.Generator().manual_seed(0))]
    assert made.loss.max() < 1e-6 < 0.5 < run_attack(build(ATTACKS, "spear", {}), replace(seen, target=torn)).loss.min()


def test_noise_confirms_nothing() -> None:
    random = torch.Generator().manual_seed(0)
    gradient, sent = (torch.randn(200, 65, generator=random).double() for _ in range(2))
    rest = relu_layer._Rest.of(gradient, sent, 8)
    assert rest.rows.shape[1] == 0 and len(peeled(gradient, sent, 8)) == 0
    assert len(peeled(0 * gradient, sent, 8)) == 0


def test_victims_side_by_side_are_what_each_is_alone(digits: Digits) -> None:
    images, labels = digits(5, 4)
    observation, attack = undefended(images, labels, model="mlp2"), build(ATTACKS, "spear", {})
    threads = torch.get_num_threads()
    made = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            made.append(attack.solved(observation))
    finally:
        torch.set_num_threads(threads)
    alone = torch.cat([attack.solved(observation.take(torch.tensor([row]))) for row in range(5)])
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], alone)


def test_traps_bring_back_more_of_a_large_batch(digits: Digits) -> None:
    images, labels = digits(4, 32)
    tamper = build(ATTACKS, "trap_weights", {}).tamper(1, 32)
    sent = undefended(images, labels, model="mlp2", tamper=tamper)
    weights = sent.model.layout.split(sent.weights)["1.weight"]
    active = torch.einsum("vnd,vud->vnu", images.flatten(2), weights) > 0
    assert 0.01 < active.float().mean() < 0.1  # one in 32, as public digits have it
    assert (errors("trap_weights", sent, images) <= 0.1).float().mean() > 0.3


def test_a_victim_whose_numbers_are_none_disturbs_nobody(digits: Digits) -> None:
    images, labels = digits(2, 4)
    observation = undefended(images, labels, model="mlp2")
    spoiled = observation.target.clone()
    spoiled[1] = torch.inf
    clean, dirty = (
        run_attack(build(ATTACKS, "spear", {}), one) for one in (observation, replace(observation, target=spoiled))
    )
    assert torch.equal(clean.images[0], dirty.images[0]) and dirty.images.isfinite().all()


@pytest.mark.parametrize(
    ("model", "said"),
    [("mlp", "rectified units"), ("logistic", "rectified units"), ("lenet", "linear with a bias")],
)
def test_a_network_without_such_a_layer_is_refused(model: str, said: str, digits: Digits) -> None:
    images, labels = digits(2, 2)
    with pytest.raises(UsageError, match=f"{said}.*use --model mlp2"):
        run_attack(build(ATTACKS, "spear", {}), undefended(images, labels, model=model))
    with pytest.raises(UsageError, match=f"attack 'trap_weights'.*{said}"):
        undefended(images, labels, model=model, tamper=build(ATTACKS, "trap_weights", {}).tamper(1, 2))


def test_more_examples_than_units_are_refused(digits: Digits) -> None:
    images, labels = digits(2, 201)
    with pytest.raises(UsageError, match="units, 200, and 201"):
        run_attack(build(ATTACKS, "spear", {}), undefended(images, labels, model="mlp2"))
