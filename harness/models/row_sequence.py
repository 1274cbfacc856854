"""Feed-forward networks evaluated for rows with separate weights directly, without the cost of ``vmap``.

Every layer with weights is a product of rows: of a linear layer's values (R, B, F) with weights (R, O, F), of what a
convolution sees at each of L places. Where example gradients are wanted, it leaves that behind: windows (R, B, L, F),
one per example (L = 1) for a linear layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.models.bilinear import RowSigmoid
from harness.models.feature_extractor import FeatureExtractor
from harness.models.imprint import Fronted, Imprint, Lightened
from harness.models.row_layers import (
    RowELU,
    are_grouped,
    as_kernels,
    as_windows,
    convolve_rows,
    places_along,
    windows_of,
)
from harness.models.row_operators import MatrixProduct, is_plain_convolution, patches_of, zero_padding

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Product:
    """A layer with weights: a ``convolution``, or a linear layer."""

    weight: str
    bias: str | None
    convolution: nn.Conv2d | None = None

    def __call__(self, named: Named, values: Tensor) -> Tensor:
        layer, bias = self.convolution, None if self.bias is None else named[self.bias]
        if layer is None:
            product = MatrixProduct.apply(named[self.weight], values.mT).mT
            return product if bias is None else product + bias[:, None]
        if are_grouped(values):
            product = convolve_rows(values, named[self.weight], layer)
        else:
            patches = patches_of(values, layer.kernel_size, zero_padding(layer), layer.stride)
            product = self._of_patches(named, patches).unflatten(-1, places_of(values, layer))
        return product if bias is None else product + bias[:, None, :, None, None]

    def _of_patches(self, named: Named, patches: Tensor) -> Tensor:
        """Products (R, B, O, L) of patches (R, B, F, L)."""
        rows, examples = patches.shape[:2]
        kernels = named[self.weight].flatten(2)
        if examples > 1:
            kernels = kernels[:, None].expand(-1, examples, -1, -1).flatten(0, 1)
        return MatrixProduct.apply(kernels, patches.flatten(0, 1)).unflatten(0, (rows, examples))

    def record(self, named: Named, values: Tensor) -> "Recorded":
        """The layer's output, and what the loss's derivative by its weights is made of."""
        windows = self.windows(values)
        product = torch.bmm(windows.flatten(1, 2), self.over_windows(named[self.weight]).mT)
        if self.bias is not None:
            product = product + named[self.bias][:, None]
        if self.convolution is None:
            output = product
        else:
            output = product.unflatten(1, windows.shape[1:3]).mT.unflatten(-1, places_of(values, self.convolution))
        if not output.requires_grad:
            output.requires_grad_()
        return Recorded(self, values.detach(), windows.detach(), output)

    def record_alone(self, named: Named, values: Tensor) -> "Recorded":
        """The same for weights and values (B, ...) of one row, by the library's own layer."""
        weight, bias, layer = named[self.weight], None if self.bias is None else named[self.bias], self.convolution
        if layer is None:
            output = functional.linear(values, weight, bias)
        else:
            output = functional.conv2d(values, weight, bias, layer.stride, layer.padding)
        return Recorded(self, values.detach()[None], None, output)

    def windows(self, values: Tensor) -> Tensor:
        """What of values (R, B, ...) meets the kernels at each of L places: (R, B, L, F)."""
        layer = self.convolution
        if layer is None:
            return values[:, :, None]
        return windows_of(values, layer.kernel_size, zero_padding(layer), layer.stride)

    def over_windows(self, kernels: Tensor) -> Tensor:
        """Weights (..., O, ...) in a window's order: (..., O, F)."""
        return kernels if self.convolution is None else as_windows(kernels)

    def over_weights(self, kernels: Tensor) -> Tensor:
        """The opposite, flattened: (..., P) of kernels (..., O, F)."""
        layer = self.convolution
        return kernels.flatten(-2) if layer is None else as_kernels(kernels, layer.kernel_size).flatten(-4)


def places_of(values: Tensor, layer: nn.Conv2d) -> tuple[int, ...]:
    """Rows and columns of a plain convolution's output for values (..., H, W)."""
    return tuple(map(places_along, values.shape[-2:], layer.kernel_size, zero_padding(layer), layer.stride))


@dataclass(frozen=True)
class Recorded:
    """One layer with weights in a recorded forward pass.

    Attributes:
        values: its input (R, B, ...). windows: of it (R, B, L, F); None where they were not needed.
        output: (R, B, O, ...), without the first axis if recorded alone; the loss can be differentiated by it.
    """

    layer: Product
    values: Tensor
    windows: Tensor | None
    output: Tensor


class RowSequence:
    """The stages of a feed-forward network, in order: products, and layers without weights."""

    def __init__(self, stages: list[Product | nn.Module]) -> None:
        self.stages = stages

    def __call__(self, named: Named, images: Tensor) -> Tensor:
        """Logits (R, B, K) of images (R, B, C, H, W) under named parameters (R, ...)."""
        values = images
        for stage in self.stages:
            values = stage(named, values) if isinstance(stage, Product) else without_weights(stage, values, images)
        return values

    def record(self, named: Named, images: Tensor) -> tuple[Tensor, list[Recorded]]:
        """Logits (R, B, K), and what each layer with weights leaves behind."""
        return self._recorded(images, lambda layer, values: layer.record(named, values), without_weights)

    def record_alone(self, named: Named, images: Tensor) -> tuple[Tensor, list[Recorded]]:
        """Logits (B, K) of a single row's images (B, C, H, W) under named parameters without a leading axis.

        A row alone needs no batched product, and so costs what the plain network costs.
        """
        return self._recorded(images, lambda layer, values: layer.record_alone(named, values), _alone)

    def _recorded(
        self,
        values: Tensor,
        record: Callable[[Product, Tensor], Recorded],
        pass_on: Callable[[nn.Module, Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, list[Recorded]]:
        recorded: list[Recorded] = []
        images = values
        for stage in self.stages:
            if isinstance(stage, Product):
                recorded.append(record(stage, values))
                values = recorded[-1].output
            else:
                values = pass_on(stage, values, images)
        return values, recorded


def without_weights(stage: nn.Module, values: Tensor, images: Tensor) -> Tensor:
    """A stage's output (R, B, ...) of values (R, B, ...), and of the images where it looks at them again."""
    if isinstance(stage, Lightened):
        return stage(values, images)
    if isinstance(stage, FeatureExtractor):
        return stage.rows(values)
    return stage(values.flatten(0, 1)).unflatten(0, values.shape[:2])


def _alone(stage: nn.Module, values: Tensor, images: Tensor) -> Tensor:
    """A stage's output (B, ...) of values (B, ...)."""
    if isinstance(stage, Lightened):
        return stage(values, images)
    return stage.rows(values[None])[0] if isinstance(stage, FeatureExtractor) else stage(values)


def row_sequence(module: nn.Module) -> RowSequence | None:
    """The sequence a module is, or None where it is not a plain chain of layers known here."""
    stages: list[Product | nn.Module] = []
    return RowSequence(_pooled_early(stages)) if _collect(module, "", stages) else None


def _pooled_early(stages: list[Product | nn.Module]) -> list[Product | nn.Module]:
    """Every ReLU after the maximum that followed it: the same to the bit, and so are derivatives, of fewer numbers.

    But where a maximum is over padding alone, of which the library has no derivative.
    """
    for place in range(len(stages) - 1):
        if type(stages[place]) is nn.ReLU and type(stages[place + 1]) is nn.MaxPool2d:
            stages[place : place + 2] = stages[place + 1], stages[place]
    return stages


def _collect(module: nn.Module, prefix: str, stages: list[Product | nn.Module]) -> bool:
    if type(module) in _CHAINS:
        children = module._modules.items()
        return all(child is not None and _collect(child, f"{prefix}{name}.", stages) for name, child in children)
    if type(module) is nn.Linear:
        stages.append(_product(prefix, module, None))
    elif type(module) is nn.Conv2d and is_plain_convolution(module):
        stages.append(_product(prefix, module, module))
    elif type(module) is nn.Sigmoid:
        stages.append(RowSigmoid())
    elif type(module) is nn.ELU:
        stages.append(RowELU(module.alpha))
    elif type(module) in _WEIGHTLESS or isinstance(module, FeatureExtractor) or _is_pooling(module):
        stages.append(module)
    else:
        return False
    return True


def _is_pooling(module: nn.Module) -> bool:
    return type(module) is nn.MaxPool2d and not module.return_indices


def _product(prefix: str, layer: nn.Linear | nn.Conv2d, convolution: nn.Conv2d | None) -> Product:
    return Product(f"{prefix}weight", None if layer.bias is None else f"{prefix}bias", convolution)


_CHAINS = (nn.Sequential, Fronted, Imprint)
_WEIGHTLESS = (
    nn.Flatten, nn.ReLU, nn.Tanh, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.LeakyReLU, nn.Identity,
    Lightened,
)  # fmt: skip
