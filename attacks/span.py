"""Span: the gradient of the first layer that reads tokens is a sum of outer products with their vectors.

So its rows lie in the span of the vectors of just the tokens that were used, each at its place; as long as these are
fewer than a vector has numbers, every other token lies outside of it. Idea: Petrov et al., "DAGER: Exact Gradient
Inversion for Large Language Models" (NeurIPS 2024), who take the query matrix.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.token_layers import TokenLayer, candidates_at, token_layer
from harness.base.errors import UsageError
from harness.base.words import PAD, images_of
from harness.models.side_by_side import side_by_side
from harness.observation import Observation

#: A singular value below that share of the largest one is rounding, and a token that far outside of the span is none.
_ROUNDING, _OUTSIDE = 1e-6, 0.1


@ATTACKS.register("span")
@validated_attack
class Span(ClosedForm):
    """It has no settings of its own."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Literal["images", "texts", "anything"]] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        if observation.examples > 1:
            raise UsageError(
                f"attack 'span' reads one text per observation, not {observation.examples}; use --batch-size 1 and one "
                "local step"
            )
        layer, model = token_layer(observation.model, "span"), observation.model
        gradients = model.layout.split(observation.target)[layer.weight]
        shared = candidates_at(model, layer, observation.weights[0]) if _alike(observation.weights) else None

        def of_row(row: int) -> Tensor:
            vectors = candidates_at(model, layer, observation.weights[row]) if shared is None else shared
            return images_of(told(gradients[row], vectors)).flatten()

        alone = shared is not None and observation.target.device.type == "cpu"
        return torch.stack(side_by_side(of_row, range(observation.rows), alone)).to(observation.target)


def _alike(weights: Tensor) -> bool:
    return bool((weights == weights[:1]).all())


def told(gradient: Tensor, vectors: Tensor) -> Tensor:
    """The text (T,) whose tokens' vectors lie nearest to the rows of a gradient (O, E); it ends where none is near.

    Args:
        vectors: (V, T, E), of every token at every place.
    """
    tokens = torch.full(vectors.shape[1:2], PAD)
    basis = row_space(gradient)
    if not len(basis):
        return tokens
    near, found = outside(vectors, basis).min(0)
    ends = (near > _OUTSIDE).nonzero()
    length = int(ends[0]) if len(ends) else len(tokens)
    tokens[:length] = found[:length].cpu()
    return tokens


def row_space(gradient: Tensor) -> Tensor:
    """Orthonormal rows (r, E) that span those of a gradient (O, E), rounding apart; none of one that is no number."""
    values = gradient.double()
    if not values.isfinite().all():
        return values[:0]
    _, sizes, rows = torch.linalg.svd(values, full_matrices=False)
    return rows[sizes > _ROUNDING * sizes[0].clamp_min(1e-300)]


def outside(vectors: Tensor, basis: Tensor) -> Tensor:
    """How much of each vector (..., E) lies outside of a span (r, E), as a share of its length."""
    unit = vectors.to(basis)
    unit = unit / unit.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return (unit - unit @ basis.T @ basis).norm(dim=-1)
