"""Rows evaluated one after another, each by the network itself: what large networks are fastest by.

Rows with weights of their own share no arithmetic, so evaluating them together saves only calls. A network of hundreds
of thousands of weights spends its time on reading these, and products of many rows at once take slower kernels.
"""

import copy
import threading
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from harness.base.vectors import Layout
from harness.models.batch_norm import LayerStatistics, recorded
from harness.models.side_by_side import twice_differentiable_attention

_ALIGNED = 64  # bytes, as all memory that PyTorch asks for


class LoneRows:
    """A network for rows (R, P) of weights; every result for a row depends on that row alone, to the bit.

    Args:
        module: the network.
        layout: of its parameters.
    """

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._original, self._layout = module, layout
        self._clones = threading.local()

    @property
    def _module(self) -> nn.Module:
        """The network; a copy in every other thread, since a call puts weights into it."""
        if threading.current_thread() is threading.main_thread():
            return self._original
        if not hasattr(self._clones, "module"):
            self._clones.module = copy.deepcopy(self._original)
        return self._clones.module

    def logits(self, weights: Tensor, images: Tensor) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W)."""
        with twice_differentiable_attention():
            rows = zip(_rows(weights), _rows(images), strict=True)
            return torch.stack([self._call(self._layout.split(flat), batch) for flat, batch in rows])

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """Gradients (R, P) of each row's mean cross-entropy."""
        return self._gradients(_rows(weights), _rows(images), targets.unbind(), create_graph)

    def per_example_gradients(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """The same (R, B, P) of each example's own loss, without a copy of the weights for each."""
        batch = images.shape[1]
        repeated = [flat for flat in _rows(weights) for _ in range(batch)]
        examples, alone = _rows(images.flatten(0, 1)[:, None]), targets.flatten(0, 1)[:, None].unbind()
        return self._gradients(repeated, examples, alone, create_graph).unflatten(0, (-1, batch))

    def _gradients(
        self, weights: Sequence[Tensor], images: Sequence[Tensor], targets: Sequence[Tensor], create_graph: bool
    ) -> Tensor:
        rows = zip(weights, images, targets, strict=True)
        with torch.enable_grad(), twice_differentiable_attention():
            parts = [part.flatten() for row in rows for part in self._parts(*row, create_graph)]
        return torch.cat(parts).unflatten(0, (len(weights), -1))

    def _parts(self, flat: Tensor, batch: Tensor, targets: Tensor, create_graph: bool) -> tuple[Tensor, ...]:
        named = self._layout.split(flat)
        if not flat.requires_grad:
            named = {name: part.detach().requires_grad_() for name, part in named.items()}
        loss = functional.cross_entropy(self._call(named, batch), targets)
        return torch.autograd.grad(loss, list(named.values()), create_graph=create_graph, materialize_grads=True)

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        """See :meth:`~harness.models.RowModel.batch_norm_statistics`."""
        rows = []
        with twice_differentiable_attention():
            for flat, batch in zip(_rows(weights), _rows(images), strict=True):
                with recorded(self._module) as seen:
                    self._call(self._layout.split(flat), batch)
                rows.append(seen)
        return [
            LayerStatistics(
                of_layer[0].name, torch.stack([one.mean for one in of_layer]),
                torch.stack([one.variance for one in of_layer]), of_layer[0].count,
            )
            for of_layer in zip(*rows, strict=True)
        ]  # fmt: skip

    def _call(self, named: dict[str, Tensor], batch: Tensor) -> Tensor:
        return functional_call(self._module, named, (batch,))


def _rows(values: Tensor) -> list[Tensor]:
    """Each row of (R, ...), none of which lies in memory in a way that depends on its place: sums round by that too."""
    return [row if row.data_ptr() % _ALIGNED == 0 else row.clone() for row in values.unbind()]
