"""Span: the gradient of the first layer that reads tokens is a sum of outer products with their vectors.

So its rows lie in the span of the vectors of just the tokens that were used, each at its place; as long as these are
fewer than a vector has numbers, every other token lies outside of it. Idea: Petrov et al., "DAGER: Exact Gradient
Inversion for Large Language Models" (NeurIPS 2024), who take the query matrix.
"""

from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks import sentences
from harness.attacks.adapted import layers_of, most_tokens, readings, require_one, text_of
from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.token_layers import (
    TokenLayer,
    candidates_at,
    nearest,
    outside,
    read_before,
    row_space,
    token_layer,
)
from harness.base.words import PAD, images_of
from harness.models.side_by_side import side_by_side
from harness.observation import Observation


@ATTACKS.register("span")
@validated_attack
class Span(ClosedForm):
    """It has no settings of its own."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        layer, model = token_layer(observation.model, "span"), observation.model
        low, several = layers_of(model), observation.examples > 1
        if several:
            require_one(low, observation.examples)
            sentences.first_attention(model)
        layers = low or (layer,)
        shared = {
            one.source: candidates_at(model, one.source, observation.weights[0])
            for one in layers
            if one.source == one.prefix and not several and _alike(observation, one)
        }

        def of_row(row: int) -> Tensor:
            if several:
                return images_of(sentences.of_row(observation, row)).flatten()
            weights, parts = observation.weights[row], model.layout.split(observation.target[row : row + 1])
            vectors = shared | {
                one.source: candidates_at(model, one.source, weights)
                for one in layers
                if one.source == one.prefix and one.source not in shared
            }
            own = {one.weight: parts[one.weight][0] for one in layers}
            text = text_of(readings(layers, own), vectors) if low else told(own[layer.weight], vectors[layer.source])
            return images_of(text).flatten()

        # A network that is run again takes the weights of one row at a time.
        known = len(shared) == len({one.source for one in layers})
        alone = known and observation.target.device.type == "cpu"
        return torch.stack(side_by_side(of_row, range(observation.rows), alone)).to(observation.target)

    def measures(self, observation: Observation, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Of adapters, how many tokens their rank lets anyone tell."""
        layers, parts = layers_of(observation.model), observation.model.layout.split(observation.target)
        if not layers:
            return {}
        most = [
            most_tokens(readings(layers, {one.weight: parts[one.weight][row] for one in layers}))
            for row in range(observation.rows)
        ]
        return {"most_tokens": torch.tensor(most)}


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
    basis = row_space(gradient)
    if not len(basis):
        return torch.full(vectors.shape[1:2], PAD)
    return nearest(outside(vectors, basis))
