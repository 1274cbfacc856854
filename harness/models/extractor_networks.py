"""Networks whose trained layers see a fixed map of the image: its scaling, principal components, frozen features."""

import math

import torch
from torch import Tensor, nn

from harness.base.randomness import generator
from harness.models.feature_extractor import FeatureExtractor, UnitLength
from harness.models.networks import MODELS, ImageShape, refuse_table_rows
from harness.models.row_sequence import row_sequence

# A network that stays as it is, whose outputs are the features that later layers are trained on.
#
# Source: Heikkilä et al., "On Using Secure Aggregation in Differentially Private Federated Learning with Multiple
# Local Steps", section 5 (a linear layer on a frozen ResNeXt); Triastcyn and Faltings 2019, section V (on a frozen
# ResNet-50). Their weights are not shipped; a network of the user's own is wrapped in :class:`Frozen`, and without
# one the features are those of random filters (Saxe et al., ICML 2011).

_FILTERS, _PLACES = 64, 4


class Frozen(FeatureExtractor):
    """A network (B, C, H, W) -> (B, F) in evaluation mode, its weights and all turned into buffers.

    Every result depends on its own example alone if the network's does. In rows, a plain chain of layers known to the
    engine keeps that to the bit; other networks may round differently beside other rows.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.eval()
        for layer in self.network.modules():
            for name, weight in list(layer._parameters.items()):
                del layer._parameters[name]
                layer.register_buffer(name, None if weight is None else weight.detach().clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)

    def rows(self, values: Tensor) -> Tensor:
        sequence = row_sequence(self.network)
        if sequence is None:
            return super().rows(values)
        named = {name: buffer.expand(len(values), *buffer.shape) for name, buffer in self.network.named_buffers()}
        return sequence(named, values)


def random_filters(channels: int) -> Frozen:
    """1,024 features (B, 1024) of images (B, C, H, W): 64 random 5x5 filters, ReLU, means over 4 x 4 places.

    The filters are drawn once and for all, normal with variance 1 / (25 C): public, and the same in every run.
    """
    convolution = nn.Conv2d(channels, _FILTERS, 5, padding=2, bias=False)
    random = generator("random filters", channels)
    drawn = torch.randn(convolution.weight.shape, generator=random) / (25 * channels) ** 0.5
    with torch.no_grad():
        convolution.weight.copy_(drawn)
    return Frozen(nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(_PLACES), nn.Flatten()))


#: Number of features that :func:`random_filters` gives.
RANDOM_FEATURES = _FILTERS * _PLACES**2


# Principal components as the first layer of a network, fitted to the training data without privacy.
#
# Source: Noble, Bellet and Dieuleveut (AISTATS 2022), appendix D.1, after Abadi et al. 2016, section 4: "applied as
# preprocessing to all the samples without differential privacy". No epsilon of the training covers it.

_CHUNK = 4096


class PrincipalComponents(FeatureExtractor):
    """The first K principal components of images with F pixels: (B, C, H, W) to (B, K), K at most F.

    Until it is fitted, or loaded with a state dictionary, every result is NaN.
    """

    mean: Tensor
    directions: Tensor
    fitted_to = "principal components of the private training data, computed without noise"

    def __init__(self, features: int, components: int) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.register_buffer("mean", torch.full((features,), torch.nan))
        self.register_buffer("directions", torch.full((min(components, features), features), torch.nan))

    def fit(self, images: Tensor) -> None:
        """Directions of the largest variance, the largest first, of images (N, C, H, W).

        In float64 from the covariance; a direction's largest entry is positive, which makes it unique.
        """
        rows = images.detach().flatten(1)
        mean = rows.double().mean(0)
        covariance = mean.new_zeros(len(mean), len(mean))
        for part in rows.split(_CHUNK):
            centred = part.double() - mean
            covariance += centred.mT @ centred
        _, vectors = torch.linalg.eigh(covariance / len(rows))
        directions = vectors.flip(1)[:, : len(self.directions)].mT
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
        self.mean.copy_(mean)
        self.directions.copy_(directions * largest.sign())

    def forward(self, images: Tensor) -> Tensor:
        return (self.flatten(images) - self.mean) @ self.directions.mT

    def rows(self, values: Tensor) -> Tensor:
        centred = values.flatten(2) - self.mean
        return torch.bmm(centred, self.directions.mT.expand(len(values), -1, -1))


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
