"""A transformer for tables: one token of each column, a class token, an encoder, a linear layer on the class token.

Source: Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data" (NeurIPS 2021), the FT-Transformer. Theirs
has a hidden layer of gated rectified units, no normalisation before the first attention, and dropout; here the layers
are those of the other transformers, with GELU and without dropout. Widths are ours.
"""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from harness.base.columns import Columns, TableShape
from harness.base.errors import UsageError
from harness.models.networks import MODELS, ImageShape
from harness.models.transformer import RowTransformer, encoder_layers, first_token

_WIDTH, _HEADS, _HIDDEN, _LAYERS = 64, 4, 128, 2


class ColumnTokens(nn.Module):
    """Tokens (B, T, E) of rows (B, F) of a table, one of each column: x w + b of a number x, e + b of a category.

    A one-hot code times a matrix is the embedding e of its category. A value that is missing leaves b.

    Attributes:
        weight: (F, E), w or e of each feature. bias: (T, E), b of each column.
        columns: what the features mean.
        owners: the column of each feature.
    """

    def __init__(self, columns: Columns, width: int) -> None:
        super().__init__()
        self.columns, numbers, most = columns, len(columns.continuous), width**-0.5
        of_groups = [[token] * len(group.categories) for token, group in enumerate(columns.groups, numbers)]
        self.owners = [*range(numbers), *itertools.chain(*of_groups)]
        self.weight = nn.Parameter(torch.empty(columns.width, width).uniform_(-most, most))
        self.bias = nn.Parameter(torch.empty(numbers + len(columns.groups), width).uniform_(-most, most))

    def forward(self, rows: Tensor) -> Tensor:
        return self.tokens(rows, self.weight, self.bias)

    def tokens(self, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Tokens (..., B, T, E) of rows (..., B, F) under weights (..., F, E) and (..., T, E)."""
        count = len(self.columns.continuous)
        numbers = rows[..., :count, None] * weight[..., None, :count, :]
        categories = [(rows[..., place] @ weight[..., place, :])[..., None, :] for place in self.columns.slices]
        return torch.cat([numbers, *categories], -2) + bias[..., None, :, :]


class TableTransformer(nn.Module):
    """Logits (B, K) of table rows (B, 1, 1, F)."""

    def __init__(self, columns: Columns, classes: int) -> None:
        super().__init__()
        self.tokens = ColumnTokens(columns, _WIDTH)
        self.class_token = nn.Parameter(torch.empty(1, 1, _WIDTH).uniform_(-(_WIDTH**-0.5), _WIDTH**-0.5))
        self.encoder = nn.Sequential(*encoder_layers(_LAYERS, _WIDTH, _HEADS, _HIDDEN))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        made = self.tokens(images.flatten(1))
        tokens = torch.cat([self.class_token.expand(len(made), -1, -1), made], 1)
        return self.head(self.norm(first_token(self.encoder, tokens)).relu())

    def row_logits(self, named: Mapping[str, Tensor], images: Tensor, gradient_once: bool) -> Tensor:
        """Logits (R, B, K) of table rows (R, B, 1, 1, F) under named parameters (R, ...), as :meth:`forward` has
        them."""
        rows = RowTransformer(named, _HEADS, gradient_once)
        made = self.tokens.tokens(images.flatten(2), named["tokens.weight"], named["tokens.bias"])
        tokens = torch.cat([named["class_token"].expand(-1, images.shape[1], -1, -1), made], 2)
        tokens = rows.first_token([f"encoder.{number}" for number in range(_LAYERS)], tokens)
        return rows.named_linear("head", rows.norm("norm", tokens).relu())[:, :, 0]


@MODELS.register("ft_transformer")
def ft_transformer(image_shape: ImageShape, classes: int) -> nn.Module:
    """An FT-Transformer for tables: a token of each column, two layers of width 64 (74,882 parameters on Adult)."""
    if not isinstance(image_shape, TableShape):
        raise UsageError(
            f"model 'ft_transformer' reads table rows whose columns are known, not images of {tuple(image_shape)}; use "
            "--dataset adult or another table, name the columns in capture.json, or use another model, such as mlp2"
        )
    return TableTransformer(image_shape.columns, classes)
