"""Feature extractor before the trained layers of a network: a fixed map with nothing to train."""

from torch import Tensor, nn

from harness.base.errors import UsageError


class FeatureExtractor(nn.Module):
    """A fixed map of each example on its own. What it is made of are buffers; it has no parameters.

    Attributes:
        fitted_to: what the map was computed from, in words, where that is private data and no noise hides it; None
            where it depends on no data.
    """

    fitted_to: str | None = None

    def fit(self, images: Tensor) -> None:
        """Computes the map from images (N, C, H, W); does nothing where it depends on no data."""

    def rows(self, values: Tensor) -> Tensor:
        """The map of values (R, B, ...), such that no row's result depends on the other rows."""
        return self(values.flatten(0, 1)).unflatten(0, values.shape[:2])


class UnitLength(FeatureExtractor):
    """Values (B, F) scaled to unit L2 norm; zeros stay zeros."""

    def forward(self, values: Tensor) -> Tensor:
        return values * values.square().sum(-1, keepdim=True).add(1e-12).rsqrt()


def fitted_to(images: Tensor | None, module: nn.Module, name: str) -> str | None:
    """Fits what stands before the trained layers to training images (N, C, H, W), where it is to be fitted.

    Args:
        module: the network. name: what it is called.

    Returns:
        that no epsilon covers it, and why; None where nothing was to be fitted.

    Raises:
        UsageError: something is, and there are no images.
    """
    found = [layer for layer in module.modules() if isinstance(layer, FeatureExtractor)]
    fitted = [layer for layer in found if layer.fitted_to]
    for extractor in fitted:
        if images is None:
            raise UsageError(f"model {name!r} is fitted to training data, which is not done here; use another one")
        extractor.fit(images)
    return f"model {name} has {fitted[0].fitted_to}; no epsilon covers it" if fitted else None
