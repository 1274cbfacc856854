"""Span: the gradient of the first layer that reads tokens is a sum of outer products with their vectors.

So its rows lie in the span of the vectors of just the tokens that were used, each at its place; as long as these are
fewer than a vector has numbers, every other token lies outside of it. Idea: Petrov et al., "DAGER: Exact Gradient
Inversion for Large Language Models" (NeurIPS 2024), who take the query matrix. Several texts are put together by their
beginnings where the network reads no later words (``prefixes``), and by what words listen to elsewhere (``sentences``).
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks import sentences
from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.prefixes import prefix_layer, texts_by_prefix
from harness.attacks.token_layers import (
    Candidates,
    TokenLayer,
    Vectors,
    directions,
    end_of,
    is_noisier,
    layers_of,
    most_tokens,
    nearest,
    outside,
    rank_above_noise,
    rank_of,
    readings,
    require_one,
    row_space,
    rows_by_error,
    text_of,
    token_layer,
)
from harness.attacks.token_rows import moved, used_rows
from harness.base.words import PAD, images_of
from harness.models.side_by_side import side_by_side
from harness.observation import Observation


@ATTACKS.register("span")
@validated_attack
class Span(ClosedForm):
    """Attack without settings of its own."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        layer, model = token_layer(observation.model, "span"), observation.model
        low = layers_of(model)
        if observation.unknowns > 1:
            require_one(low, observation.unknowns)
            several = _several(observation)
            return torch.stack([images_of(several(row)).flatten() for row in range(observation.rows)]).to(
                observation.target
            )
        candidates = Candidates(observation, low or (layer,))

        def of_row(row: int) -> Tensor:
            parts, vectors = model.layout.split(observation.target[row : row + 1]), cache(partial(candidates, row=row))
            text = torch.full((model.image_shape[-1],), PAD)
            if observation.certainty is None and low:
                found = readings(low, {one.weight: parts[one.weight][0] for one in low})
                text = text_of(found, vectors, len(text))
            elif observation.certainty is None:
                text = told(parts[layer.weight][0], vectors(layer.source))
            if not bool(text.any()):
                text = likeliest(observation.take(torch.tensor([row])), low or (layer,), vectors)
            return images_of(text).flatten()

        alone = candidates.alike and observation.target.device.type == "cpu"
        if alone and not low:
            candidates(layer.source, row=0)  # by all threads
        return torch.stack(side_by_side(of_row, range(observation.rows), alone)).to(observation.target)

    def measures(self, observation: Observation, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return how many tokens the rank of adapters lets anyone tell. Return without adapters the width of the layer
        that reads tokens and the rank of its gradient. Add, for several texts, the rank of the gradient that tells
        their beginnings."""
        layers, split = layers_of(observation.model), observation.model.layout.split
        if not layers:
            layer, several = token_layer(observation.model, "span"), observation.unknowns > 1
            later = prefix_layer(observation.model) if several else None
            made = {"width": torch.full((observation.rows,), layer.width)}
            ranks = torch.tensor(_ranks(observation, [one for one in (layer, later) if one is not None]))
            return made | dict(zip(("rank", "beginnings"), ranks, strict=False))
        there = split(moved(observation))
        parts = {
            name: one * there[name].any((1, 2), keepdim=True) if one.dim() == 3 else one
            for name, one in split(observation.target).items()
        }
        most = [
            most_tokens(readings(layers, {one.weight: parts[one.weight][row] for one in layers}))
            for row in range(observation.rows)
        ]
        return {"most_tokens": torch.tensor(most)}


def _ranks(observation: Observation, layers: Sequence[TokenLayer]) -> list[list[int]]:
    """Return the rank of each layer's gradient in every row. Leave out what rounding accounts for where the rank fills
    a whole width."""
    parts, alone = observation.model.layout.split(observation.target), observation.target.device.type == "cpu"
    ranks = [side_by_side(rank_of, list(parts[one.weight]), alone) for one in layers]
    for row in range(observation.rows):
        if all(of[row] < one.width for of, one in zip(ranks, layers, strict=True)):
            continue
        seen = observation.take(torch.tensor([row]))
        for of, one in zip(ranks, layers, strict=True):
            ((_, rows),) = rows_by_error(seen, (one,))
            of[row] = rank_above_noise(rows)
    return ranks


def _several(observation: Observation) -> Callable[[int], Tensor]:
    """Return what gives the texts (n, T) of a row: by their beginnings where the network reads no later words."""
    later = prefix_layer(observation.model)
    if later is not None:
        return partial(texts_by_prefix, observation, later)
    sentences.first_attention(observation.model)
    return partial(sentences.of_row, observation)


def likeliest(seen: Observation, layers: tuple[TokenLayer, ...], vectors: Vectors) -> Tensor:
    """The text (T,) of one row that rounding blurs: of weights that moved little, or of the first step of Adam, which
    tells small numbers nearly exactly and large ones badly.

    Each row of a matrix's gradient is weighed by its error. Where the tables are trained, what their rows did not move
    was not used. Under more noise than rounding, nothing is told.
    """
    none = torch.full((seen.model.image_shape[-1],), PAD)
    if not bool(seen.target.isfinite().all()):
        return none
    scores = torch.zeros(())
    for source, rows in rows_by_error(seen, layers):
        if is_noisier(rows):
            return none
        scores = scores + directions(rows, vectors(source), 1.0)
    words, places = used_rows(seen)
    scores[: PAD + 1] = -torch.inf
    if words is not None:
        scores[~words] = -torch.inf
    best, text = scores.max(0)
    if not bool((best > 0).any()):
        return none
    text[end_of(best) if places is None else int(places.sum()) :] = PAD
    return text.cpu()


def told(gradient: Tensor, vectors: Tensor) -> Tensor:
    """The text (T,) whose tokens' vectors lie nearest to the rows of a gradient (O, E); it ends where none is near.

    Rows that span all of E, as behind noise, leave nothing outside but rounding: they tell no text.

    Args:
        vectors: (V, T, E), of every token at every place.
    """
    basis = row_space(gradient)
    if not 0 < len(basis) < basis.shape[1]:
        return torch.full(vectors.shape[1:2], PAD)
    return nearest(outside(vectors, basis))
