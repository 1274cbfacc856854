"""Matrix products by oneDNN, which PyTorch brings along; MKL uses half of what some processors can do."""

import torch
from torch import Tensor

# Left (M, K) and right (N, K) to left times right transposed, whatever their strides.
_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_WORTH = 2**20
"""Multiplications of a product below which oneDNN costs more than it saves."""


def transposed_product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Left (M, K) times right (N, K) transposed, and a bias (N,) added to every row."""
    if _is_worth_it(left, right):
        assert _LINEAR is not None
        return _LINEAR(left, right, bias, "none", [], "")
    return left @ right.mT if bias is None else torch.addmm(bias, left, right.mT)


def transposed_product_into(made: Tensor, left: Tensor, right: Tensor) -> None:
    """Writes the same into a tensor (M, N) that is contiguous."""
    if _is_worth_it(left, right):
        made.copy_(transposed_product(left, right))
    else:
        torch.mm(left, right.mT, out=made)


def _is_worth_it(left: Tensor, right: Tensor) -> bool:
    return left.shape[0] * right.numel() >= _WORTH and is_possible(left)


def is_possible(values: Tensor) -> bool:
    """Whether oneDNN computes with values of this kind, here."""
    return _LINEAR is not None and values.dtype == torch.float32 and values.device.type == "cpu"
