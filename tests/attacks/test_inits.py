"""Initial dummy images."""

import pytest
import torch
from torch import Tensor

from harness.attacks.attack import INITIALISATIONS, initial_images
from harness.base.errors import UsageError

KEYS: list[tuple[int | str, ...]] = [(0, victim) for victim in range(40)]


def test_the_table_is_complete() -> None:
    assert set(INITIALISATIONS) == {
        "uniform", "gauss", "pattern-1/4", "pattern-1/16", "pattern-1/64", "dark", "light", "R", "G", "B",
    }  # fmt: skip


@pytest.mark.parametrize("scheme", sorted(INITIALISATIONS))
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 3, 9, 13)])
def test_shape_and_range(scheme: str, shape: tuple[int, ...]) -> None:
    images = initial_images(scheme, KEYS, shape)
    assert images.shape == (len(KEYS), *shape) and images.isfinite().all()
    if scheme != "gauss":
        assert images.min() >= 0 and images.max() <= 1


@pytest.mark.parametrize(
    ("scheme", "mean", "deviation"), [("uniform", 0.5, 12**-0.5), ("gauss", 0.0, 1.0), ("pattern-1/4", 0.5, 12**-0.5)]
)
def test_distribution(scheme: str, mean: float, deviation: float) -> None:
    images = initial_images(scheme, KEYS, (1, 3, 16, 16))
    assert float(images.mean()) == pytest.approx(mean, abs=0.02)
    assert float(images.std()) == pytest.approx(deviation, abs=0.02)


@pytest.mark.parametrize(("scheme", "level"), [("dark", [0, 0, 0]), ("light", [1, 1, 1]), ("R", [1, 0, 0]),
                                                ("G", [0, 1, 0]), ("B", [0, 0, 1])])  # fmt: skip
def test_constants(scheme: str, level: list[int]) -> None:
    images = initial_images(scheme, KEYS[:2], (2, 3, 4, 5))
    assert torch.equal(images, torch.tensor(level).float()[:, None, None].expand(2, 2, 3, 4, 5))


@pytest.mark.parametrize(("scheme", "parts"), [("pattern-1/4", 2), ("pattern-1/16", 4), ("pattern-1/64", 8)])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (12, 20), (9, 13), (28, 28)])
def test_patterns_repeat_one_patch(scheme: str, parts: int, height: int, width: int) -> None:
    (image,) = initial_images(scheme, KEYS[:1], (3, height, width))
    rows, columns = -(-height // parts), -(-width // parts)
    expected = torch.empty_like(image)
    for row in range(height):
        for column in range(width):
            expected[:, row, column] = image[:, row % rows, column % columns]
    assert torch.equal(image, expected)
    patch = image[:, :rows, :columns]
    assert len(patch.unique()) == patch.numel()  # the patch itself repeats nothing


def test_a_quarter_pattern_equals_all_four_quadrants() -> None:
    (image,) = initial_images("pattern-1/4", KEYS[:1], (1, 3, 28, 28))
    quadrants: list[Tensor] = [image[..., top : top + 14, left : left + 14] for top in (0, 14) for left in (0, 14)]
    assert all(torch.equal(quadrant, quadrants[0]) for quadrant in quadrants)


@pytest.mark.parametrize("scheme", ["uniform", "gauss", "pattern-1/4"])
def test_a_start_depends_on_its_own_key_only(scheme: str) -> None:
    together = initial_images(scheme, KEYS, (1, 8, 8))
    for index in (0, 7, 39):
        assert torch.equal(initial_images(scheme, [KEYS[index]], (1, 8, 8))[0], together[index])
    assert not torch.equal(together[0], together[1])
    before = torch.random.get_rng_state()
    initial_images(scheme, KEYS[:1], (1, 8, 8))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("scheme", "channels", "message"), [("pattern-1/2", 3, "unknown initialisation 'pattern-1/2'"), ("G", 1, "colour")]
)
def test_refused(scheme: str, channels: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        initial_images(scheme, KEYS, (1, channels, 8, 8))


@pytest.mark.parametrize(("scheme", "share"), [("pattern-1/4", 4), ("pattern-1/16", 16), ("pattern-1/64", 64)])
@pytest.mark.parametrize("features", [30, 105, 128])
def test_the_pattern_of_a_table_row_repeats_a_share_of_its_features(scheme: str, share: int, features: int) -> None:
    (rows,) = initial_images(scheme, KEYS[:1], (2, 1, 1, features))
    length = -(-features // share)
    expected = rows[..., :length].repeat(1, 1, 1, share)[..., :features]
    assert torch.equal(rows, expected) and len(rows[0, 0, 0, :length].unique()) == length
