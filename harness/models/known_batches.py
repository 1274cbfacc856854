"""What is known of the batches of a client whose network normalises them as a whole."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class KnownBatches:
    """The batches behind R observations.

    Attributes:
        size: B, examples that are normalised together.
        statistics: by BatchNorm layer the mean and variance (R, channels) that running statistics gave away; None
            where these do not travel.
        shares: by layer how much of each batch is in them, in the order of the batches; adds up to one.
    """

    size: int
    statistics: Mapping[str, tuple[Tensor, Tensor]] | None = None
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def of_layer(self, name: str) -> tuple[Tensor, Tensor] | None:
        """What is known of one layer; None where nothing is."""
        return None if self.statistics is None else self.statistics.get(name)

    def take(self, index: Tensor) -> "KnownBatches":
        """Those of some rows."""
        if self.statistics is None:
            return self
        taken = {name: (mean[index], variance[index]) for name, (mean, variance) in self.statistics.items()}
        return replace(self, statistics=taken)

    def to(self, device: torch.device, dtype: torch.dtype) -> "KnownBatches":
        """The same on another device and in another precision."""
        if self.statistics is None:
            return self
        moved = {
            name: (mean.to(device, dtype), variance.to(device, dtype))
            for name, (mean, variance) in self.statistics.items()
        }
        return replace(self, statistics=moved)

    def facts(self) -> tuple[str, ...]:
        """What tells it from another, as text."""
        if self.statistics is None:
            return "batches", str(self.size), "hidden"
        digest = hashlib.sha256()
        for tensor in (part for pair in self.statistics.values() for part in pair):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return "batches", str(self.size), digest.hexdigest(), repr(self.shares)
