"""Matrix products by oneDNN, which PyTorch brings along; MKL uses half of what some processors can do."""

import torch
from torch import Tensor

# Left (M, K) and right (N, K) to left times right transposed, whatever their strides.
_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_WORTH = 2**20
"""Multiplications of a product below which oneDNN costs more than it saves."""


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """Left (M, K) times right (N, K) transposed."""
    if len(left) * right.numel() >= _WORTH and is_possible(left):
        assert _LINEAR is not None
        return _LINEAR(left, right, None, "none", [], "")
    return left @ right.mT


def is_possible(values: Tensor) -> bool:
    """Whether oneDNN computes with values of this kind, here."""
    return _LINEAR is not None and values.dtype == torch.float32 and values.device.type == "cpu"
