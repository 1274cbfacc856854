"""Span: the gradient of the first layer that reads tokens is a sum of outer products with their vectors.

So its rows lie in the span of the vectors of just the tokens that were used, each at its place; as long as these are
fewer than a vector has numbers, every other token lies outside of it. Idea: Petrov et al., "DAGER: Exact Gradient
Inversion for Large Language Models" (NeurIPS 2024), who take the query matrix. Several texts are put together by their
beginnings where the network reads no later words, and by what words listen to elsewhere (``sentences``).

By their beginnings, as they do for decoders: what a later layer is given at a place depends on the words up to there,
and on no others. So the gradient of its matrix tells the beginnings of texts, as that of the first layer tells words:
their vectors lie in the span of its rows, and those of other beginnings outside, as long as there are fewer than a
vector has numbers.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks import sentences
from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.token_layers import (
    Candidates,
    TokenLayer,
    Vectors,
    candidates_at,
    directions,
    end_of,
    is_noisier,
    layers_of,
    matrix_of,
    most_tokens,
    nearest,
    other_words,
    outside,
    rank_above_noise,
    rank_of,
    readings,
    require_a_head,
    require_one,
    row_space,
    rows_by_error,
    same_vectors,
    space_above_noise,
    text_of,
    token_layer,
    token_layers,
    trial_text,
    vectors_at,
)
from harness.attacks.token_rows import moved, used_rows
from harness.base.words import PAD, images_of
from harness.models import RowModel
from harness.models.side_by_side import side_by_side
from harness.observation import Observation

# How far outside of a span a vector may lie that rounding put there, of products, and at most; beginnings of each text
# that are followed at most.
_NEAR, _BLURRED, _FOLLOWED = 1e-3, 0.1, 4
# Where all is blurred: words that are tried at a place, for each text and at most; beginnings that are followed, and
# those of one.
_TRIED, _MOST_TRIED, _KEPT, _OF_ONE = 6, 24, 12, 4


@ATTACKS.register("span")
@validated_attack
class Span(ClosedForm):
    """Attack without settings of its own."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        layer, model = token_layer(observation.model, "span"), observation.model
        require_a_head(observation, "span")
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


@lru_cache(maxsize=2)
def prefix_layer(model: RowModel) -> TokenLayer | None:
    """The first trained layer that is given vectors of the words up to a place; None if later words change them."""
    weights, text, half = _trial(model)
    before = {one.prefix for one in token_layers(model, "span")}
    other = torch.cat([text[:half], other_words(text[half:])])
    for name, layer in model.plain_module.named_modules():
        weight = matrix_of(name, layer, model)
        if weight is None or name in before:
            continue
        given = vectors_at(model, name, weights, torch.stack([text, other]))
        if given is None:  # it is never called
            continue
        alike = given.dim() == 3 and given.shape[1] == len(text) and same_vectors(given[0, :half], given[1, :half])
        return TokenLayer(name, weight, given.shape[2], name) if alike else None
    return None


@lru_cache(maxsize=2)
def takes_beginnings(model: RowModel, layer: TokenLayer) -> bool:
    """Return whether the network gives the same vectors of a text that is cut, which costs less."""
    weights, text, half = _trial(model)
    try:
        cut = vectors_at(model, layer.prefix, weights, text[None, :half])
    except RuntimeError:  # its places are as many as a whole text has
        return False
    whole = vectors_at(model, layer.prefix, weights, text[None])
    assert cut is not None and whole is not None  # it was called when it was found
    return cut.shape[1] == half and same_vectors(cut[0], whole[0, :half])


def _trial(model: RowModel) -> tuple[Tensor, Tensor, int]:
    """Weights (P,), a text (T,) of many words, and half of its places."""
    text = trial_text(model)
    return model.initial_weights([("tokens",)])[0], text, max(1, len(text) // 2)


def texts_by_prefix(observation: Observation, later: TokenLayer, row: int) -> Tensor:
    """The texts (n, T) of one row; one that is not found has no tokens."""
    model, weights = observation.model, observation.weights[row]
    first, seen = token_layers(model, "span")[0], observation.take(torch.tensor([row]))
    found = torch.full((observation.unknowns, model.image_shape[-1]), PAD)
    if observation.certainty is not None:
        return _one_by_one(seen, first, later, found)
    spaces = _spaces(seen, (first, later))
    if spaces is None:
        return found
    (words, beginnings), near = spaces
    may = outside(candidates_at(model, first.source, weights), words) < near
    may[: PAD + 1] = False
    used = used_rows(seen)[0]
    if used is not None:
        may[~used] = False
    texts, ended = found[:1], found[:0]
    for place in range(found.shape[1]):
        tokens = may[:, place].nonzero()[:, 0].cpu()
        longer = _longer(texts, tokens, place)
        off = _outside(model, later, weights, longer, place, beginnings)
        kept = off.argsort()[: _FOLLOWED * len(found)]
        kept = kept[off[kept] < near]
        whole = torch.ones(len(texts), dtype=torch.bool)
        whole[kept // max(1, len(tokens))] = False
        ended, texts = torch.cat([ended, texts[whole]]), longer[kept]
        if not len(texts):
            break
    ended = torch.cat([texts, ended])
    # The longest are surest: every word of theirs was told.
    chosen = ended[(ended != PAD).sum(1).argsort(descending=True, stable=True)[: len(found)]]
    found[: len(chosen)] = chosen
    return _with_equal_ones(seen, found)


def _with_equal_ones(seen: Observation, found: Tensor) -> Tensor:
    """The texts (n, T) with those that are equal to one of them or begin one, which no beginning tells: all of them
    together explain the gradient."""
    told, places = found[found.any(1)], torch.arange(found.shape[1])
    begun = torch.where(places <= places[:, None, None], told, PAD).flatten(0, 1).unique(dim=0)
    if not 0 < len(told) < len(found):
        return found
    shared = sentences.explained(seen.model, seen.weights, seen.target[0], len(found), begun[begun.any(1)])
    return found if shared is None else sentences.with_copies(shared[0], shared[1] / shared[1].sum(), len(found))


def _longer(texts: Tensor, tokens: Tensor, place: int) -> Tensor:
    """Every text (N, T) with every token (K,) at a place, (N K, T)."""
    longer = texts.repeat_interleave(len(tokens), 0)
    longer[:, place] = tokens.repeat(len(texts))
    return longer


def _one_by_one(seen: Observation, first: TokenLayer, later: TokenLayer, found: Tensor) -> Tensor:
    """The texts (n, T) behind one row that the first step of Adam blurs, the surest first; what lies in the span of its
    beginnings is left out when the next one is sought, which of equal texts finds one.

    Mosher and Leahy, "Source Localization Using Recursively Applied and Projected (RAP) MUSIC" (IEEE Transactions on
    Signal Processing, 1999), find the sources of waves so.
    """
    ((_, words), (_, rows)) = rows_by_error(seen, (first, later))
    if not bool(seen.target.isfinite().all()) or is_noisier(words) or is_noisier(rows):
        return found
    likely = directions(words, candidates_at(seen.model, first.source, seen.weights[0]), 1.0).cpu()
    likely[: PAD + 1] = -torch.inf
    used, places = used_rows(seen)
    if used is not None:
        likely[~used.cpu()] = -torch.inf
    likely = likely if places is None else likely[:, : int(places.sum())]
    possible = int((likely > -torch.inf).any(1).sum())
    if not possible:  # nothing moved
        return found
    tried = likely.topk(min(_TRIED * len(found), _MOST_TRIED, possible), 0)
    known = rows.new_zeros(rows.shape[1], 0)
    for text in found:
        text[: likely.shape[1]] = _likeliest(seen, later, rows, known, tried.indices, text)
        vectors = vectors_at(seen.model, later.prefix, seen.weights[0], text[None])
        assert vectors is not None  # it was called when it was found
        known = torch.linalg.qr(torch.cat([known, vectors[0, text != PAD].to(rows).T], 1))[0]
        if known.shape[1] == len(known):
            break
    return found


def _likeliest(
    seen: Observation, later: TokenLayer, rows: Tensor, known: Tensor, tried: Tensor, empty: Tensor
) -> Tensor:
    """The text (L,) whose beginnings are the likeliest behind rows (O, E), each over its error.

    Args:
        known: (E, K), orthonormal directions that count no more. tried: (W, L), words at each place.
    """
    rest, texts, scores = rows - rows @ known @ known.T, empty[None], rows.new_zeros(1, 0)
    for place, tokens in enumerate(tried.T):
        longer = _longer(texts, tokens, place)
        vectors = _vectors(seen.model, later, seen.weights[0], longer, place).to(rows)
        told = directions(rest, (vectors - vectors @ known @ known.T)[None], 1.0)[0]
        sums = torch.cat([scores.repeat_interleave(len(tokens), 0), told[:, None]], 1)
        best = sums.sum(1).view(len(texts), -1).topk(min(_OF_ONE, len(tokens)), 1)
        index = (best.indices + len(tokens) * torch.arange(len(texts), device=rows.device)[:, None]).flatten()
        kept = index[best.values.flatten().topk(min(_KEPT, len(index))).indices]
        texts, scores = longer[kept.cpu()], sums[kept]
    text = texts[0, : tried.shape[1]].clone()
    text[end_of(scores[0]) :] = PAD
    return text


def _spaces(seen: Observation, layers: tuple[TokenLayer, ...]) -> tuple[list[Tensor], float] | None:
    """The span (r, E) of each layer's gradient of one row, and how far outside of it a vector may lie; None where one
    of them is nothing or everything, even without the directions that the rounding of sent weights accounts for."""
    if not bool(seen.target.isfinite().all()):
        return None
    parts = seen.model.layout.split(seen.target)
    exact = [row_space(parts[one.weight][0]) for one in layers]
    if all(0 < len(space) < space.shape[1] for space in exact):
        return exact, _NEAR
    blurred = [space_above_noise(rows) for one in layers for _, rows in rows_by_error(seen, (one,))]
    near = min(max(_NEAR, *(off for _, off in blurred)), _BLURRED)
    spaces = [space for space, _ in blurred]
    return (spaces, near) if all(0 < len(space) < space.shape[1] for space in spaces) else None


def _outside(
    model: RowModel, later: TokenLayer, weights: Tensor, texts: Tensor, place: int, basis: Tensor
) -> Tensor:  # fmt: skip
    """Return how far the vectors that a layer is given at a place of texts (N, T) lie outside of a span: (N,)."""
    if not len(texts):
        return torch.zeros(0)
    return outside(_vectors(model, later, weights, texts, place), basis).cpu()


def _vectors(model: RowModel, later: TokenLayer, weights: Tensor, texts: Tensor, place: int) -> Tensor:
    """Return what a layer is given at a place of texts (N, T): (N, E)."""
    asked = texts[:, : place + 1] if takes_beginnings(model, later) else texts
    vectors = vectors_at(model, later.prefix, weights, asked)
    assert vectors is not None  # it was called when it was found
    return vectors[:, place]
