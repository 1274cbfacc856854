import math

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate

from harness.scoring import Pairs, measured


def image_metrics(truth: torch.Tensor, made: torch.Tensor) -> dict[str, np.ndarray]:
    return measured(Pairs(truth, made))[0]


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    truth = torch.rand(6, 3, 16, 16, generator=random)
    return truth, truth + 0.6 * torch.randn(6, 3, 16, 16, generator=random)


def test_formulas_against_plain_python(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    truth, guess = pair
    metrics = image_metrics(truth, guess)
    for image in range(len(truth)):
        true_pixels = truth[image].flatten().tolist()
        raw_pixels = guess[image].flatten().tolist()
        clamped = [min(1.0, max(0.0, pixel)) for pixel in raw_pixels]
        mse = math.fsum((a - b) ** 2 for a, b in zip(true_pixels, clamped, strict=True)) / len(true_pixels)
        mse_raw = math.fsum((a - b) ** 2 for a, b in zip(true_pixels, raw_pixels, strict=True)) / len(true_pixels)
        assert mse_raw > 1.2 * mse
        assert metrics["mse"][image] == pytest.approx(mse, rel=1e-12)
        assert metrics["rmse"][image] == pytest.approx(math.sqrt(mse), rel=1e-12)
        assert metrics["rmse_raw"][image] == pytest.approx(math.sqrt(mse_raw), rel=1e-12)
        assert metrics["psnr"][image] == pytest.approx(10 * math.log10(1 / mse), rel=1e-12)


def test_identities_between_metrics(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    metrics = image_metrics(*pair)
    np.testing.assert_allclose(metrics["rmse_seed"], metrics["rmse"] ** 2, rtol=1e-12)
    np.testing.assert_allclose(metrics["l2dist"], metrics["rmse"] * math.sqrt(3 * 16 * 16), rtol=1e-12)
    assert all(values.shape == (6,) and values.dtype == np.float64 for values in metrics.values())


def test_ssim_against_its_definition() -> None:
    """Wang et al. 2004: 11x11 Gaussian of sigma 1.5, K1 = 0.01, K2 = 0.03, windows wholly inside the image."""
    random = np.random.default_rng(0)
    truth = random.random((14, 15))
    guess = np.clip(truth + 0.2 * random.standard_normal((14, 15)), 0, 1)
    bell = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    window = np.outer(bell, bell) / bell.sum() ** 2

    def local(values: np.ndarray) -> np.ndarray:
        return correlate(values, window, mode="constant")[5:-5, 5:-5]

    mean_a, mean_b = local(truth), local(guess)
    var_a, var_b = local(truth**2) - mean_a**2, local(guess**2) - mean_b**2
    covariance = local(truth * guess) - mean_a * mean_b
    similarity = (2 * mean_a * mean_b + 0.01**2) * (2 * covariance + 0.03**2)
    similarity /= (mean_a**2 + mean_b**2 + 0.01**2) * (var_a + var_b + 0.03**2)
    metrics = image_metrics(torch.tensor(truth)[None, None], torch.tensor(guess)[None, None])
    assert metrics["ssim"][0] == pytest.approx(similarity.mean(), rel=1e-9)


def test_a_perfect_copy() -> None:
    truth = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    metrics = image_metrics(truth, truth.clone())
    assert metrics["rmse"].tolist() == [0, 0] and metrics["psnr"].tolist() == [100, 100]
    np.testing.assert_allclose(metrics["ssim"], 1.0)


def test_an_unmoved_uniform_start_and_a_diverged_one() -> None:
    """Why the headline is clamped: raw RMSE of a diverged guess is unbounded, clamped RMSE is at most 1."""
    metrics = image_metrics(torch.zeros(1, 1, 12, 12), torch.full((1, 1, 12, 12), 5000.0))
    assert metrics["rmse"][0] == 1.0 and metrics["rmse_raw"][0] == 5000.0 and metrics["psnr"][0] == 0.0


def test_ssim_of_images_smaller_than_its_window_is_missing_with_a_reason() -> None:
    digits = torch.rand(3, 1, 8, 8)
    metrics, missing = measured(Pairs(digits, digits, lpips="no weights"))
    assert "ssim" not in metrics and metrics["rmse"].tolist() == [0, 0, 0]
    assert "8x8" in missing["ssim"] and missing["lpips"] == "no weights"
    assert "ssim" in image_metrics(torch.rand(1, 1, 11, 28), torch.rand(1, 1, 11, 28))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_reconstructions_are_refused(bad: float) -> None:
    guess = torch.rand(1, 1, 12, 12)
    guess[0, 0, 3, 3] = bad
    with pytest.raises(ValueError, match="finite"):
        image_metrics(torch.rand(1, 1, 12, 12), guess)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        image_metrics(torch.rand(2, 1, 12, 12), torch.rand(1, 1, 12, 12))
