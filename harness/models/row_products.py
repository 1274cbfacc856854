"""Matrix products of rows that have matrices of their own."""

import torch
from torch import Tensor


class LinearRows:
    """Values (R, B, F) with kernels (R, O, F): (R, B, O)."""

    def product(self, values: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return torch.bmm(values, kernels.mT)
        return torch.baddbmm(bias[:, None], values, kernels.mT)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return torch.bmm(outer, kernels)

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return torch.bmm(outer.mT, values)


class ColumnRows:
    """Columns (R, B, F, L) with kernels (R, O, ...) of F numbers: (R, B, O, L)."""

    def product(self, values: Tensor, kernels: Tensor, bias: Tensor | None = None) -> Tensor:
        made = kernels.flatten(2)[:, None] @ values
        return made if bias is None else made.add_(bias[:, None, :, None])

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return kernels.flatten(2).mT[:, None] @ outer

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return (outer @ values.mT).sum(1)
