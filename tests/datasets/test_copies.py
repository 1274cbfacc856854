"""What counts as a copy: of images what nobody would tell apart, of tables equal rows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.datasets.public import NEAR, among
from harness.datasets.record import Dataset


def images(count: int, *shape: int, seed: int = 0) -> Dataset:
    made = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))
    return Dataset("made", made, torch.arange(count) % 2, ("a", "b"), "")


def naively(public: Tensor, private: Tensor, reach: float) -> Tensor:
    return (
        torch.cdist(public.flatten(1).double(), private.flatten(1).double()) / public[0].numel() ** 0.5 <= reach
    ).any(1)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 7, 9), (1, 1, 30)])
@pytest.mark.parametrize("noise", [0.0, 1e-7, 0.004, 0.019])
def test_a_copy_is_found_through_noise(shape: tuple[int, ...], noise: float) -> None:
    private, public = images(300, *shape), images(300, *shape, seed=1)
    changed = public.images.clone()
    sign = torch.randn(10, *shape, generator=torch.Generator().manual_seed(2)).sign()
    changed[40:50] = private.images[200:210] + noise * sign
    found = among(replace(public, images=changed), private)
    assert found.nonzero()[:, 0].tolist() == list(range(40, 50))


def test_it_finds_what_comparing_all_pairs_finds() -> None:
    """Around the border, too, where averages over cells say little."""
    private = images(400, 1, 8, 8)
    spread = torch.linspace(0.5, 1.5, 400)[:, None, None, None] * NEAR
    other = private.images.flip(0) + spread * torch.randn(400, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    found = among(replace(private, images=other), private)
    assert found.equal(naively(other, private.images, NEAR)) and 100 < int(found.sum()) < 300


def test_another_image_is_none() -> None:
    private = images(300, 1, 8, 8)
    assert not among(replace(private, images=(private.images + 2 * NEAR)), private).any()


def test_small_features_are_not_all_alike() -> None:
    private, public = (images(300, 1, 8, 8, seed=seed) for seed in (0, 1))
    small = [replace(one, images=one.images / 100 + 0.5) for one in (public, private)]
    assert not among(*small).any()
    assert among(small[1], small[1]).all()
