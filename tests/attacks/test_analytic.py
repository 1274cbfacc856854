"""The closed form of a fully connected first layer: exact, and an oracle for rows of a table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack
from harness.attacks.analytic import Analytic, closed_form
from harness.attacks.attack import ClosedForm
from harness.base.errors import UsageError
from harness.datasets import load_dataset
from harness.observation import Clipping, Observation
from harness.testing.attacks import digits, undefended

Observe = Callable[..., Observation]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, Tensor]:
    """Eight rows of the table cancer (8, 1, 1, 1, 30) and their labels (8, 1)."""
    cancer = load_dataset("cancer", Path(tmp_path_factory.getbasetemp()))
    return cancer.images[:8, None], cancer.labels[:8, None]


@pytest.mark.parametrize("model", ["mlp2", "mlp"])
def test_it_is_exact(model: str, rows: tuple[Tensor, Tensor], observe: Observe) -> None:
    images, labels = rows
    made = run_attack(Analytic(), observe(images, labels, 2, model=model))
    assert ((made.images - images).flatten(1).norm(dim=1) <= 1e-5 * images.flatten(1).norm(dim=1)).all()
    assert torch.equal(made.labels, labels)
    assert (made.loss <= 1e-10).all()


def test_it_is_the_quotient_of_any_single_neuron(rows: tuple[Tensor, Tensor], observe: Observe) -> None:
    """The formula of the papers, neuron by neuron."""
    observation = observe(*rows, 2, model="mlp2", weights=None)
    gradients = observation.model.layout.split(observation.target)
    weight, bias = gradients["1.weight"], gradients["1.bias"]
    made = closed_form(observation, masked=False)
    for row in range(len(bias)):
        for neuron in bias[row].abs().topk(5).indices.tolist():
            quotient = weight[row, neuron] / bias[row, neuron]
            torch.testing.assert_close(made[row], quotient, rtol=1e-4, atol=1e-6)


def test_clipping_loses_only_the_scale_and_that_is_found(rows: tuple[Tensor, Tensor], observe: Observe) -> None:
    """Weights and biases are clipped by different factors, so their quotient is wrong by one number."""
    images, labels = rows
    observation = observe(images, labels, 2, model="mlp2", clipping=Clipping(0.05, "layer", "example"))
    pieces = observation.target.split(observation.clipping_groups, 1)
    clipped = torch.cat([piece * (0.05 / piece.norm(dim=1, keepdim=True)).clamp(max=1) for piece in pieces], 1)
    observation = replace(observation, target=clipped)
    wrong = closed_form(observation, masked=False) - images.flatten(1)
    right = run_attack(Analytic(), observation).images - images
    assert wrong.norm(dim=1).min() > 0.1
    assert right.flatten(1).norm(dim=1).median() < 0.05


def test_pruned_weights_are_left_out(rows: tuple[Tensor, Tensor], observe: Observe) -> None:
    images, labels = rows
    observation = observe(images, labels, 2, model="mlp2")
    weight = observation.model.layout.split(observation.target)["1.weight"]
    weight[:, ::2, ::3] = 0.0  # a view: the target itself is pruned
    exact = closed_form(observation, masked=True) - images.flatten(1)
    assert exact.abs().max() < 1e-5
    assert (closed_form(observation, masked=False) - images.flatten(1)).abs().max() > 0.05


def test_nothing_observed_is_answered_by_zeros(rows: tuple[Tensor, Tensor], observe: Observe) -> None:
    observation = observe(*rows, 2, model="mlp2")
    made = run_attack(Analytic(), replace(observation, target=torch.zeros_like(observation.target)))
    assert torch.equal(made.images, torch.zeros_like(made.images))


def test_chunks_change_no_bit(rows: tuple[Tensor, Tensor], observe: Observe) -> None:
    observation = observe(*rows, 2, model="mlp2", clipping=Clipping(1.0, "layer", "example"))
    observation.target.add_(0.01 * torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0)))
    whole, parts = (run_attack(Analytic(max_iterations=5), observation, chunk=chunk) for chunk in (128, 3))
    assert torch.equal(whole.images, parts.images) and torch.equal(whole.loss, parts.loss)


@pytest.mark.parametrize(
    ("model", "facts", "message"),
    [
        ("lenet", {}, "needs a first layer that is linear with a bias, which model 'lenet' lacks; use --model mlp2"),
        ("cnn", {}, "which model 'cnn' lacks"),
        ("unit_logistic", {}, "which model 'unit_logistic' lacks"),
        ("mlp", {"examples": 2}, "reads one example per observation, not 2; use --batch-size 1"),
    ],
)
def test_it_says_what_it_needs(model: str, facts: dict[str, Any], message: str, observe: Observe) -> None:
    examples = facts.get("examples", 1)
    images, labels = torch.rand(2, examples, 1, 12, 12), torch.zeros(2, examples, dtype=torch.long)
    with pytest.raises(UsageError, match=message):
        run_attack(Analytic(label_rule="auto" if model != "cnn" else "row_sum"), observe(images, labels, 10, model))


@pytest.mark.parametrize("given", [torch.zeros(2, 1, 8, 8), torch.zeros(2, 5), torch.zeros(2, 64).numpy(), None])
def test_what_an_author_s_closed_form_gives_is_told(given: Any) -> None:
    class Own(ClosedForm):
        def solved(self, observation: Observation) -> Tensor:
            return given

    with pytest.raises(UsageError, match=r"solved\(\) gives a .*; let it give a tensor \(2, 64\), of rows of all"):
        Own().start(undefended(*digits(2)), [(0,), (1,)])
