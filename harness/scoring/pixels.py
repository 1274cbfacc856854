"""The one place where reconstructions are checked and brought into the range of images."""

import torch
from torch import Tensor


def exact_pixels(images: Tensor) -> Tensor:
    """A float64 copy on the CPU, un-clamped: scores must not depend on the device or precision of the attack.

    Raises:
        ValueError: a value is NaN or infinite; whoever ran the attack must have put something finite in its place
            (and recorded the divergence), so that no victim silently drops out of an average.
    """
    pixels = images.detach().to(device="cpu", dtype=torch.float64)
    if not torch.isfinite(pixels).all():
        raise ValueError("images to score must be finite; replace diverged reconstructions before scoring them")
    return pixels


def clamped_pixels(images: Tensor) -> Tensor:
    """Like ``exact_pixels``, clamped to [0, 1]: an attacker can always clamp, so headline distances do."""
    return exact_pixels(images).clamp(0.0, 1.0)
