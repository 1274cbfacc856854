"""A Gaussian over the examples of each class, fitted to public ones, in coordinates in which it is standard normal."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Rows that are multiplied together as many are: 2 on Intel's processors, 4 on AMD's, by MKL.
_FEWEST = 4


@dataclass(frozen=True, eq=False)
class Prior:
    """A Gaussian for every class; images are flattened to D numbers.

    Attributes:
        name: of the public data. size: how many examples it was fitted to.
        means: (K, D), of each class.
        groups: (K,) int64, which of the G covariances a class has: one of its own, or that of all classes pooled.
        directions: (G, D, d), orthonormal columns. scales: (G, d), standard deviations along them.
        rest: (G,), the standard deviation along everything else, so that no image has probability 0.
    """

    name: str
    size: int
    means: Tensor
    groups: Tensor
    directions: Tensor
    scales: Tensor
    rest: Tensor

    def place(self, coordinates: Tensor, labels: Tensor) -> Tensor:
        """The images (R, n, D) at whitened coordinates (R, n, D) of classes (R, n).

        Coordinates drawn from a standard normal give images drawn from the prior; zeros give the class means.
        """
        flat, classes = coordinates.flatten(0, 1), labels.flatten()
        spread = torch.zeros_like(flat)
        own = self.groups[classes]
        for group in own.unique().tolist():
            rows = (own == group).nonzero()[:, 0]
            # Few rows take other kernels on the CPU than the same among many.
            some, along = flat[rows.repeat(-(-_FEWEST // len(rows)))], self.directions[group]
            stretched = ((some @ along) * (self.scales[group] - self.rest[group])) @ along.T
            spread = spread.index_copy(0, rows, (some * self.rest[group] + stretched)[: len(rows)])
        return (self.means[classes] + spread).view_as(coordinates)

    def spread(self) -> Tensor:
        """(K,), the expected squared distance of an example from the mean of its class."""
        left = self.means.shape[1] - self.scales.shape[1]
        return (self.scales.square().sum(1) + left * self.rest.square())[self.groups]

    def to(self, device: torch.device, dtype: torch.dtype) -> "Prior":
        """A copy on another device and in another floating-point precision."""
        moved = {name: getattr(self, name).to(device, dtype) for name in ("means", "directions", "scales", "rest")}
        return replace(self, groups=self.groups.to(device), **moved)

    def fingerprint(self) -> str:
        """A hash of its numbers."""
        digest = hashlib.sha256()
        for tensor in (self.means, self.groups, self.directions, self.scales, self.rest):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:20]
