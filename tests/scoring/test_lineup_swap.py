"""The swap control on real images (scikit-learn's 8x8 digits)."""

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.datasets import load_digits

from harness.scoring import negative_control_failed, swap_control

_digits = load_digits()
IMAGES = torch.tensor(_digits.images / 16.0, dtype=torch.float32)[:, None]
LABELS = torch.tensor(_digits.target, dtype=torch.int64)
LEVEL = 0.01


def draw_victims(random: torch.Generator, victims: int, batch: int) -> torch.Tensor:
    return torch.randperm(len(IMAGES), generator=random)[: victims * batch].view(victims, batch)


@pytest.mark.parametrize(("victims", "batch"), [pytest.param(64, 1, marks=pytest.mark.slow), (16, 4)])
def test_the_swap_control_holds_for_perfect_reconstructions(victims: int, batch: int) -> None:
    p_values = []
    for seed in range(40):
        indices = draw_victims(torch.Generator().manual_seed(seed), victims, batch)
        result = swap_control(IMAGES[indices], indices, IMAGES, LABELS, seed, permutations=499)
        assert not result.first[result.sizes == 1].any()
        p_values.append(result.lineup.p_value)
    assert (np.array(p_values) <= LEVEL).sum() <= int(binom.ppf(0.999, 40, LEVEL))


def test_the_swap_control_catches_reconstructions_that_belong_to_other_victims() -> None:
    """Two victims of a class, each given the other's image: the fault the control is there to find."""
    indices = torch.stack([torch.as_tensor(np.flatnonzero(label == LABELS)[:2]) for label in range(10)])
    crossed = indices.flip(1).reshape(-1, 1)
    result = swap_control(IMAGES[crossed], indices.reshape(-1, 1), IMAGES, LABELS, seed=0, permutations=29_999)
    assert result.lineup.rate == 1.0 and negative_control_failed(result.lineup.p_value)


def test_the_swap_control_never_uses_an_image_of_the_victim_itself() -> None:
    zeros = np.flatnonzero(LABELS == 0)
    shared = torch.tensor([[zeros[0], zeros[1]], [zeros[0], zeros[2]], [zeros[3], zeros[1]]])
    result = swap_control(IMAGES[shared], shared, IMAGES, LABELS, seed=0, permutations=99)
    assert result.sizes.min() > 1 and not result.first.any()
    lone = torch.tensor([[zeros[0], zeros[1]]])
    assert swap_control(IMAGES[lone], lone, IMAGES, LABELS, seed=0) is None
