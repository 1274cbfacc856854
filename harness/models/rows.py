"""A network evaluated for many rows together, each row with its own weights."""

import copy
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.conv import _ConvNd

from harness.base.vectors import Layout, group_products
from harness.base.words import without_empty_places
from harness.models.batch_norm import BatchNorm, LayerStatistics, recorded
from harness.models.changes import draws_a_sample, is_scaled
from harness.models.feature_extractor import FeatureExtractor
from harness.models.imprint import WithInsertedModule
from harness.models.inner_products import inner_products
from harness.models.row_operators import with_row_operators
from harness.models.row_sequence import RowSequence, chain_gradient, row_sequence
from harness.models.side_by_side import twice_differentiable_attention
from harness.models.transformer import torchvision_transformer

_ALIGNED = 64  # bytes, as all memory that PyTorch asks for


class Rows(Protocol):
    """Evaluation of a network for rows: R of B images each, weights as flat vectors (R, P)."""

    def logits(self, weights: Tensor, images: Tensor) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W)."""
        ...

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """Gradients (R, P) of each row's mean cross-entropy; targets as of :func:`mean_cross_entropy`."""
        ...

    def per_example_gradients(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool) -> Tensor:
        """Gradients (R, B, P) of each example's own loss."""
        ...

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        """Return what every BatchNorm is given of each row's batch (R, B, C, H, W), in the order of the forward
        pass."""
        ...


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Losses (R,) of logits (R, B, K); targets are labels (R, B) or probabilities (R, B, K)."""
    scores = logits.log_softmax(-1)
    if targets.dim() == 2:
        return -scores.gather(-1, targets[..., None]).squeeze(-1).mean(-1)
    return -(scores * targets).sum(-1).mean(-1)


class _Together(Rows):
    """Gradients of all rows by one pass backward; ``gradient_once`` is that of :class:`EvaluatesRows`."""

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


# The ways to evaluate a network for rows, the fastest first.

# Weights from which a network that is no chain is faster one row at a time, measured on networks of 13 thousand to 11
# million of them; fewer where batches are normalised as a whole, since these are never of one image.
_LARGE, _LARGE_FOR_BATCHES = 2**19, 2**16
# Weights from which a network that evaluates rows itself is no faster by it, and takes several times the memory.
_LARGEST_ITSELF = 2**25
# Examples whose gradients are computed together, as long as these have no more numbers (128 MiB), and how far these may
# be from those of the examples alone.
_EXAMPLES, _NUMBERS, _AGREES = 8, 2**25, 1e-4
# What chains and transformers take by name; a buffer of such a name was kept from training.
_WEIGHTS = {"weight", "bias", "in_proj_weight", "in_proj_bias", "class_token", "pos_embedding"}


@dataclass(frozen=True)
class Way:
    """Way to evaluate rows: as a chain, by the network's own ``row_logits``, or as a network with ``other_layers`` or
    its own, together or alone."""

    sequence: RowSequence | None
    other_layers: bool
    alone: bool = False
    itself: bool = False

    def module(self, plain: nn.Module) -> nn.Module:
        """The network that is evaluated: ``plain`` itself, or a copy with other layers."""
        return with_row_operators(plain) if self.other_layers else plain

    def rows(self, module: nn.Module, layout: Layout) -> Rows:
        """Return what evaluates such a ``module``."""
        if self.sequence is not None:
            return ChainedRows(self.sequence, layout, looks_back=isinstance(module, WithInsertedModule))
        if self.itself and (own := _own_rows(module)):
            return OwnRows(own, layout)
        return LoneRows(module, layout) if self.alone else MappedRows(module, layout)


def ways_of(module: nn.Module, weights: int, joint: bool) -> list[Way]:
    """Those that a network of so many ``weights`` has; ``joint``: it normalises batches as a whole."""
    together, alone = [Way(None, other) for other in (True, False)], [Way(None, False, alone=True)]
    # These take a layer's weights by name, so all of them are trained, and each is of one layer.
    by_name = _trains_each_layer(module) and not is_scaled(module)
    chain = row_sequence(module) if by_name else None
    if chain:
        return [Way(chain, True), *together]
    bottleneck = draws_a_sample(name for name, _ in module.named_parameters())  # which stands where the head was
    if by_name and not bottleneck and not joint and weights < _LARGEST_ITSELF and _own_rows(module):
        together.insert(0, Way(None, False, itself=True))
        return together
    large = weights >= (_LARGE_FOR_BATCHES if joint else _LARGE)
    recurrent = any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in module.modules())
    if large:
        return [*alone, *together]
    # The library's recurrent layers can only be evaluated alone, and so can attention that looks where a text ends.
    return [*together, *alone] if recurrent or hasattr(module, "vocabulary") else together


def _trains_each_layer(module: nn.Module) -> bool:
    """Return whether every layer has weights of its own, all of which are trained; those of a feature extractor
    aside."""
    named = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    extractors = [one for one in module.modules() if isinstance(one, FeatureExtractor)]
    aside = {id(layer) for one in extractors for layer in one.modules()}
    fixed = any(_WEIGHTS & layer._buffers.keys() for layer in module.modules() if id(layer) not in aside)
    return len(named) == len(list(module.parameters())) and not fixed


def _own_rows(module: nn.Module) -> EvaluatesRows | None:
    """Return how a network evaluates rows together itself; None if it does not."""
    return module if isinstance(module, EvaluatesRows) else torchvision_transformer(module)


class LoneRows:
    """Rows evaluated one after another, each by the network itself: what large networks are fastest by.

    Rows with weights of their own share no arithmetic, so evaluating them together saves only calls. A network of
    hundreds of thousands of weights spends its time on reading these, and products of many rows at once take slower
    kernels. Every result for a row depends on that row alone, to the bit.

    Args:
        module: the network.
        layout: of its parameters.
    """

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self._original, self._layout = module, layout
        self._clones = threading.local()
        #: Examples at the same weights are best given in groups of so many.
        self.group = max(2, min(_EXAMPLES, _NUMBERS // max(1, layout.total)))
        self._maps: bool | None = None
        self._tells: bool | None = None

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
        """Return the gradients (R, B, P) of each example's own loss, without a copy of the weights for each."""
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

    def by_tensor(self, flat: Tensor, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Gradients (B, n) by each parameter tensor, of examples (B, ...) at the same weights (P,).

        Several are computed together where the network can be mapped: reading and writing its weights then costs less.
        So many always that an example's bits do not depend on how many there are; a few cost less alone.
        """
        if 2 * len(images) < self.group or not self._can_be_mapped(flat, images, targets):
            return list(self._of_each(flat, images, targets).split(self._layout.sizes, 1))
        groups = zip(images.split(self.group), targets.split(self.group), strict=True)
        found = [self._mapped(flat, *group) for group in groups]
        return found[0] if len(found) == 1 else [torch.cat(parts) for parts in zip(*found, strict=True)]

    def tells_products(self, flat: Tensor, images: Tensor, targets: Tensor) -> bool:
        """Return whether :meth:`products` can be had of this network: by one trial, of examples (B, ...) at weights
        (P,)."""
        if self._tells is None:
            images, targets, found = images[: self.group], targets[: self.group], None
            with suppress(Exception):  # whatever a network does with its weights; its gradients are taken next
                found = self._products(flat, images, targets, flat)
            self._tells = found is not None and self._are(found, self._of_each(flat, images, targets), flat)
        return self._tells

    def _are(self, found: tuple[Tensor, Tensor], gradients: Tensor, read: Tensor) -> bool:
        both, own, lengths = group_products(gradients, read.expand_as(gradients), self._layout.sizes)
        # A gradient is at right angles to a tensor whose scale makes no difference: that product is rounding alone.
        most = (own * lengths).sqrt().norm(), own.norm()
        pairs = zip(found, (both, own), most, strict=True)
        return all(bool((made - true).norm() <= _AGREES * scale) for made, true, scale in pairs)

    def products(self, flat: Tensor, images: Tensor, targets: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`~harness.models.RowModel.gradient_products`."""
        found = self._products(flat, images, targets, read)
        assert found is not None, "tells_products was not asked"
        return found

    def _products(self, flat: Tensor, images: Tensor, targets: Tensor, read: Tensor) -> tuple[Tensor, Tensor] | None:
        module, count = self._module, len(images)
        group = torch.arange(-(-count // self.group) * self.group, device=images.device).clamp_max(count - 1)
        images, targets = images[group], targets[group]
        if getattr(module, "reads_shorter", False):
            images = without_empty_places(images)
        named, parts = self._layout.split(flat), self._layout.split(read)
        found = inner_products(module, named, parts, images, targets)
        return None if found is None else (found[0][:count], found[1][:count])

    def _of_each(self, flat: Tensor, images: Tensor, targets: Tensor) -> Tensor:
        return self._gradients([flat] * len(images), _rows(images[:, None]), targets[:, None].unbind(), False)

    def _can_be_mapped(self, flat: Tensor, images: Tensor, targets: Tensor) -> bool:
        """Tell by one trial. Convolutions are slower so, and weights of many numbers gain nothing."""
        if self._maps is None:
            convolves = any(isinstance(layer, _ConvNd) for layer in self._original.modules())
            few = self.group * self._layout.total <= _NUMBERS
            self._maps = few and not convolves and self._agree(flat, images[:1], targets[:1])
        return self._maps

    def _agree(self, flat: Tensor, image: Tensor, target: Tensor) -> bool:
        alone = self._of_each(flat, image, target)
        with suppress(RuntimeError, NotImplementedError):  # of networks that look at what they compute
            made = torch.cat(self._mapped(flat, image, target), 1)
            return bool((made - alone).norm() <= _AGREES * alone.norm())
        return False

    def _mapped(self, flat: Tensor, images: Tensor, targets: Tensor) -> list[Tensor]:
        module, count = self._module, len(images)
        group = torch.arange(self.group, device=images.device).clamp_max(count - 1)
        images, targets = images[group], targets[group]
        if getattr(module, "reads_shorter", False):
            images = without_empty_places(images)

        def loss(named: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(module, named, (image[None],)), target[None])

        with twice_differentiable_attention():
            made = vmap(grad(loss), (None, 0, 0))(self._layout.split(flat), images, targets)
        return [part[:count].flatten(1) for part in made.values()]

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
