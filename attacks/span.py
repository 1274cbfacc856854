"""Span: the gradient of the first layer that reads tokens is a sum of outer products with their vectors.

So its rows lie in the span of the vectors of just the tokens that were used, each at its place; as long as these are
fewer than a vector has numbers, every other token lies outside of it. Idea: Petrov et al., "DAGER: Exact Gradient
Inversion for Large Language Models" (NeurIPS 2024), who take the query matrix.
"""

from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks import sentences
from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.token_layers import TokenLayer, candidates_at, outside, read_before, row_space, token_layer
from harness.base.words import PAD, images_of
from harness.models.side_by_side import side_by_side
from harness.observation import Observation

#: A token whose vector lies that far outside of the span is none; nor is one that lies so much further outside than all
#: before it, where that is more than rounding.
_OUTSIDE, _FURTHER, _ROUNDING = 0.1, 10.0, 1e-3


@ATTACKS.register("span")
@validated_attack
class Span(ClosedForm):
    """It has no settings of its own."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        layer, model = token_layer(observation.model, "span"), observation.model
        if observation.examples > 1:
            sentences.first_attention(model)
        alike = observation.examples == 1 and _alike(observation, layer)
        shared = candidates_at(model, layer, observation.weights[0]) if alike else None

        def of_row(row: int) -> Tensor:
            if observation.examples > 1:
                return images_of(sentences.of_row(observation, row)).flatten()
            vectors = candidates_at(model, layer, observation.weights[row]) if shared is None else shared
            return images_of(told(model.layout.split(observation.target)[layer.weight][row], vectors)).flatten()

        # A network that is run again takes the weights of one row at a time.
        alone = shared is not None and observation.examples == 1 and observation.target.device.type == "cpu"
        return torch.stack(side_by_side(of_row, range(observation.rows), alone)).to(observation.target)


def _alike(observation: Observation, layer: TokenLayer) -> bool:
    """Whether the layer is given the same vectors in all rows."""
    parts = observation.model.layout.split(observation.weights)
    before = (parts[name] for name in read_before(observation.model, layer))
    return all(bool((part == part[:1]).all()) for part in before)


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
    before = torch.cat([near.new_full((1,), _OUTSIDE), near.cummax(0).values[:-1] * _FURTHER])
    ends = (near > before.clamp(_ROUNDING, _OUTSIDE)).nonzero()
    length = int(ends[0]) if len(ends) else len(tokens)
    tokens[:length] = found[:length].cpu()
    return tokens
