"""A network that stays as it is, whose outputs are the features that later layers are trained on.

Source: Heikkilä et al., "On Using Secure Aggregation in Differentially Private Federated Learning with Multiple Local
Steps", section 5 (a linear layer on a frozen ResNeXt); Triastcyn and Faltings 2019, section V (on a frozen ResNet-50).
Their weights are not shipped; a network of the user's own is wrapped in :class:`Frozen`, and without one the features
are those of random filters (Saxe et al., ICML 2011).
"""

import torch
from torch import Tensor, nn

from harness.base.randomness import generator
from harness.models.feature_extractor import FeatureExtractor
from harness.models.row_sequence import row_sequence

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
