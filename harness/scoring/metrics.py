"""Pixel metrics of matched pairs (spec/attacks.md section 9)."""

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import structural_similarity
from torch import Tensor

from harness.scoring.pixels import clamped_pixels, exact_pixels

PSNR_CAP = 100.0
SSIM_WINDOW = 11


def ssim_unavailable(height: int, width: int) -> str | None:
    """Why SSIM cannot be had for images of this size in pixels, or None when it can."""
    if min(height, width) >= SSIM_WINDOW:
        return None
    return f"images of {height}x{width} pixels are smaller than the {SSIM_WINDOW}-pixel window of SSIM"


def image_metrics(truth: Tensor, reconstruction: Tensor) -> dict[str, NDArray[np.float64]]:
    """Metrics of I matched pairs; all but ``rmse_raw`` are taken after clamping to [0, 1].

    Args:
        truth: (I, C, H, W), in [0, 1].
        reconstruction: (I, C, H, W), finite, in any range.

    Returns:
        Arrays (I,), with U = C*H*W features:
        ``rmse`` root mean squared error, in [0, 1];
        ``rmse_raw`` the same without clamping, the "distance" of the paper's Table III;
        ``rmse_seed`` the formula the paper prints as RMSE, which is a mean squared error;
        ``l2dist`` rmse * sqrt(U), what the papers' notebooks log;
        ``mse`` mean squared error;
        ``psnr`` in dB, capped at 100;
        ``ssim`` structural similarity (Wang et al. 2004), NaN for the reason given by ``ssim_unavailable``.

    Raises:
        ValueError: the shapes differ or a value is not finite.
    """
    if truth.shape != reconstruction.shape:
        raise ValueError(f"shapes differ: truth {tuple(truth.shape)}, reconstruction {tuple(reconstruction.shape)}")
    true_pixels, guessed_pixels = clamped_pixels(truth), clamped_pixels(reconstruction)
    squared = (true_pixels - guessed_pixels).flatten(1).square()
    squared_raw = (true_pixels - exact_pixels(reconstruction)).flatten(1).square()
    mse = squared.mean(1).numpy()
    return {
        "rmse": np.sqrt(mse),
        "rmse_raw": squared_raw.mean(1).sqrt().numpy(),
        "rmse_seed": mse.copy(),
        "l2dist": squared.sum(1).sqrt().numpy(),
        "mse": mse,
        "psnr": -10.0 * np.log10(np.maximum(mse, 10.0 ** (-PSNR_CAP / 10.0))),
        "ssim": _ssim(true_pixels.numpy(), guessed_pixels.numpy()),
    }


def _ssim(truth: NDArray[np.float64], reconstruction: NDArray[np.float64]) -> NDArray[np.float64]:
    if ssim_unavailable(*truth.shape[-2:]):
        return np.full(len(truth), np.nan)
    # sigma 1.5 gives scikit-image an 11x11 window; its defaults K1 = 0.01 and K2 = 0.03 are those of the paper.
    pairs = zip(truth, reconstruction, strict=True)
    similarities = [
        structural_similarity(
            true_image,
            guess,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=0,
        )
        for true_image, guess in pairs
    ]
    return np.array(similarities, dtype=np.float64)
