"""Metrics of images (docs/verdicts.md): all but ``rmse_raw`` are taken after clamping to [0, 1]."""

import numpy as np
from skimage.metrics import structural_similarity

from harness.scoring.metric import Metric, Pairs, Values, register
from harness.scoring.pixels import clamped_pixels, exact_pixels

PSNR_CAP = 100.0
SSIM_WINDOW = 11


def _rmse_raw(pairs: Pairs) -> Values:
    squared = (clamped_pixels(pairs.truth) - exact_pixels(pairs.made)).flatten(1).square()
    return squared.mean(1).sqrt().numpy()


def _psnr(pairs: Pairs) -> Values:
    return -10.0 * np.log10(np.maximum(pairs.mse, 10.0 ** (-PSNR_CAP / 10.0)))


def _ssim_missing(pairs: Pairs) -> str | None:
    height, width = pairs.truth.shape[-2:]
    if min(height, width) >= SSIM_WINDOW:
        return None
    return f"images of {height}x{width} pixels are smaller than the {SSIM_WINDOW}-pixel window of SSIM"


def _ssim(pairs: Pairs) -> Values:
    truth, made = clamped_pixels(pairs.truth).numpy(), clamped_pixels(pairs.made).numpy()
    # sigma 1.5 gives scikit-image an 11x11 window; its defaults K1 = 0.01 and K2 = 0.03 are those of the paper.
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
    similarities = [
        structural_similarity(image, guess, channel_axis=0, **options) for image, guess in zip(truth, made, strict=True)
    ]
    return np.array(similarities, dtype=np.float64)


def _lpips_missing(pairs: Pairs) -> str | None:
    return pairs.lpips if isinstance(pairs.lpips, str) else None


register(
    # Root mean squared error, in [0, 1].
    Metric(name="rmse", measure=lambda pairs: np.sqrt(pairs.mse), title="RMSE", shown="median", in_victims=True),
    # The same without clamping, the "distance" of the paper's Table III.
    Metric(name="rmse_raw", measure=_rmse_raw, in_victims=True),
    # The formula the paper prints as RMSE, which is a mean squared error.
    Metric(name="rmse_seed", measure=lambda pairs: pairs.mse.copy()),
    # rmse * sqrt(U) for U = C*H*W features, what the papers' notebooks log.
    Metric(name="l2dist", measure=lambda pairs: pairs.squared.sum(1).sqrt().numpy()),
    Metric(name="mse", measure=lambda pairs: pairs.mse),
    # In dB, capped at 100.
    Metric(
        name="psnr", measure=_psnr, of="images", title="PSNR", digits=1, low_leaks=False, limits=(0.0, 60.0),
        in_victims=True,
    ),
    # Structural similarity (Wang et al. 2004).
    Metric(
        name="ssim", measure=_ssim, of="images", missing=_ssim_missing, title="SSIM", low_leaks=False,
        limits=(-0.25, 1.0), in_victims=True,
    ),
    # Perceptual distance (Zhang et al. 2018).
    Metric(
        name="lpips", measure=lambda pairs: pairs.lpips.score(pairs.truth, pairs.made), of="images",  # type: ignore[union-attr]
        missing=_lpips_missing, title="LPIPS", limits=(0.0, 1.2), in_victims=True,
    ),
)  # fmt: skip
