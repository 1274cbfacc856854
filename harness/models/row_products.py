"""Matrix products of rows that have matrices of their own."""

from torch import Tensor, bmm


class LinearRows:
    """Values (R, B, F) with kernels (R, O, F): (R, B, O)."""

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        return bmm(values, kernels.mT)

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return bmm(outer, kernels)

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return bmm(outer.mT, values)


class ColumnRows:
    """Columns (R, B, F, L) with kernels (R, O, ...) of F numbers: (R, B, O, L)."""

    def product(self, values: Tensor, kernels: Tensor) -> Tensor:
        return kernels.flatten(2)[:, None] @ values

    def by_values(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return kernels.flatten(2).mT[:, None] @ outer

    def by_kernels(self, outer: Tensor, values: Tensor, kernels: Tensor) -> Tensor:
        return (outer @ values.mT).sum(1)
