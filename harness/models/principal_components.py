"""Principal components as the first layer of a network, fitted to the training data without privacy.

Source: Noble, Bellet and Dieuleveut (AISTATS 2022), appendix D.1, after Abadi et al. 2016, section 4: "applied as
preprocessing to all the samples without differential privacy". No epsilon of the training covers it.
"""

import torch
from torch import Tensor, nn

from harness.models.feature_extractor import FeatureExtractor

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
