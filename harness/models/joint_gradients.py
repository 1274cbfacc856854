"""The gradient of a batch that is normalised as a whole: no example has one of its own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.models.batch_norm import LayerStatistics, batch_statistics, layers_of, refusal


class JointGradients:
    """What the hooks of a defense see of N clients whose batches are normalised as a whole: their mean gradients only.

    Args:
        name: of the network, for errors.
        gradients: (N, P), of each batch's mean loss.
        statistics: what each BatchNorm was given.
        sizes: number of coordinates of each parameter tensor.
        batch: B.
    """

    def __init__(
        self, name: str, gradients: Tensor, statistics: Sequence[LayerStatistics], sizes: tuple[int, ...], batch: int
    ) -> None:
        self.sizes, self.statistics = sizes, statistics
        self.present = gradients.new_ones(len(gradients), batch, dtype=torch.bool)
        self._name, self._gradients = name, gradients

    @classmethod
    def of(
        cls, name: str, module: nn.Module, layout: Layout, places: Mapping[str, int], weights: Tensor, images: Tensor,
        labels: Tensor,
    ) -> "JointGradients":  # fmt: skip
        """Those of batches (N, B, C, H, W) with labels (N, B) under weights (N, P), one after another.

        A batch fills the library's own layers, so a client costs what its own training loop costs. ``places``: values
        per channel and example that each layer in training mode sees.
        """
        counts = {layer: count * images.shape[1] for layer, count in places.items()}
        gradients, statistics = [], []
        for flat, batch, truth in zip(weights, images, labels, strict=True):
            leaves = {key: _laid_out(part.detach()).requires_grad_() for key, part in layout.split(flat).items()}
            with torch.enable_grad(), batch_statistics(module) as kept:
                loss = functional.cross_entropy(functional_call(module, leaves | kept, (_laid_out(batch),)), truth)
            parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            gradients.append(torch.cat([part.flatten() for part in parts]))
            statistics.append(kept)
        together = {key: torch.stack([kept[key] for kept in statistics]) for key in statistics[0]}
        return cls(name, torch.stack(gradients), layers_of(together, counts), layout.sizes, images.shape[1])

    def mean(self) -> Tensor:
        """The batch gradient (N, P)."""
        return self._gradients

    def norms(self) -> Tensor:
        """Raises UsageError."""
        raise self._refused()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Raises UsageError."""
        raise self._refused()

    def materialise(self) -> Tensor:
        """Raises UsageError."""
        raise self._refused()

    def _refused(self) -> UsageError:
        return refusal(self._name, "gradients of single examples are clipped or read here")


def _laid_out(values: Tensor) -> Tensor:
    """Images, or a convolution's weights, in the order in which convolutions are fastest; others as they are."""
    return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values
