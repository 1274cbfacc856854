"""Information about a table's rows in the gradient of a network that makes a token of each column.

The tokens' own gradient, in closed form: with token x_j w_j + b_j of number j, the gradient of w_j is the sum of x_ij
d_ij over the rows i of the batch and that of b_j the sum of d_ij, where d_ij is the derivative by the token. So of one
row x_j is <dw_j, db_j> / <db_j, db_j>, and of several a weighted mean. The embedding of a category has a gradient only
if some row is of it. How many are of it, nothing tells.

Behind the last attention everything is of the class token alone, so that a linear layer gets one vector of each row.
Its gradient is then a sum of one outer product per row, and one row is checked as in a fully connected network
(:mod:`harness.attacks.row_checks`). Such layers are found by what they are given. All of this is ours; that a table of
embeddings tells the words of a batch is folklore (see attack ``token_rows``).
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.attacks.row_checks import Factors, Moved, Network, with_one
from harness.models import RowModel
from harness.models.table_transformer import ColumnTokens

_TRIED = 2
"""Rows that a network is tried with."""
_SMALL = 1e-6
"""Step of a difference in the place of a derivative, in double precision."""
_TOGETHER = 2_000
"""Rows that pass the network at once."""
_ROUNDING = 1e-5
"""Of the largest gradient of a feature, below which one is zero: rows that were found are not exact to the last bit."""


@dataclass(frozen=True)
class TokenNetwork(Network):
    """A network of tokens of columns with known weights.

    Attributes:
        modules: in single and double precision; nobody else has them, as they are watched.
        names: of their linear layers that get one vector of each row, in order.
        tokens: name of the layer that makes tokens. left: (D, E), the gradient of its weight by the rows not yet found.
        least: size of a feature's gradient up to which it is zero.
    """

    modules: dict[torch.dtype, nn.Module] = field(kw_only=True)
    names: tuple[str, ...] = field(kw_only=True)
    tokens: str = field(kw_only=True)
    left: Tensor = field(kw_only=True)
    least: float = field(kw_only=True)
    rough: ClassVar[torch.dtype] = torch.float32

    @classmethod
    def of_tokens(cls, model: RowModel, weights: Tensor, gradients: Mapping[str, Tensor]) -> "TokenNetwork":
        """Return the network with weights (P,), of a batch with gradients by name."""
        names, (prefix, _) = token_layers(model), _tokens_of(model)
        module = copy.deepcopy(model.plain_module).double().to(weights.device).requires_grad_(False)
        for (_, parameter), part in zip(module.named_parameters(), model.layout.split(weights).values(), strict=True):
            parameter.copy_(part)
        modules = {torch.float64: module, torch.float32: copy.deepcopy(module).float()}
        layers = tuple(weight.removesuffix(".weight") for weight, _ in names)
        left = gradients[f"{prefix}weight"]
        least = _ROUNDING * float(left.abs().max())
        return cls(
            (), (), modules=modules, names=layers, tokens=(prefix or "").removesuffix("."), left=left, least=least
        )

    def without(self, rows: Tensor, labels: Tensor) -> "TokenNetwork":
        """Return the same of a batch without rows (m, D) that were found."""
        module, given = self.modules[torch.float64], list[Tensor]()
        layer = module.get_submodule(self.tokens)

        def see(_: nn.Module, inputs: tuple[Tensor, ...], made: Tensor) -> Tensor:
            given.append(made.detach().requires_grad_())
            return given[-1]

        with ExitStack() as stack, torch.enable_grad():
            stack.callback(layer.register_forward_hook(see).remove)
            loss = functional.cross_entropy(module(rows[:, None, None]), labels, reduction="sum")
            (errors,) = torch.autograd.grad(loss, given)
        assert isinstance(layer, ColumnTokens)
        return replace(self, left=self.left - (rows[..., None] * errors[:, layer.owners]).sum(0))

    @property
    def classes(self) -> int:
        return self._read(torch.float64)[-1].out_features

    def _read(self, precision: torch.dtype) -> list[nn.Linear]:
        found = [self.modules[precision].get_submodule(name) for name in self.names]
        return [layer for layer in found if isinstance(layer, nn.Linear)]

    def present(self, first: Tensor, least: float = 0.0) -> Tensor:
        return self.left.abs().amax(1) > self.least

    def factors(self, rows: Tensor, labels: Tensor, bends: Sequence[Tensor] | None = None) -> Factors:
        """Return the factors of the gradients of examples (..., D) with labels (...); no unit has a kink."""
        flat, own = rows.reshape(-1, rows.shape[-1]), labels.reshape(-1)
        parts = [self._passed(*some) for some in zip(flat.split(_TOGETHER), own.split(_TOGETHER), strict=True)]
        joined = []
        for same in zip(*parts, strict=True):
            errors, inputs = (torch.cat(some).unflatten(0, rows.shape[:-1]) for some in zip(*same, strict=True))
            joined.append((errors, inputs))
        return joined

    def _passed(self, rows: Tensor, labels: Tensor) -> Factors:
        given: list[tuple[Tensor, Tensor]] = []
        read = self._read(rows.dtype)

        def see(layer: nn.Module, inputs: tuple[Tensor, ...], made: Tensor) -> Tensor:
            assert isinstance(layer, nn.Linear)
            # No gradient goes further back than the first of these layers.
            made = made if made.requires_grad else made.detach().requires_grad_()
            given.append((inputs[0].detach().reshape(-1, layer.in_features), made))
            return made

        with ExitStack() as stack, torch.enable_grad():
            for layer in read:
                stack.callback(layer.register_forward_hook(see).remove)
            logits = self.modules[rows.dtype](rows[:, None, None])
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            errors = torch.autograd.grad(loss, [made for _, made in given])
        return [
            (error.reshape(-1, layer.out_features).double(), with_one(values).double())
            for layer, error, (values, _) in zip(read, errors, given, strict=True)
        ]

    def moved(self, rows: Tensor, count: int) -> list[Moved]:
        labels = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        here = [inputs for _, inputs in self.factors(rows, labels)[:-1]]
        steps = _SMALL * torch.eye(rows.shape[1])[:count].to(rows)
        there = self.factors(rows[:, None] + steps, labels[:, None].expand(-1, count))
        found = []
        for inputs, (_, other) in zip(here, there, strict=False):
            slopes = (other - inputs[:, None]).mT / _SMALL
            constant = inputs - (slopes @ rows[:, :count, None])[..., 0]
            found.append((slopes, constant, inputs.square().sum(1)))
        return found


def _tokens_of(model: RowModel) -> tuple[str, ColumnTokens] | tuple[None, None]:
    """The layer that makes tokens of columns, all of it trained, and the prefix of its parameters' names."""
    for name, layer in model.plain_module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(layer, ColumnTokens) and {f"{prefix}weight", f"{prefix}bias"} <= set(model.layout.names):
            return prefix, layer
    return None, None


@lru_cache(maxsize=2)
def token_layers(model: RowModel) -> tuple[tuple[str, str], ...]:
    """Return the parameter names (weight, bias) of the linear layers that get one vector of each row, in order; none
    where the network makes no tokens of columns, the last layer alone is such a layer, or rows are normalised together.
    """
    if _tokens_of(model)[0] is None or model.normalised:
        return ()
    found: list[tuple[str, str]] = []

    def see(name: str, layer: nn.Linear) -> None:
        names = f"{name}.weight", f"{name}.bias"

        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel() == _TRIED * layer.in_features and set(names) <= set(model.layout.names):
                found.append(names)

        stack.callback(layer.register_forward_pre_hook(note).remove)

    module = copy.deepcopy(model.plain_module)
    with ExitStack() as stack, torch.no_grad():
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear):
                see(name, layer)
        module(torch.zeros(_TRIED, *model.image_shape).to(next(module.parameters())))
    return tuple(found) if len(found) == len(set(found)) > 1 else ()


def mean_row(model: RowModel, gradients: Mapping[str, Tensor], rescaled: bool = False) -> Tensor:
    """Return the row (D,) of a batch of one from gradients by name; of several, one between them: numbers are weighted
    means, and every feature of a category is as large as its share of the gradient.

    ``rescaled``: a clip gave each tensor a factor of its own. Then a category's 1 tells it where there is one.
    """
    prefix, tokens = _tokens_of(model)
    assert tokens is not None
    weight, bias = gradients[f"{prefix}weight"], gradients[f"{prefix}bias"]
    along = bias[tokens.owners]
    shares = (weight * along).sum(1) / along.square().sum(1).clamp_min(1e-300)
    largest = shares[len(tokens.columns.continuous) :].amax() if rescaled and tokens.columns.groups else 1.0
    return (shares / largest).nan_to_num(0.0, 0.0, 0.0)
