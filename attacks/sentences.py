"""Sentences from the gradients of several texts: which of the tokens that were used stand together, and in which order.

How it is done is ours. The first layer that reads tokens says of each token at each place whether it may have been
there. The gradients of the tables of words and places are sums over the texts of a loss's derivatives, whose direction
follows the label: so they say, of each label, which words were used how often, and how long its texts are. The layer
behind the first attention reads vectors that depend on whole texts: a guess of a text is changed, token by token, into
the one whose vectors lie nearest to the row space of that layer's gradient, and is right where all of them lie in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment, nnls
from torch import Tensor, nn

from harness.attacks.token_layers import (
    Seen,
    TokenLayer,
    outside,
    row_space,
    stopped_at,
    token_layer,
)
from harness.attacks.token_rows import tables_of
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.base.words import PAD, images_of
from harness.models import RowModel, cross_entropy
from harness.models.batch_norm import in_evaluation_mode
from harness.observation import Observation

# A pair in the span of the first layer; a text all of whose vectors are in that of the second; how often a guess is
# changed, and how often a text is looked for anew.
_MAY, _RIGHT, _CHANGES, _TRIALS = 1e-4, 1e-3, 10, 4
# Of a label's weight at a place, what has to fall away where a text ends; of a text's weight, at least how much; and of
# a word's weight in a text, above which it is in it.
_FALL, _HEAVY, _USED = 0.25, 0.4, 0.35
_MORE = 0.15  # of a word, from trial to trial
_EACH = 2  # most guesses of a label and length for each text that is left
_SYNTHETIC, _LEAST = 16, 0.03
_NEVER = 50.0  # a cost above that of all that may be


@dataclass(frozen=True)
class MixingLayer:
    """The first attention, and the first linear layer behind it, which reads what attention made of each token."""

    attention: str
    linear: str


@lru_cache(maxsize=2)
def mixing_layer(model: RowModel) -> MixingLayer:
    """Find both in the order of a forward pass.

    Raises:
        UsageError: the network has no such layers.
    """
    attention = token_layer(model, "span").prefix
    if isinstance(model.plain_module.get_submodule(attention), nn.MultiheadAttention):
        called = [prefix.removesuffix(".") for prefix, _ in model.called_layers()]
        later = called[called.index(attention) + 1 :] if attention in called else []
        for name in later:
            layer = model.plain_module.get_submodule(name)
            # The matrix behind the heads is called as a part of attention itself.
            inside = name.startswith(f"{attention}.")
            if isinstance(layer, nn.Linear) and not inside and f"{name}.weight" in model.layout.names:
                return MixingLayer(attention, name)
    raise UsageError(
        f"attack 'span' puts several texts together behind a trained attention layer, which model {model.name!r} "
        "lacks; use --batch-size 1"
    )


@contextmanager
def _listening_to(attention: nn.Module, text: tuple[Tensor, Tensor | None] | None) -> Iterator[list[Any]]:
    """Collect what attention is given; with a ``text``, its tokens are what all others listen to."""
    heard: list[Any] = []

    def listen(_: nn.Module, given: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
        heard.append((given[0].detach(), named.get("key_padding_mask")))
        if text is None:
            return None
        keys, hidden = text
        count = len(given[0])
        named = named | {"key_padding_mask": None if hidden is None else hidden.expand(count, -1)}
        keys = keys.expand(count, -1, -1)
        return (given[0], keys, keys), named

    hook = attention.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        yield heard
    finally:
        hook.remove()


class Reader:
    """A network with weights (P,), stopped at its mixing layer."""

    def __init__(self, model: RowModel, weights: Tensor) -> None:
        self.layers, self.network = mixing_layer(model), model.plain(weights)
        self.dtype = weights.dtype

    def vectors(self, tokens: Tensor, text: Tensor | None = None) -> Tensor:
        """What the layer behind attention reads of tokens (N, T): (N, T, E).

        Args:
            text: (T,), to which attention listens; None where each row listens to itself.
        """
        context = None if text is None else self._heard(text)
        return self._read(tokens, context)[0]

    def _heard(self, text: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._read(text[None], None)[1]

    def _read(self, tokens: Tensor, context: tuple[Tensor, Tensor | None] | None) -> tuple[Tensor, Any]:
        attention = self.network.get_submodule(self.layers.attention)
        linear = self.network.get_submodule(self.layers.linear)
        with (
            torch.no_grad(), in_evaluation_mode(self.network), _listening_to(attention, context) as heard,
            stopped_at(linear) as given, suppress(Seen),
        ):  # fmt: skip
            self.network(images_of(tokens).to(self.dtype))
        return given.pop(), heard.pop()


@dataclass(frozen=True)
class Told:
    """What the tables say of one observation: the words that were used (W,), how much of each label (W, K) and of each
    place (T, K) they are, and which word may be where (W, T)."""

    words: Tensor
    of_words: Tensor
    of_places: Tensor
    may: Tensor


def told_by(observation: Observation, row: int, vectors: Tensor, layer: TokenLayer) -> Told | None:
    """Of one row; None where what was read is no number. ``vectors``: (V, T, E), of every token at every place."""
    model = observation.model
    words, learned = tables_of(model, "span")
    assert learned is not None  # as was required
    parts = {name: part[row].double() for name, part in model.layout.split(observation.target).items()}
    if not all(parts[name].isfinite().all() for name in (words, learned, layer.weight)):
        return None
    table, places = parts[words], parts[learned].flatten(0, -2)
    sizes = table.norm(dim=1)
    used = (sizes > _MAY * sizes.max()).nonzero()[:, 0]
    used = used[used != PAD]
    if not len(used):
        return None
    directions = _directions(model, observation.weights[row], used, learned)
    may = outside(vectors[used], row_space(parts[layer.weight])) < _MAY
    return Told(used, _shares(table[used], directions), _shares(places, directions), may)


def _directions(model: RowModel, weights: Tensor, used: Tensor, places: str) -> Tensor:
    """(K, E): where the loss of each label pulls a token, on average over made-up texts of the words that were used."""
    network, length = model.plain(weights), model.image_shape[-1]
    random = generator("span", "made-up texts")
    texts = used[torch.randint(len(used), (_SYNTHETIC, length), generator=random)]
    table = dict(network.named_parameters())[places]
    found = []
    with torch.enable_grad(), in_evaluation_mode(network):
        for label in range(model.classes):
            loss = cross_entropy(network, images_of(texts).to(weights), torch.full((_SYNTHETIC,), label))
            found.append(torch.autograd.grad(loss, table)[0].double().flatten(0, -2).mean(0))
    return torch.stack(found) * length


def _shares(rows: Tensor, directions: Tensor) -> Tensor:
    """How much (N, K) of each direction (K, E), none of them negative, makes up each row (N, E).

    A text of label y pulls towards p - e_y, so that directions weighed by the probabilities p add up to nothing: of all
    shares that fit as well, those with the least sum are taken.
    """
    least = _LEAST * directions.norm(dim=1).mean()
    known = torch.cat([directions.T, least.expand(1, len(directions))]).numpy()
    return torch.from_numpy(np.stack([nnls(known, np.append(row.numpy(), 0.0))[0] for row in rows]))


@dataclass(frozen=True)
class Target:
    """A text that may be there: its label, how many tokens it has, and what each of them weighs at least."""

    label: int
    length: int
    weight: float


def targets(told: Told, tokens: int, texts: int, trial: int) -> list[Target]:
    """Where the weight of a label falls from one place to the next, texts of that label end. The heaviest first.

    Args:
        tokens: how many all texts have that are left. texts: how many are left; the last one has all tokens.
        trial: from 0; every further one doubts less of what it sees.
    """
    reached = torch.cat([told.of_places, torch.zeros(1, told.of_places.shape[1]).double()])
    here, falls = reached[:-1], reached[:-1] - reached[1:]
    lengths = torch.arange(1, len(reached))[:, None].expand_as(here)
    if texts == 1:
        ends, falls = lengths == tokens, here
    else:
        heavy = falls * lengths > _HEAVY / 2**trial * here.sum() / texts
        ends = heavy & (falls > _FALL / 2**trial * here) & (lengths < tokens)
    found = [Target(label, place + 1, float(falls[place, label])) for place, label in ends.nonzero().tolist()]
    return sorted((one for one in found if one.weight > 0), key=lambda one: -one.length * one.weight)[: _EACH * texts]


def sentences(told: Told, reader: Reader, space: Tensor, examples: int) -> Tensor:
    """The texts (n, T) of an observation, empty where one was not found.

    Args:
        space: orthonormal rows that span the gradient of the layer behind attention: as many as there are tokens.
    """
    texts, count, tokens = torch.full((examples, told.may.shape[1]), PAD), 0, len(space)
    whole = told
    for trial in range(2 * _TRIALS):
        # What was taken out too much or too little may hide the others: in the end all is there again.
        told, bold = told if trial < _TRIALS else whole, trial % _TRIALS
        for target in targets(told, tokens, examples - count, bold):
            text = _searched(told, target, reader, space, trial)
            if text is None or (texts == text).all(1).any():
                continue
            texts[count], count, tokens = text, count + 1, tokens - int((text != PAD).sum())
            if count == examples:
                return texts
            told = _without(told, text)
    return texts


def _without(told: Told, text: Tensor) -> Told:
    """What is left without a text: its words weigh, each time, what those of them weigh that stand in no other text."""
    words, places = told.of_words.clone(), told.of_places.clone()
    gone, length = torch.stack([(text == word).sum() for word in told.words]), int((text != PAD).sum())
    label = int(words[gone > 0].sum(0).argmax())
    each = (words[gone > 0, label] / gone[gone > 0]).quantile(0.25)
    words[:, label] -= gone * each
    places[:length, label] -= each
    return replace(told, of_words=words.clamp_min(0.0), of_places=places.clamp_min(0.0))


def _searched(
    told: Told, target: Target, reader: Reader, space: Tensor, trial: int
) -> Tensor | None:  # fmt: skip
    """One text of that length, of the words that are left; None where the search ends elsewhere.

    A text is an assignment of words to places; costs are how far outside of ``space`` each word at each place lies
    when it listens to the last guess.
    """
    counts = told.of_words[:, target.label] / target.weight
    own = (counts > _USED).nonzero()[:, 0]
    # How often a word is used is known to about a quarter, and where it may be used too often nothing is lost.
    copies = own.repeat_interleave((counts[own] * (1 + _MORE * (trial % _TRIALS))).round().clamp(1, 8).long())
    if len(copies) < target.length:
        return None
    length, places = target.length, told.may.shape[1]
    rows = (copies[:, None] == own).long().argmax(1)
    may = told.may[own][:, :length]
    grid = torch.full((len(own), places), PAD)
    grid[:, :length] = told.words[own][:, None]
    random = generator("span", "guess", target.label, length, trial)
    costs, text, before = torch.rand(may.shape, generator=random).double(), torch.empty(0), set[bytes]()
    for _ in range(_CHANGES):
        text = torch.full((places,), PAD)
        order, chosen = linear_sum_assignment(costs.where(may, _NEVER)[rows].T.numpy())
        text[torch.from_numpy(order)] = told.words[copies[torch.from_numpy(chosen)]]
        if text.numpy().tobytes() in before:
            break
        before.add(text.numpy().tobytes())
        costs = outside(reader.vectors(grid, text)[:, :length], space)
    off = outside(reader.vectors(text[None])[0, :length], space).max()
    return text if float(off) < _RIGHT else None


def require_tables(model: RowModel) -> None:
    """Raises UsageError: the network has no trained tables of words and places, which tell texts apart."""
    if tables_of(model, "span")[1] is None:
        raise UsageError(
            f"attack 'span' tells several texts apart by learned places, which model {model.name!r} lacks; use "
            "--batch-size 1"
        )


def of_row(observation: Observation, row: int, layer: TokenLayer, vectors: Tensor) -> Tensor:
    """The texts (n, T) of one row. ``vectors``: (V, T, E), of every token at every place."""
    model, weights = observation.model, observation.weights[row]
    told = told_by(observation, row, vectors, layer)
    if told is None:
        return torch.full((observation.examples, model.image_shape[-1]), PAD)
    name = f"{mixing_layer(model).linear}.weight"
    space = row_space(model.layout.split(observation.target)[name][row])
    return sentences(told, Reader(model, weights), space, observation.examples)
