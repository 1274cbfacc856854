"""Networks whose trained layers see a fixed map of the image: its scaling, principal components, frozen features."""

import math

from torch import nn

from harness.models.feature_extractor import UnitLength
from harness.models.frozen import RANDOM_FEATURES, random_filters
from harness.models.networks import MODELS, ImageShape, refuse_table_rows
from harness.models.principal_components import PrincipalComponents


@MODELS.register("unit_logistic")
def unit_logistic_regression(image_shape: ImageShape, classes: int) -> nn.Module:
    """Multinomial logistic regression on inputs scaled to unit L2 norm (DP-SCAFFOLD's model of images)."""
    return nn.Sequential(nn.Flatten(), UnitLength(), nn.Linear(math.prod(image_shape), classes))


@MODELS.register("pca_mlp")
def principal_components_mlp(image_shape: ImageShape, classes: int) -> nn.Module:
    """60 principal components (fitted to private data, not covered by any epsilon), unit norm, 200 ReLU units, K.

    Source: DP-SCAFFOLD, appendix D.1; 14,210 parameters on MNIST.
    """
    components = PrincipalComponents(math.prod(image_shape), 60)
    width = len(components.directions)
    return nn.Sequential(components, UnitLength(), nn.Linear(width, 200), nn.ReLU(), nn.Linear(200, classes))


@MODELS.register("frozen_linear")
def frozen_linear(image_shape: ImageShape, classes: int) -> nn.Module:
    """A linear layer on 1,024 features of frozen random filters, in place of a pretrained network."""
    refuse_table_rows("frozen_linear", image_shape)
    return nn.Sequential(random_filters(image_shape[0]), nn.Linear(RANDOM_FEATURES, classes))
