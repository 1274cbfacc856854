"""Layers by which a network of texts reads tokens: their weights and input vectors. Found by what it computes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from harness.attacks.attacker import SHUT_OUT
from harness.base.errors import UsageError
from harness.base.local_optimizer import spacing
from harness.base.randomness import generator
from harness.base.words import PAD, images_of
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode
from harness.observation import Observation

_SAME = 1e-4  # of a vector's length, up to which two are one
_TOGETHER, _ROWS = 16, 4096
#: A singular value below that share of the largest one is rounding.
_ROUNDING = 3e-7
#: A token whose vector lies that far outside of the span is none; nor is one that lies so much further outside than all
#: before it, where that is more than rounding.
_OUTSIDE, _FURTHER, _RIGHT = 0.1, 10.0, 1e-3
#: What two parts of scores may be off by, of what all are, so that a text ends between them.
_FALLS = 0.5


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
    """Signal that the input of the layer is known, and nothing after it has to be computed."""


@contextmanager
def stopped_at(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what a layer is given, examples first; the pass ends there."""
    given: list[Tensor] = []
    turned = isinstance(layer, nn.MultiheadAttention) and not layer.batch_first

    def see(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        given.append(arguments[0].transpose(0, 1) if turned else arguments[0])
        raise Seen

    hook = layer.register_forward_pre_hook(see)
    try:
        yield given
    finally:
        hook.remove()


def vectors_at(model: RowModel, layer: str, weights: Tensor, tokens: Tensor) -> Tensor | None:
    """Return what the layer of that name is given of tokens (N, T) by a network with weights (P,): (N, T, E); None if
    it is never called."""
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
    require_texts(model, attack)
    one, places = trial_text(model), model.image_shape[-1]
    # Two texts that share every second token: a layer that mixes tokens gives these other vectors.
    same, weights = torch.arange(0, places, 2), model.initial_weights([("tokens",)])[0]
    other = other_words(one).index_copy(0, same, one[same])
    found: list[TokenLayer] = []
    read: dict[str, Tensor] = {}
    for name, layer in model.plain_module.named_modules():
        weight = matrix_of(name, layer, model)
        if weight is None:
            continue
        given = vectors_at(model, name, weights, torch.stack([one, other]))
        if given is None:  # it is never called
            continue
        if given.dim() == 3 and given.shape[1] == places and same_vectors(given[0, same], given[1, same]):
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


def trial_text(model: RowModel) -> Tensor:
    """A text (T,) of as many different words as may be, from number 2 on."""
    return torch.arange(model.image_shape[-1]) % ((model.vocabulary or 0) - 2) + 2


def other_words(text: Tensor) -> Tensor:
    """A text (T,) that has another word at every place than a :func:`trial_text`, however few words there are."""
    return text - 1


def same_vectors(ones: Tensor, others: Tensor) -> bool:
    """Return whether vectors (N, E) are the same but for rounding."""
    return bool(((ones - others).norm(dim=1) <= _SAME * ones.norm(dim=1)).all())


def matrix_of(name: str, layer: nn.Module, model: RowModel) -> str | None:
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


def require_a_head(observation: Observation, attack: str) -> None:
    """Raises UsageError: a head of zeros, as torchvision makes it, lets no gradient below it in its first step.

    Weights alone decide, which everybody knows: what a victim's gradient is must not end the attack on another.
    """
    head = _head_of(observation.model) if observation.local_steps == 1 else None
    if head is None:
        return
    parts = observation.model.layout.split(observation.weights)
    weights = parts[head] if head in parts else observation.model.plain_module.get_parameter(head)[None]
    if not weights.flatten(1).any(1).all():
        raise UsageError(
            f"attack {attack!r} is {SHUT_OUT} the head's weights are zero, so that no gradient goes below it; use "
            "--weights, or trained ones with --training"
        )


@lru_cache(maxsize=2)
def _head_of(model: RowModel) -> str | None:
    """The name of the weight of the last linear layer that gives a number for each class or word; None without one."""
    called, sizes = reversed(model.called_layers()), (model.classes, model.vocabulary)
    linear = (prefix for prefix, layer in called if isinstance(layer, nn.Linear) and layer.out_features in sizes)
    return next((f"{prefix}weight" for prefix in linear), None)


def tried_gradients(
    model: RowModel, example: Tensor, layer: nn.Module | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """The gradient of an example (C, H, W) by every parameter that it uses, by name, at weights none of which is zero;
    and that by what a layer puts out first, empty without one."""
    own, nudges = next(model.plain_module.parameters()), list[Tensor]()
    weights = model.initial_weights([("patches",)])
    weights = weights + 0.02 * torch.randn(weights.shape, generator=generator("patches", "weights"))
    named = {name: part[0].to(own).requires_grad_() for name, part in model.layout.split(weights).items()}

    def nudge(_: nn.Module, __: object, made: Tensor) -> Tensor:
        nudges.append(torch.zeros_like(made).requires_grad_())
        return made + nudges[-1]

    with ExitStack() as stack:
        stack.enter_context(in_evaluation_mode(model.plain_module))  # one example has no variance in a batch
        if layer is not None:
            stack.callback(layer.register_forward_hook(nudge).remove)
        logits = functional_call(model.plain_module, named, (example[None].to(own),))
    loss = functional.cross_entropy(logits, logits.new_zeros(1, dtype=torch.long))
    given = torch.autograd.grad(loss, [*named.values(), *nudges[:1]], allow_unused=True)
    made = {name: one for name, one in zip(named, given, strict=False) if one is not None}
    return made, given[-1] if nudges and given[-1] is not None else own.new_zeros(0)


@lru_cache(maxsize=2)
def read_before(model: RowModel, layer: TokenLayer) -> tuple[str, ...]:
    """Names of the weights on which depends what a layer is given."""
    network = model.plain(model.initial_weights([("tokens",)])[0])
    text = trial_text(model)[None]
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


class Candidates:
    """The vectors (V, T, E) that layers are given in a row, worked out when they are asked for; once for all rows where
    these have the same weights up to there."""

    def __init__(self, observation: Observation, layers: tuple[TokenLayer, ...]) -> None:
        self._observation, self._kept, self._lock = observation, dict[str, Tensor](), Lock()
        parts = observation.model.layout.split(observation.weights)
        before = {one.source: read_before(observation.model, one) for one in layers if one.source == one.prefix}
        self._alike = {
            source: all(bool((parts[name] == parts[name][:1]).all()) for name in names)
            for source, names in before.items()
        }

    @property
    def alike(self) -> bool:
        """Return whether all rows are given the same vectors. Else a network that is run again takes weights row by
        row."""
        return all(self._alike.values())

    def __call__(self, source: str, row: int) -> Tensor:
        with self._lock:
            if source in self._kept:
                return self._kept[source]
            made = candidates_at(self._observation.model, source, self._observation.weights[row])
            if self._alike[source]:
                self._kept[source] = made
            return made


def row_space(gradient: Tensor) -> Tensor:
    """Orthonormal rows (r, E) that span those of a gradient (O, E), rounding apart; none of one that is no number."""
    values = gradient.double()
    if not values.isfinite().all():
        return values[:0]
    _, sizes, rows = torch.linalg.svd(values, full_matrices=False)
    return rows[_counted(sizes)]


def rank_of(gradient: Tensor) -> int:
    """Return how many rows :func:`row_space` has, in a fraction of its time."""
    values = gradient.double()
    return int(_counted(torch.linalg.svdvals(values)).sum()) if values.isfinite().all() else 0


def _counted(sizes: Tensor) -> Tensor:
    """Return which singular values, in falling order, are more than rounding."""
    return sizes > _ROUNDING * sizes[0].clamp_min(1e-300)


def outside(vectors: Tensor, basis: Tensor) -> Tensor:
    """Return how much of each vector (..., E) lies outside of a span (r, E), as a share of its length.

    By Pythagoras, which is exact to 1e-8, and part by part: memory that is asked for anew takes longer than products.
    """
    parts = []
    for some in vectors.flatten(0, -2).split(_ROWS):
        values = some.to(basis)
        inside = (values @ basis.T).square().sum(1) / values.square().sum(1).clamp_min(1e-300)
        parts.append((1.0 - inside).clamp_min(0.0).sqrt())
    return torch.cat(parts).unflatten(0, vectors.shape[:-1])


def directions(gradient: Tensor, vectors: Tensor, deviation: float) -> Tensor:
    """Return how likely it is (V, T) that vectors (V, T, E) are behind the rows of a gradient (O, E), in natural
    logarithms and up to a constant. The gradient has noise of a known deviation on each number.

    What lies outside of a span by :func:`outside` lies here along directions with no more than noise, each weighed by
    how much of it is noise: Capon, "High-Resolution Frequency-Wavenumber Spectrum Analysis" (Proceedings of the IEEE
    1969), tells waves so. As many directions bear witness as are more than noise.
    """
    _, sizes, rows = torch.linalg.svd(gradient.double(), full_matrices=False)
    power = sizes.square() / len(gradient)
    signal = 1 - deviation**2 / power.clamp_min(max(deviation**2, 1e-300))
    weighed = (rows * signal.sqrt()[:, None])[signal > 0]
    return -signal.sum() * outside(vectors, weighed).clamp_min(_ROUNDING).log()


def errors_of(seen: Observation) -> Tensor:
    """Deviation (R, P) of each number that was read: what rounding of the weights that a client sends leaves in it."""
    if seen.certainty is not None and seen.reading is not None:
        return seen.reading.error(seen.target.double(), seen.weights)
    rate = seen.learning_rate if seen.reading is None else seen.reading.rate * seen.reading.steps
    return spacing(seen.weights.abs(), seen.weights.dtype).double() / (rate * 12**0.5)


def rows_by_error(seen: Observation, layers: tuple[TokenLayer, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield the rows (O, E) of gradients, each over its error, with the prefix of the layer whose vectors they are
    of. The observation has one row.

    After the first step of Adam a row is known the better the smaller the derivative behind it.
    """
    parts, errors = (seen.model.layout.split(one) for one in (seen.target.double(), errors_of(seen)))
    for source in dict.fromkeys(one.source for one in layers):
        alike = [one.weight for one in layers if one.source == source]
        rows = [parts[name][0] / errors[name][0].square().mean(1, keepdim=True).sqrt() for name in alike]
        yield source, torch.cat(rows)


def is_noisier(rows: Tensor) -> bool:
    """Return whether rows (O, E) over their errors have more noise than these: in every direction."""
    return rank_above_noise(rows) == min(rows.shape)


def rank_above_noise(rows: Tensor) -> int:
    """Return in how many directions rows (O, E) over their errors are more than noise. Rows that are no numbers count
    in all directions."""
    if not rows.isfinite().all():
        return min(rows.shape)
    return int((torch.linalg.svdvals(rows) > _largest_of_noise(rows)).sum())


def space_above_noise(rows: Tensor) -> tuple[Tensor, float]:
    """Orthonormal rows (r, E) of the directions in which rows (O, E) over their errors are more than these; and how far
    outside a vector of theirs may lie, as a share of its length (Wedin, BIT, 1972)."""
    if not rows.isfinite().all():
        return rows[:0], 0.0
    noise = _largest_of_noise(rows)
    _, sizes, found = torch.linalg.svd(rows, full_matrices=False)
    more = sizes > noise
    return found[more], noise / float(sizes[more].min()) if bool(more.any()) else 0.0


def _largest_of_noise(rows: Tensor) -> float:
    """Return about the largest singular value of independent numbers of deviation 1. It is near the sum of the roots of
    both sizes (Bai and Yin, Annals of Probability, 1993)."""
    return sum(size**0.5 for size in rows.shape)


def end_of(best: Tensor) -> int:
    """Return the place behind which scores (T,) fall: where they are cut into two parts that are each the most
    alike."""
    best = best.clamp_min(0.0)
    cuts = torch.stack([
        sum(((one - one.mean()).square().sum() for one in (best[:cut], best[cut:])), best.new_zeros(()))
        for cut in range(1, len(best))
    ] + [(best - best.mean()).square().sum() * _FALLS])  # fmt: skip
    return int(cuts.argmin()) + 1


def nearest(off: Tensor) -> Tensor:
    """The text (T,) of the tokens that lie least outside of a span (V, T); it ends where none is near."""
    tokens = torch.full(off.shape[1:2], PAD)
    # No token stands at a place behind the end, and so has no vector: see :func:`candidates_at`.
    near, found = off[PAD + 1 :].min(0)
    found = found + PAD + 1
    before = torch.cat([near.new_full((1,), _OUTSIDE), near.cummax(0).values[:-1] * _FURTHER])
    ends = (near > before.clamp(_RIGHT, _OUTSIDE)).nonzero()
    length = int(ends[0]) if len(ends) else len(tokens)
    tokens[:length] = found[:length].cpu()
    return tokens


# --------------------------------------------------------------------------------------
# Texts from the gradients of adapters, whose matrices have fewer rows or columns than a token's vector has numbers.
#
# How it is done is ours, after attack ``span``. With adapter s B A, the gradient of A is s B' times the sum of outer
# products of derivatives and vectors: its rows lie in the span of the tokens' vectors. While B is zero, so is it. The
# gradient of B is the sum with A x in the place of x: its rows tell tokens by the r numbers A x. So the first tells as
# many pairs of a token and a place as all first adapters have rows together, the second fewer than r.


#: Vectors (V, T, E) of every token at every place, by the prefix of the layer that is given them.
Vectors = Callable[[str], Tensor]
#: A share of a gradient that vectors leave unexplained, up to which it is rounding. One token may make up nearly all.
EXPLAINED = 1e-5


@dataclass(frozen=True)
class Reading:
    """Layers that are read together: those of A, which are given the same vectors, or those of B.

    Attributes:
        layers: of each, its gradient (O, E) and the prefix of the layer whose vectors it is given.
    """

    layers: tuple[tuple[Tensor, str], ...]

    def off(self, vectors: Vectors) -> Tensor | None:
        """Return how far every token at every place (V, T) lies outside of what was used. Return None where nothing is
        told: of a gradient that is zero, or whose rows span all there is."""
        bases = [(row_space(gradient), source) for gradient, source in self.layers]
        told = [outside(vectors(source), one) for one, source in bases if 0 < len(one) < one.shape[1]]
        return torch.stack(told).amax(0) if told else None

    def unexplained(self, vectors: Vectors, pairs: tuple[Tensor, Tensor]) -> float:
        """The largest share of a gradient outside of the span of some tokens at some places, both (N,); 1 where they
        are so many that they span everything."""
        shares = [0.0]
        for gradient, source in self.layers:
            if not gradient.any():
                continue
            own = vectors(source)[pairs].to(gradient).double()
            if not len(own) or len(own) >= own.shape[1]:
                return 1.0
            basis, values = torch.linalg.qr(own.T)[0], gradient.double()
            shares.append(float((values - values @ basis @ basis.T).norm() / values.norm()))
        return max(shares)


def readings(layers: tuple[TokenLayer, ...], parts: Mapping[str, Tensor]) -> list[Reading]:
    """Return what may be read of gradients by name: of A, then of all B together, then of each B, since a gradient by
    values may be so nearly the same for all tokens that most of it is rounding.

    Args:
        layers: that read vectors of single tokens, in order.
        parts: the gradient (O, E) of each layer's matrix.
    """
    alike = [parts[one.weight] for one in layers if one.source == layers[0].source]
    # Derivatives by queries are much smaller than those by values.
    first = torch.cat([one / one.norm().clamp_min(1e-30) for one in alike])
    others = tuple((parts[one.weight], one.source) for one in layers if one.source != layers[0].source)
    alone = [Reading((one,)) for one in others] if len(others) > 1 else []
    return [Reading(((first, layers[0].source),)), *([Reading(others)] if others else []), *alone]


def layers_of(model: RowModel) -> tuple[TokenLayer, ...]:
    """The layers of the first adapters; none where the first layer that reads tokens has rows enough by itself."""
    layers = token_layers(model, "span")
    rows = dict(zip(model.layout.names, model.layout.shapes, strict=True))[layers[0].weight][0]
    others = any(one.source != layers[0].source for one in layers)
    return layers if others and rows <= layers[0].width else ()


def most_tokens(found: list[Reading]) -> int:
    """Return how many tokens can be told at most, by the rows and columns of the gradients that are not zero."""
    of_a, *of_b = (one.layers for one in found)
    told = [min(len(gradient), gradient.shape[1] - 1) for gradient, _ in of_a if gradient.any()]
    told += [min(gradient.shape[1] for gradient, _ in layers) - 1 for layers in of_b]
    return max(told, default=0)


def require_one(low: tuple[TokenLayer, ...], examples: int) -> None:
    """Raises UsageError: several texts lie behind a gradient of adapters, which says of no word whose it is."""
    if low:
        raise UsageError(
            f"attack 'span' reads one text from adapters, not {examples}; use --batch-size 1 and one local step, or "
            "--attack identify"
        )


def text_of(found: list[Reading], vectors: Vectors, places: int) -> Tensor:
    """The text (T,) of one example: of those that may be read, the one that leaves least unexplained."""
    best, least = torch.full((places,), PAD), 2.0
    for one in found:
        off = one.off(vectors)
        if off is None:
            continue
        text = nearest(off)
        used = (text != PAD).nonzero()[:, 0]
        share = one.unexplained(vectors, (text[used].to(off.device), used.to(off.device)))
        if share < least:
            best, least = text, share
        if share < EXPLAINED:
            break
    return best
