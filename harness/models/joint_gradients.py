"""The gradient of a batch that is normalised as a whole: no example has one of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from harness.errors import UsageError
from harness.models.batch_norm import LayerStatistics, recorded, refusal
from harness.vectors.layout import Layout


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
        cls, name: str, module: nn.Module, layout: Layout, weights: Tensor, images: Tensor, labels: Tensor
    ) -> "JointGradients":
        """Those of batches (N, B, C, H, W) with labels (N, B) under weights (N, P), one after another.

        A batch fills the library's own layers, so a client costs what its own training loop costs.
        """
        gradients, statistics = [], []
        for flat, batch, truth in zip(weights, images, labels, strict=True):
            leaves = {key: part.detach().requires_grad_() for key, part in layout.split(flat).items()}
            with torch.enable_grad(), recorded(module) as seen:
                loss = functional.cross_entropy(functional_call(module, leaves, (batch,)), truth)
            parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            gradients.append(torch.cat([part.flatten() for part in parts]))
            statistics.append(seen)
        return cls(name, torch.stack(gradients), _stacked(statistics), layout.sizes, images.shape[1])

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


def _stacked(rows: list[list[LayerStatistics]]) -> list[LayerStatistics]:
    """The layers of every row's pass as one, with a row each."""
    return [
        LayerStatistics(
            layer[0].name, torch.stack([one.mean.detach() for one in layer]),
            torch.stack([one.variance.detach() for one in layer]), layer[0].count,
        )
        for layer in zip(*rows, strict=True)
    ]  # fmt: skip
