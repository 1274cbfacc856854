"""Label inference from the last layer's gradient: always right where it must be, refused where it can't be."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks.labels import infer_labels, open_labels
from harness.base.errors import UsageError
from harness.models import RowModel
from harness.observation import Noise, Observation

Observe = Callable[..., Observation]

CLASSES = 10


def random_batches(rows: int, examples: int, classes: int = CLASSES, distinct: bool = False) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(7)
    images = torch.rand(rows, examples, 1, 12, 12, generator=random)
    if distinct:
        return images, torch.rand(rows, classes, generator=random).argsort(1)[:, :examples]
    return images, torch.randint(classes, (rows, examples), generator=random)


def random_weights(model: str, rows: int, spread: float = 1.0) -> Tensor:
    """Weights U[-spread / 2, spread / 2], as the attack LeNet starts from."""
    size = RowModel(model, (1, 12, 12), CLASSES).layout.total
    return (torch.rand(rows, size, generator=torch.Generator().manual_seed(8)) - 0.5) * spread


def silent_last_layer(model: str, rows: int) -> Tensor:
    """Random weights under a last layer of zeros: every class has probability 1 / K, so that counts are exact."""
    network = RowModel(model, (1, 12, 12), CLASSES)
    weights = random_weights(model, rows)
    last, bias = network.last_linear()
    assert bias is not None
    parts = network.layout.split(weights)
    parts[last], parts[bias] = torch.zeros_like(parts[last]), torch.zeros_like(parts[bias])
    return torch.cat([parts[name].flatten(1) for name in network.layout.names], dim=1)


def accuracy(found: Tensor, labels: Tensor) -> float:
    """Mean over rows of 1 - 0.5 * sum_c |n_c - found_c| / n."""
    counts = [torch.nn.functional.one_hot(each, CLASSES).sum(1) for each in (found, labels)]
    return float(1 - 0.5 * (counts[0] - counts[1]).abs().sum(1).float().mean() / labels.shape[1])


@pytest.mark.parametrize(
    ("rule", "model", "spread"),
    [("bias", "lenet", 1.0), ("bias", "mlp", 1.0), ("bias", "lenet", 4.0), ("row_sum", "lenet", 1.0)],
)
def test_a_single_label_is_never_wrong(rule: str, model: str, spread: float, observe: Observe) -> None:
    images, labels = random_batches(1000, 1)
    observation = observe(images, labels, CLASSES, model, random_weights(model, 1000, spread))
    assert torch.equal(infer_labels(observation, rule), labels)


@pytest.mark.parametrize(
    ("rule", "examples"), [("distinct", 2), ("distinct", 6), ("yin", 2), ("count", 4), ("auto", 13)]
)
def test_batch_rules_are_exact_where_every_class_is_as_likely(rule: str, examples: int, observe: Observe) -> None:
    images, labels = random_batches(100, examples, distinct=rule in ("distinct", "yin"))
    observation = observe(images, labels, CLASSES, "lenet", silent_last_layer("lenet", 100))
    assert torch.equal(infer_labels(observation, rule), labels.sort(1).values)


@pytest.mark.parametrize(
    ("rule", "model", "distinct", "at_least"),
    [
        ("distinct", "mlp", True, 0.99),
        ("yin", "mlp", True, 0.9),
        ("count", "mlp", False, 0.95),
        ("count", "lenet", False, 0.7),
    ],
)
def test_batch_rules_on_networks_at_initialisation(
    rule: str, model: str, distinct: bool, at_least: float, observe: Observe
) -> None:
    images, labels = random_batches(50, 4, distinct=distinct)
    observation = observe(images, labels, CLASSES, model)
    found = infer_labels(observation, rule)
    assert found.shape == labels.shape and torch.equal(found, found.sort(1).values)
    assert accuracy(found, labels) >= at_least
    # Another row's gradient tells nothing: the accuracy above is not had for free.
    shifted = replace(observation, target=observation.target.roll(1, 0))
    assert accuracy(infer_labels(shifted, rule), labels) < 0.6


@pytest.mark.parametrize(("examples", "as_if"), [(1, "row_sum"), (3, "yin")])
def test_a_network_without_bias_is_read_by_its_weight_rows(examples: int, as_if: str, observe: Observe) -> None:
    images, labels = random_batches(30, examples, distinct=True)
    observation = observe(images, labels, CLASSES, "cnn")
    found = infer_labels(observation, "auto")
    assert torch.equal(found, infer_labels(observation, as_if))
    assert accuracy(found, labels) >= (1.0 if examples == 1 else 0.8)


@pytest.mark.parametrize(
    ("rule", "model", "examples", "message"),
    [
        ("bias", "lenet", 2, "the batch has more"),
        ("row_sum", "lenet", 2, "the batch has more"),
        ("distinct", "lenet", CLASSES + 1, "larger than the number of classes"),
        ("yin", "lenet", CLASSES + 1, "larger than the number of classes"),
        ("bias", "cnn", 1, "has no bias"),
        ("count", "cnn", 2, "has no bias"),
        ("idlg", "lenet", 1, "known: auto, bias, row_sum, distinct, yin, count"),
    ],
)
def test_refused_combinations(rule: str, model: str, examples: int, message: str, observe: Observe) -> None:
    observation = observe(*random_batches(2, examples), CLASSES, model)
    with pytest.raises(UsageError, match=message):
        infer_labels(observation, rule)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, [[0, 1, 2, 3]]),
        ({"local_steps": 2, "update_model": "avg"}, [[0, 1, 2, 3]]),
        ({"local_steps": 2, "update_model": "unroll"}, [[2, 3, 0, 1]]),
    ],
)
def test_declared_labels_are_sorted_within_a_local_step(facts: dict, expected: list, observe: Observe) -> None:
    labels = torch.tensor([[3, 2, 1, 0]])
    observation = replace(observe(torch.rand(1, 4, 1, 12, 12), labels, CLASSES, **facts), labels=labels)
    for rule in ("auto", "bias"):  # knowledge beats any rule
        assert infer_labels(observation, rule).tolist() == expected


@pytest.mark.parametrize("bias_gradient", [float("nan"), float("inf"), -float("inf"), 5.0])
def test_counts_that_say_nothing_still_give_as_many_labels_as_examples(bias_gradient: float, observe: Observe) -> None:
    """More examples than classes, and a bias gradient without any information, as under heavy noise."""
    observation = observe(*random_batches(2, CLASSES + 3), CLASSES)
    _, bias = observation.model.last_linear()
    observation.model.layout.split(observation.target)[bias][0] = bias_gradient
    found = infer_labels(observation, "count")
    assert found.shape == (2, CLASSES + 3)
    assert found.min() >= 0 and found.max() < CLASSES


def open_at(observation: Observation, noise: Noise | None) -> list[int]:
    """Of bias gradients 0, 0.1, 0.2 and so on, with class 3's the smallest, how many of five classes are open."""
    layout, (_, bias) = observation.model.layout, observation.model.last_linear()
    parts = layout.split(torch.zeros_like(observation.target))
    parts[str(bias)] = (torch.arange(CLASSES) / 10).roll(3).expand(observation.rows, -1)
    target = torch.cat([parts[name].flatten(1) for name in layout.names], 1)
    found = open_labels(replace(observation, target=target, noise=noise), 5)
    likely = [3, 4, 5, 6, 7]
    count = (found >= 0).sum(1)
    assert all(
        row[:kept] == likely[:kept] and set(row[kept:]) <= {-1} for row, kept in zip(found.tolist(), count, strict=True)
    )
    return count.tolist()


def test_a_class_is_open_within_six_deviations(observe: Observe) -> None:
    seen = observe(*random_batches(2, 1), CLASSES, "mlp")
    size = seen.target.shape[1]
    of_bias = torch.cat([torch.full((size - CLASSES,), 9.0), torch.full((CLASSES,), 0.025)])
    rms = (sum((k / 10) ** 2 for k in range(CLASSES)) / size) ** 0.5
    assert open_at(seen, None) == [1, 1]
    assert open_at(seen, Noise("gaussian", 0.025)) == open_at(seen, Noise("gaussian", of_bias)) == [2, 2]
    assert open_at(seen, Noise("gaussian", 5.0)) == [5, 5]
    assert open_at(seen, Noise("gaussian", None)) == [min(5, 1 + int(60 * rms))] * 2
