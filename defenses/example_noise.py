"""Noise on clipped per-example gradients: the three conventions in use (docs/defenses.md).

====================  ==========================  =====================================
convention            noise std on the batch mean  source
====================  ==========================  =====================================
``sum`` (default)     sigma * S / B               DP-SGD; released Fed-CDP code
``per_example``       sigma * S / sqrt(B)         Fed-αCDP text, section 5.2
``mean``              sigma * S                   Fed-αCDP, Algorithm 1
====================  ==========================  =====================================
"""

import math
from typing import Literal

import torch
from torch import Tensor

from harness.federation.context import RoundContext
from harness.federation.defense import LocalStep
from harness.federation.examples import ExampleGradients
from harness.observation import Noise
from harness.vectors.layout import spread

Convention = Literal["sum", "per_example", "mean"]

CONVENTION_TEXT: dict[str, str] = {
    "sum": "noise std sigma*S on the sum of clipped per-example gradients (sigma*S/B on their mean)",
    "per_example": "noise std sigma*S on each clipped per-example gradient (sigma*S/sqrt(B) on their mean)",
    "mean": "noise std sigma*S on the mean of clipped per-example gradients",
}


def sanitise(
    per_example: ExampleGradients,
    factors: Tensor,
    deviation: Tensor | float,
    convention: Convention,
    context: RoundContext,
) -> LocalStep:
    """Averages clipped per-example gradients and adds Gaussian noise.

    Args:
        per_example: gradients of the local batch.
        factors: clip factors (N, B, M).
        deviation: noise standard deviation sigma*S, a number or one per client (N, 1).
        convention: where the noise is added; see the module's table.
        context: supplies the expected batch size and the noise streams.

    Returns:
        The local step, with sanitised per-example gradients for ``per_example``.
    """
    batch = context.cohort.batch_size
    if convention == "per_example":
        clipped = per_example.materialise() * spread(factors, per_example.sizes)
        width = deviation[..., None] if isinstance(deviation, Tensor) else deviation
        total, noisy = noised_sum(clipped, width * context.gaussian("client_step", places(clipped, batch)))
        return LocalStep(total / batch, factors, noisy, _per_client(deviation) / math.sqrt(batch))
    mean = per_example.weighted_sum(factors) / batch
    scale = deviation / batch if convention == "sum" else deviation
    return LocalStep(torch.add(mean, scale * context.gaussian("client_step", mean)), factors, noise=_per_client(scale))


def places(values: Tensor, batch: int) -> Tensor:
    """Something in the shape (N, B, P) of a batch of the expected size, for values (N, b, P) of one that was drawn."""
    return values[:, :1].expand(-1, batch, -1)


def noised_sum(values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor | None]:
    """The sum (N, P) of values (N, b, P) and of noise (N, B, P) for a batch of the expected size, and both by example.

    A sampled batch has another number of them, which is private: neither the noise nor what is accounted for it may
    depend on that. Then no noise belongs to one example, and the second result is None.
    """
    return values.sum(1) + noise.sum(1), values + noise if values.shape == noise.shape else None


def _per_client(deviation: Tensor | float) -> Tensor | float:
    return deviation[:, 0] if isinstance(deviation, Tensor) else deviation


def known_noise(deviation: float | None, convention: Convention, batch: int) -> Noise | None:
    """The noise that :func:`sanitise` is known to leave on a local step; None without.

    ``deviation`` is its argument of that name, None where it follows the private data.
    """
    if deviation is None:
        return Noise("gaussian", None)
    shares = {"sum": batch, "per_example": math.sqrt(batch), "mean": 1}
    return Noise("gaussian", deviation / shares[convention]) if deviation else None
