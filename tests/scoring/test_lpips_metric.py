import os
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.scoring import LpipsScorer
from harness.scoring.metrics import TORCHVISION_FILE

LAYERS = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}


def random_features() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    weights = {}
    for number, (out, into, side) in LAYERS.items():
        scale = (into * side * side) ** -0.5
        weights[f"features.{number}.weight"] = scale * torch.randn(out, into, side, side, generator=random)
        weights[f"features.{number}.bias"] = torch.zeros(out)
    return weights


@pytest.fixture(autouse=True)
def empty_torch_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    checkpoints = tmp_path / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    return checkpoints


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    (tmp_path / "lpips_alexnet").mkdir()
    torch.save(random_features(), tmp_path / "lpips_alexnet" / "alexnet_features.pth")
    return tmp_path


def test_equal_images_are_at_distance_zero_and_more_noise_is_farther(data_root: Path) -> None:
    scorer = LpipsScorer.load(data_root)
    assert isinstance(scorer, LpipsScorer)
    random = torch.Generator().manual_seed(1)
    truth = torch.rand(3, 1, 28, 28, generator=random)
    noise = torch.randn(3, 1, 28, 28, generator=random)
    distances = [scorer.score(truth, truth + level * noise) for level in (0.0, 0.05, 0.3)]
    np.testing.assert_allclose(distances[0], 0.0, atol=1e-7)
    assert (distances[0] < distances[1]).all() and (distances[1] < distances[2]).all()
    assert distances[2].shape == (3,) and distances[2].dtype == np.float64


def test_grey_is_the_same_as_three_equal_channels_and_chunks_do_not_matter(data_root: Path) -> None:
    scorer = LpipsScorer.load(data_root)
    random = torch.Generator().manual_seed(2)
    truth, guess = torch.rand(2, 66, 1, 8, 8, generator=random)
    grey = scorer.score(truth, guess)
    np.testing.assert_allclose(scorer.score(truth[65:], guess[65:]), grey[65:], rtol=1e-4)
    np.testing.assert_allclose(
        scorer.score(truth[:2].expand(2, 3, 8, 8), guess[:2].expand(2, 3, 8, 8)), grey[:2], rtol=1e-4
    )


def test_the_loaded_weights_are_the_ones_used(data_root: Path) -> None:
    before = LpipsScorer.load(data_root)
    weights = random_features()
    weights["features.0.weight"] = weights["features.0.weight"].flip(0) * 2
    torch.save(weights, data_root / "lpips_alexnet" / "alexnet_features.pth")
    after = LpipsScorer.load(data_root)
    pair = torch.rand(2, 1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    assert before.score(*pair) != pytest.approx(after.score(*pair), rel=1e-3)
    assert LpipsScorer.load(data_root).score(*pair) == pytest.approx(after.score(*pair), rel=1e-6)


def test_pixels_are_scaled_to_the_range_lpips_expects(data_root: Path) -> None:
    scorer = LpipsScorer.load(data_root)
    pair = torch.rand(2, 1, 3, 64, 64, generator=torch.Generator().manual_seed(4))
    # lpips scales [0, 1] to [-1, 1] itself when asked to.
    expected = scorer._network(*pair, normalize=True).item()
    assert scorer.score(*pair) == pytest.approx(expected, rel=1e-5)


def test_the_cache_of_torchvision_is_enough_and_classifier_weights_are_ignored(
    tmp_path: Path, empty_torch_home: Path
) -> None:
    torch.save({**random_features(), "classifier.1.bias": torch.zeros(3)}, empty_torch_home / TORCHVISION_FILE)
    assert isinstance(LpipsScorer.load(tmp_path / "nothing"), LpipsScorer)


def test_loading_leaves_the_random_numbers_of_the_caller_alone(data_root: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    LpipsScorer.load(data_root)
    assert torch.equal(torch.rand(3), expected)


def test_missing_incomplete_and_broken_weights_give_a_reason(data_root: Path, tmp_path: Path) -> None:
    weights_file = data_root / "lpips_alexnet" / "alexnet_features.pth"
    assert "no AlexNet weights" in LpipsScorer.load(tmp_path / "elsewhere")
    torch.save({"features.0.weight": torch.zeros(1)}, weights_file)
    assert "lacks features.0.bias" in LpipsScorer.load(data_root)
    weights_file.write_bytes(b"<html>not found</html>")
    assert "cannot be read" in LpipsScorer.load(data_root)


def test_real_weights_find_a_blur_nearer_than_noise_of_equal_rmse() -> None:
    """What LPIPS is for. With the published weights (README of the data root) and a structured image."""
    root = os.environ.get("HARNESS_DATA")
    scorer = LpipsScorer.load(Path(root)) if root else "HARNESS_DATA is not set"
    if isinstance(scorer, str):
        pytest.skip(scorer)
    ramp = torch.linspace(0, 12, 64)
    truth = (0.5 + 0.4 * torch.sin(ramp)[:, None] * torch.cos(ramp)[None]).expand(1, 3, 64, 64)
    shift = truth.roll(2, dims=3)
    noise = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    noise *= (shift - truth).square().mean().sqrt()
    assert scorer.score(truth, shift)[0] < 0.5 * scorer.score(truth, truth + noise)[0]
