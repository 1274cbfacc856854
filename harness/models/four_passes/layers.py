r"""Layers in four passes, which together are a gradient by the weights and its derivative along a direction.

Of a loss L(x, w) an attack wants the gradient g = dL/dw and, given a direction c of the weights, d<c, g>/dx. The order
of derivatives may be changed: this is the derivative of dL/dx when the weights move along c, forward over reverse
(Pearlmutter, "Fast Exact Multiplication by the Hessian", Neural Computation 1994). With a dot for what moves with them,
and d for dL/d of something, a layer y = f(x, w) has four passes:

1. ``forward``: x to y.
2. ``backward``: dy to dx; writes dw into the gradient.
3. ``forward_moved``: x. to y. where w. = c.
4. ``backward_moved``: dy. to dx.

Autograd's derivative of a derivative computes the same, in four times as many operations. What a layer is handed it
may keep, so nobody changes it; values are (N, E), of tokens one below the other.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from harness.models.four_passes.weights import Weight
from harness.models.onednn import transposed_product, transposed_product_into

_by_norm = torch.ops.aten.native_layer_norm_backward.default
_by_gelu = torch.ops.aten.gelu_backward.default


class Layer(Protocol):
    """See above; the passes are made in their order, the last two as often as wanted."""

    def forward(self, values: Tensor) -> Tensor: ...
    def backward(self, outer: Tensor) -> Tensor: ...
    def forward_moved(self, moved: Tensor) -> Tensor: ...
    def backward_moved(self, outer_moved: Tensor) -> Tensor: ...


class Linear:
    """y = x W^T + b: dx = dy W, dW = dy^T x, db = sum dy; y. = x. W^T + x W.^T + b., dx. = dy. W + dy (W.)."""

    def __init__(self, weight: Weight, bias: Weight) -> None:
        self._weight, self._bias = weight, bias

    def forward(self, values: Tensor) -> Tensor:
        self._values = values
        return transposed_product(values, self._weight.value, self._bias.value)

    def backward(self, outer: Tensor) -> Tensor:
        self._outer = outer
        torch.sum(outer, 0, out=self._bias.gradient)
        transposed_product_into(self._weight.gradient, outer.mT, self._values.mT)
        return transposed_product(outer, self._weight.value.mT)

    def forward_moved(self, moved: Tensor) -> Tensor:
        made = transposed_product(self._values, self._weight.direction, self._bias.direction)
        return made.add_(transposed_product(moved, self._weight.value))

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        made = transposed_product(outer_moved, self._weight.value.mT)
        return made.add_(transposed_product(self._outer, self._weight.direction.mT))


class LayerNorm:
    r"""y = g n + b with n = (x - mean x) r, r = 1 / sqrt(var x + epsilon), over the last axis of E numbers.

    With the symmetric map J(v) = r (v - mean v - n mean(n v)): dx = J(g dy), dg = sum n dy, db = sum dy; and
    n. = J(x.), y. = g n. + g. n + b., r. = -r^2 mean(n x.). The derivative of dx = J(e), e = g dy, is
    dx. = J(g dy. + g. dy) - r mean(n x.) dx - r (n. mean(n e) + n mean(n. e)).
    """

    def __init__(self, weight: Weight, bias: Weight, epsilon: float) -> None:
        self._weight, self._bias, self._epsilon = weight, bias, epsilon

    def forward(self, values: Tensor) -> Tensor:
        self._values, self._shape = values, values.shape[-1:]
        self._normed, self._mean, self._rate = torch.native_layer_norm(values, self._shape, None, None, self._epsilon)
        return torch.addcmul(self._bias.value, self._normed, self._weight.value)

    def backward(self, outer: Tensor) -> Tensor:
        self._outer = outer
        known = self._values, self._shape, self._mean, self._rate, self._weight.value, self._bias.value
        self._made, by_weight, by_bias = _by_norm(outer, *known, [True, True, True])
        self._weight.gradient.copy_(by_weight)
        self._bias.gradient.copy_(by_bias)
        return self._made

    def forward_moved(self, moved: Tensor) -> Tensor:
        self._along = _means(self._normed, moved).mul_(self._rate)
        self._normed_moved = self._symmetric(moved)
        made = torch.addcmul(self._bias.direction, self._normed, self._weight.direction)
        return made.addcmul_(self._normed_moved, self._weight.value)

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        scaled = self._outer * self._weight.value
        scaled_moved = (outer_moved * self._weight.value).addcmul_(self._outer, self._weight.direction)
        made = self._symmetric(scaled_moved).addcmul_(self._made, self._along, value=-1)
        made.addcmul_(self._normed_moved, _means(self._normed, scaled).mul_(self._rate), value=-1)
        return made.addcmul_(self._normed, _means(self._normed_moved, scaled).mul_(self._rate), value=-1)

    def _symmetric(self, outer: Tensor) -> Tensor:
        """J."""
        known = self._values, self._shape, self._mean, self._rate
        return _by_norm(outer, *known, None, None, [True, False, False])[0]


def _means(left: Tensor, right: Tensor) -> Tensor:
    """Means of products (N, 1)."""
    return (left * right).mean(-1, keepdim=True)


class Gelu:
    """y = x F(x) with the normal distribution F and its density f: y' = F + x f, y'' = (2 - x^2) f."""

    def forward(self, values: Tensor) -> Tensor:
        self._values = values
        return torch.nn.functional.gelu(values)

    def backward(self, outer: Tensor) -> Tensor:
        self._outer = outer
        return self._sloped(outer)

    def forward_moved(self, moved: Tensor) -> Tensor:
        self._moved = moved
        return self._sloped(moved)

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        squares = self._values.square()
        curved = torch.mul(squares, -0.5).exp_().mul_(squares.neg_().add_(2)).mul_(self._moved).mul_(self._outer)
        return self._sloped(outer_moved).add_(curved, alpha=1 / math.sqrt(2 * math.pi))

    def _sloped(self, values: Tensor) -> Tensor:
        return _by_gelu(values, self._values)


class Chain:
    """Layers one after another."""

    def __init__(self, *layers: Layer) -> None:
        self._layers: Sequence[Layer] = layers

    def forward(self, values: Tensor) -> Tensor:
        for layer in self._layers:
            values = layer.forward(values)
        return values

    def backward(self, outer: Tensor) -> Tensor:
        for layer in reversed(self._layers):
            outer = layer.backward(outer)
        return outer

    def forward_moved(self, moved: Tensor) -> Tensor:
        for layer in self._layers:
            moved = layer.forward_moved(moved)
        return moved

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        for layer in reversed(self._layers):
            outer_moved = layer.backward_moved(outer_moved)
        return outer_moved


class Residual:
    """y = x + f(x)."""

    def __init__(self, *layers: Layer) -> None:
        self._chain = Chain(*layers)

    def forward(self, values: Tensor) -> Tensor:
        return values + self._chain.forward(values)

    def backward(self, outer: Tensor) -> Tensor:
        return outer + self._chain.backward(outer)

    def forward_moved(self, moved: Tensor) -> Tensor:
        return moved + self._chain.forward_moved(moved)

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        return outer_moved + self._chain.backward_moved(outer_moved)
