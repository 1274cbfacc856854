"""Where a network of texts reads its tokens: which weights, and from which vectors. Found by what it computes."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from harness.base.errors import UsageError
from harness.base.words import PAD, images_of
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode

_SAME = 1e-4  # of a vector's length, up to which two are one
_TOGETHER, _ROWS = 16, 4096
#: A singular value below that share of the largest one is rounding.
_ROUNDING = 3e-7
#: A token whose vector lies that far outside of the span is none; nor is one that lies so much further outside than all
#: before it, where that is more than rounding.
_OUTSIDE, _FURTHER, _RIGHT = 0.1, 10.0, 1e-3


@dataclass(frozen=True)
class TokenLayer:
    """The first layer that multiplies the vector of each token, which depends on the token and its place alone.

    Attributes:
        prefix: of its module. weight: the name of its matrix, whose columns stand for the numbers of a vector.
        width: numbers of a vector. source: prefix of the first layer that reads the same vectors.
    """

    prefix: str
    weight: str
    width: int
    source: str


class Seen(Exception):
    """What the layer was given is known, and nothing after it has to be computed."""


@contextmanager
def stopped_at(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what a layer is given; the pass ends there."""
    given: list[Tensor] = []

    def see(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        given.append(arguments[0])
        raise Seen

    hook = layer.register_forward_pre_hook(see)
    try:
        yield given
    finally:
        hook.remove()


def vectors_at(model: RowModel, layer: str, weights: Tensor, tokens: Tensor) -> Tensor | None:
    """What the layer of that name is given of tokens (N, T) by a network with weights (P,): (N, T, E); None if it is
    never called."""
    network, parts = model.plain(weights), []
    own = next(network.parameters())
    with torch.no_grad(), in_evaluation_mode(network), stopped_at(network.get_submodule(layer)) as given:
        for some in tokens.split(_TOGETHER):
            try:
                network(images_of(some).to(own))
            except Seen:
                parts.append(given.pop())
    return torch.cat(parts) if parts else None


def token_layer(model: RowModel, attack: str) -> TokenLayer:
    """The first of :func:`token_layers`."""
    return token_layers(model, attack)[0]


@lru_cache(maxsize=2)
def token_layers(model: RowModel, attack: str) -> tuple[TokenLayer, ...]:
    """The trained layers that read vectors of single tokens, of which the first is the one by which tokens are told.

    Raises:
        UsageError: the network reads no texts, or none of its trained layers reads vectors of single tokens.
    """
    vocabulary, places = require_texts(model, attack), model.image_shape[-1]
    # Two texts that share every second token: a layer that mixes tokens gives these other vectors.
    one = torch.arange(places) % (vocabulary - 2) + 2
    other = torch.where(torch.arange(places) % 2 == 0, one, one.flip(0))
    same, weights = (one == other).nonzero()[:, 0], model.initial_weights([("tokens",)])[0]
    found: list[TokenLayer] = []
    read: dict[str, Tensor] = {}
    for name, layer in model.plain_module.named_modules():
        weight = _matrix_of(name, layer, model)
        if weight is None:
            continue
        given = vectors_at(model, name, weights, torch.stack([one, other]))
        if given is None:  # it is never called
            continue
        if given.dim() == 3 and given.shape[1] == places:
            apart = (given[0, same] - given[1, same]).norm(dim=1)
            if (apart <= _SAME * given[0, same].norm(dim=1)).all():
                like = (source for source, seen in read.items() if torch.equal(seen, given))
                found.append(TokenLayer(name, weight, given.shape[2], next(like, name)))
                read.setdefault(found[-1].source, given)
                continue
        break
    if found:
        return tuple(found)
    raise UsageError(
        f"attack {attack!r} needs a trained layer that reads the vectors of single tokens, which model {model.name!r} "
        "lacks; use --attack auto"
    )


def _matrix_of(name: str, layer: nn.Module, model: RowModel) -> str | None:
    """The name of a layer's matrix (out, E) that is trained; None where it has none."""
    prefix = f"{name}." if name else ""
    own = {nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}.get(type(layer))
    return f"{prefix}{own}" if own and f"{prefix}{own}" in model.layout.names else None


def require_texts(model: RowModel, attack: str) -> int:
    """The size of the vocabulary. Raises UsageError: the network reads images."""
    if model.vocabulary is None:
        raise UsageError(
            f"attack {attack!r} reads texts, and model {model.name!r} takes images; use --dataset notes, or another "
            "--attack"
        )
    return model.vocabulary


@lru_cache(maxsize=2)
def read_before(model: RowModel, layer: TokenLayer) -> tuple[str, ...]:
    """Names of the weights on which depends what a layer is given."""
    network = model.plain(model.initial_weights([("tokens",)])[0])
    text = torch.arange(model.image_shape[-1])[None] % ((model.vocabulary or 0) - 2) + 2
    named = {name: one for name, one in network.named_parameters() if name in model.layout.names}
    with torch.enable_grad(), in_evaluation_mode(network), stopped_at(network.get_submodule(layer.prefix)) as given:
        with suppress(Seen):
            network(images_of(text).to(next(iter(named.values()))))
        vectors = given.pop().square().sum()
        of = torch.autograd.grad(vectors, list(named.values()), allow_unused=True) if vectors.requires_grad else ()
    return tuple(name for name, one in zip(named, of, strict=False) if one is not None)


def candidates_at(model: RowModel, layer: str, weights: Tensor) -> Tensor:
    """The vectors (V, T, E) that the layer of that name is given of every token at every place."""
    vocabulary, places = model.vocabulary or 0, model.image_shape[-1]
    every = torch.arange(vocabulary)[:, None].expand(-1, places).clone()
    every[PAD] = PAD + 1  # a text of no tokens has no vectors
    vectors = vectors_at(model, layer, weights, every)
    assert vectors is not None  # it was called when it was found
    return vectors


def row_space(gradient: Tensor) -> Tensor:
    """Orthonormal rows (r, E) that span those of a gradient (O, E), rounding apart; none of one that is no number."""
    values = gradient.double()
    if not values.isfinite().all():
        return values[:0]
    _, sizes, rows = torch.linalg.svd(values, full_matrices=False)
    return rows[sizes > _ROUNDING * sizes[0].clamp_min(1e-300)]


def outside(vectors: Tensor, basis: Tensor) -> Tensor:
    """How much of each vector (..., E) lies outside of a span (r, E), as a share of its length.

    By Pythagoras, which is exact to 1e-8, and part by part: memory that is asked for anew takes longer than products.
    """
    parts = []
    for some in vectors.flatten(0, -2).split(_ROWS):
        values = some.to(basis)
        inside = (values @ basis.T).square().sum(1) / values.square().sum(1).clamp_min(1e-300)
        parts.append((1.0 - inside).clamp_min(0.0).sqrt())
    return torch.cat(parts).unflatten(0, vectors.shape[:-1])


def nearest(off: Tensor) -> Tensor:
    """The text (T,) of the tokens that lie least outside of a span (V, T); it ends where none is near."""
    tokens = torch.full(off.shape[1:2], PAD)
    near, found = off.min(0)
    before = torch.cat([near.new_full((1,), _OUTSIDE), near.cummax(0).values[:-1] * _FURTHER])
    ends = (near > before.clamp(_RIGHT, _OUTSIDE)).nonzero()
    length = int(ends[0]) if len(ends) else len(tokens)
    tokens[:length] = found[:length].cpu()
    return tokens
