"""The blind guess looks at nothing but the label."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import run_attack, run_reference
from harness.attacks.blind import Blind
from harness.observation import Observation
from harness.testing import digits_prior

Victims = Callable[..., Observation]


@pytest.mark.parametrize("run", [run_attack, run_reference])
@pytest.mark.parametrize("examples", [1, 3])
def test_it_is_the_mean_of_the_inferred_classes(
    run: Callable[..., object], examples: int, victims: Victims, digits: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    made = run(Blind(), victims(5, examples, model="mlp"))
    expected = digits_prior().means[made.labels].reshape(made.images.shape)
    torch.testing.assert_close(made.images, expected)
    if examples == 1:
        assert torch.equal(made.labels, digits(5, 1)[1])
    assert (made.evaluations == 1).all() and (made.loss == 0).all()


def test_no_gradient_moves_it(victims: Victims) -> None:
    """Under known labels every observation of the same classes gives the same guess."""
    seen = victims(5, model="mlp")
    told = replace(seen, labels=torch.arange(5)[:, None])
    other = replace(told, target=torch.randn(seen.target.shape, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(run_attack(Blind(), told).images, run_attack(Blind(), other).images)
