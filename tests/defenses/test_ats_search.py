"""The search for a policy of ATS: its scores by formulas written out, and what it chooses of them."""

import numpy as np
import pytest
import torch
from torch import nn

from harness.defenses.ats import NUMBERS, Ats
from harness.defenses.ats_search import Scored, accuracy_left, chosen, cosines_on_the_way, main
from harness.models import RowModel
from harness.testing import digits

MODEL = RowModel("mlp", (1, 8, 8), 10)
WEIGHTS = MODEL.initial_weights([("own", 1)])


def test_the_cosine_on_the_way_is_an_integral_over_a_line() -> None:
    """By the trapezoidal rule of numpy, with gradients of the plain network, one image and tensor at a time."""
    (images, labels), random = digits(3), torch.Generator().manual_seed(1)
    images, labels, noise = images[:, 0], labels[:, 0], torch.rand(3, 1, 8, 8, generator=random)
    found = cosines_on_the_way(MODEL, WEIGHTS, images, labels, noise)
    module = MODEL.plain(WEIGHTS[0])

    def gradients(image: torch.Tensor, label: torch.Tensor) -> list[np.ndarray]:
        loss = nn.functional.cross_entropy(module(image[None]), label[None])
        return [one.numpy().ravel() for one in torch.autograd.grad(loss, list(module.parameters()))]

    for place in range(3):
        own, along = gradients(images[place], labels[place]), []
        for share in np.linspace(0, 1, 21):
            there = gradients(float(1 - share) * noise[place] + float(share) * images[place], labels[place])
            cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(own, there, strict=True)]
            along.append(np.mean(cosines))
        assert float(found[place]) == pytest.approx(np.trapezoid(along, dx=1 / 20), rel=1e-4)
    assert torch.allclose(cosines_on_the_way(MODEL, WEIGHTS, images, labels, images), torch.ones(3), atol=1e-5)


def test_what_is_left_of_accuracy_follows_correlations_of_derivatives() -> None:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    module, rows = MODEL.plain(WEIGHTS[0]), []
    for image in images:
        seen = image.clone().requires_grad_()
        rows.append(torch.autograd.grad(module(seen[None]).sum(), seen)[0].numpy().ravel().astype(float))
    values = np.linalg.eigvals(np.corrcoef(rows)).real.clip(0) + 1e-5
    assert accuracy_left(MODEL, WEIGHTS, images) == pytest.approx(-np.mean(np.log(values) + 1 / values), rel=1e-2)


def test_of_the_better_half_the_least_alike_are_chosen() -> None:
    accuracy = [-9.0, -1.0, -2.0, -3.0, -8.0]
    means = [0.0, 0.9, 0.3, 0.5, 0.1]
    found = [
        Scored(str(place), torch.tensor([mean, mean]), own)
        for place, (mean, own) in enumerate(zip(means, accuracy, strict=True))
    ]
    assert [one.policy for one in chosen(found, 2, 0.7)] == ["2", "3"]
    # A list whose classes differ counts as less private, as far as alpha lets the variance count.
    found[2] = Scored("2", torch.tensor([0.0, 0.6]), -2.0)
    assert [one.policy for one in chosen(found, 1, 0.7)] == ["3"] and chosen(found, 1, 1.0)[0].policy == "2"


def test_a_search_prints_a_policy_that_the_defense_takes(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--model", "logistic", "--candidates", "4", "--epochs", "1"]
    assert main(told) == 0 and main(told) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == lines[3:], "it is not repeated"
    policy = lines[2].rpartition("=")[2]
    assert [line.partition(":")[0] for line in lines[:2]] == policy.split("+")
    assert Ats(policy=policy).policy == policy and {int(one) for part in policy.split("+") for one in
                                                    part.split("-")} <= set(NUMBERS)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--candidates", "0"], "--candidates must be 1 to"),
        (["--model", "logistic", "--candidates", "2", "--epochs", "0", "--lists", "2"], "--lists must be 1 to 1"),
        (["--model", "logistic", "--candidates", "2", "--epochs", "0", "--lists", "1", "--alpha", "2"], "--alpha must"),
        (["--dataset", "cancer"], "no images to transform; use --dataset digits"),
        (["--dataset", "nothing"], "unknown dataset"),
    ],
)
def test_what_is_impossible_is_said(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given) == 2
    assert said in capsys.readouterr().err
