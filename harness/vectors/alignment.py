"""Where rows lie in memory."""

from torch import Tensor

_ALIGNED = 64  # bytes, as all memory that PyTorch asks for


def aligned(row: Tensor) -> Tensor:
    """The row, contiguous and not where its place among others puts it: sums round by that too."""
    row = row.contiguous()
    return row if row.data_ptr() % _ALIGNED == 0 else row.clone()
