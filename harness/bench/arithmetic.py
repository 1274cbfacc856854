"""How long the convolutions and matrix products of a gradient match take alone, on tensors of the same shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_PLACES = {
    _ATEN.convolution.default: (0, 1),
    _ATEN.addmm.default: (1, 2),
    _ATEN.baddbmm.default: (1, 2),
} | dict.fromkeys((_ATEN.mm.default, _ATEN.bmm.default), (0, 1))
"""The two factors among the arguments of the operations that networks' layers become."""


@dataclass(frozen=True)
class Product:
    """One product of a forward pass.

    Attributes:
        left, right: its factors; the right one of a convolution is its kernel.
        geometry: a convolution's stride, padding, dilation, transposed, output padding and groups; None of matrices.
        trained: whether the right factor is a parameter, whose gradient is matched and which stays as it is.
    """

    left: Tensor
    right: Tensor
    geometry: tuple[Any, ...] | None
    trained: bool

    def passes(self) -> list[Callable[[], object]]:
        """All products of this shape in one iteration, on numbers of their own.

        Forward and backward are three: the output, and its derivatives by both factors. A second backward pass meets
        each of the two backward products with two cotangents, and the forward one again: twice the derivative by what
        depends on the images, for every product that it went into. A parameter needs none.
        """
        left, right = torch.randn_like(self.left), torch.randn_like(self.right)
        output, by_left, by_right = (
            self._matrices(left, right) if self.geometry is None else self._convolutions(left, right, self.geometry)
        )
        return [output] * 3 + [by_left] * 3 + [by_right] * (1 if self.trained else 3)

    def _matrices(self, left: Tensor, right: Tensor) -> tuple[Callable[[], object], ...]:
        above = left @ right
        return lambda: left @ right, lambda: above @ right.mT, lambda: left.mT @ above

    def _convolutions(self, left: Tensor, right: Tensor, geometry: tuple[Any, ...]) -> tuple[Callable[[], object], ...]:
        def forward() -> Tensor:
            return _ATEN.convolution(left, right, None, *geometry)

        def backward(by_left: bool) -> object:
            return _ATEN.convolution_backward(above, left, right, None, *geometry, [by_left, not by_left, False])

        above = forward()
        return forward, lambda: backward(True), lambda: backward(False)


class _Recorder(TorchDispatchMode):
    def __init__(self, parameters: set[int]) -> None:
        super().__init__()
        self.products: list[Product] = []
        self._parameters = parameters

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PLACES:
            left, right = (args[place] for place in _PLACES[func])
            trained = right.untyped_storage().data_ptr() in self._parameters
            geometry = tuple(args[3:9]) if func is _ATEN.convolution.default else None
            self.products.append(Product(left, right, geometry, trained))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def products_of(module: nn.Module, images: Tensor) -> list[Product]:
    """The convolutions and matrix products of a forward pass on images (B, C, H, W)."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    with sdpa_kernel(SDPBackend.MATH), _Recorder(parameters) as recorder:
        module(images)
    return recorder.products


@torch.no_grad()
def arithmetic(products: list[Product]) -> Callable[[], None]:
    """A function that computes all products of one iteration, and nothing else."""
    passes = [one for product in products for one in product.passes()]

    def run() -> None:
        for one in passes:
            one()

    return run
