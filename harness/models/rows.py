"""A network evaluated for many rows together, each row with its own weights."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.base.vectors import Layout
from harness.models.batch_norm import BatchNorm, LayerStatistics, recorded
from harness.models.chain_gradient import chain_gradient
from harness.models.row_sequence import RowSequence


class Rows(Protocol):
    """What evaluates a network for rows: R of B images each, weights as flat vectors (R, P)."""

    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W); ``gradient_once`` as of a network's own rows."""
        ...

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """Gradients (R, P) of each row's mean cross-entropy; targets as of :func:`mean_cross_entropy`."""
        ...

    def per_example_gradients(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """Gradients (R, B, P) of each example's own loss."""
        ...

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        """What every BatchNorm is given of each row's batch (R, B, C, H, W), in the order of the forward pass."""
        ...


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Losses (R,) of logits (R, B, K); targets are labels (R, B) or probabilities (R, B, K)."""
    scores = logits.log_softmax(-1)
    if targets.dim() == 2:
        return -scores.gather(-1, targets[..., None]).squeeze(-1).mean(-1)
    return -(scores * targets).sum(-1).mean(-1)


class _Together(Rows):
    """Gradients of all rows by one pass backward."""

    @abstractmethod
    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor: ...

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        own_leaf = not weights.requires_grad
        if own_leaf:
            weights = weights.detach().requires_grad_(True)
        with torch.enable_grad():
            # Rows have separate weights, so the gradient of the sum holds each row's own gradient.
            total = mean_cross_entropy(self.logits(weights, images, own_leaf and create_graph), targets).sum()
            (gradient,) = torch.autograd.grad(total, weights, create_graph=create_graph)
        return gradient

    def per_example_gradients(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        rows, batch = images.shape[:2]
        expanded = weights[:, None].expand(rows, batch, -1).reshape(rows * batch, -1)
        flat = self.gradient(expanded, images.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None], create_graph)
        return flat.reshape(rows, batch, -1)


class ChainedRows(_Together):
    """A chain of layers that are known here, each one product of all rows.

    Args:
        looks_back: a layer takes the images again beside its input, so that no gradient is written out.
    """

    def __init__(self, sequence: RowSequence, layout: Layout, looks_back: bool) -> None:
        self._sequence, self._layout, self._looks_back = sequence, layout, looks_back

    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor:
        return self._sequence(self._layout.split(weights), images)

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        if self._looks_back or weights.requires_grad:
            return super().gradient(weights, images, targets, create_graph)
        with torch.set_grad_enabled(create_graph):
            return chain_gradient(self._sequence, self._layout, weights, images, targets)

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        return []  # no chain has such layers


@runtime_checkable
class EvaluatesRows(Protocol):
    """A network that says itself how many rows are evaluated together."""

    def row_logits(self, named: Mapping[str, Tensor], images: Tensor, gradient_once: bool) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under named parameters (R, ...)."""
        ...


class OwnRows(_Together):
    """A network that evaluates rows itself."""

    def __init__(self, module: EvaluatesRows, layout: Layout) -> None:
        self._module, self._layout = module, layout

    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor:
        return self._module.row_logits(self._layout.split(weights), images, gradient_once)

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        return []  # running statistics are no matter of such a network


class MappedRows(_Together):
    """Any network, under a transformation of functions."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._module, self._layout = module, layout

    def logits(self, weights: Tensor, images: Tensor, gradient_once: bool = False) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the only attention whose gradient has a derivative
            return vmap(self._call)(weights, images)

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        if not any(isinstance(layer, BatchNorm) for layer in self._module.modules()):
            return []
        called: list[LayerStatistics] = []

        def one_row(flat: Tensor, batch: Tensor) -> list[tuple[Tensor, Tensor]]:
            with recorded(self._module) as seen:
                self._call(flat, batch)
            called.extend(seen)
            return [(one.mean, one.variance) for one in seen]

        with sdpa_kernel(SDPBackend.MATH):
            found = vmap(one_row)(weights, images)
        return [LayerStatistics(one.name, *pair, one.count) for one, pair in zip(called, found, strict=True)]

    def _call(self, flat: Tensor, batch: Tensor) -> Tensor:
        return functional_call(self._module, self._layout.split(flat), (batch,))
