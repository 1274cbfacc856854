"""Texts from the gradients of adapters, whose matrices have fewer rows or columns than a token's vector has numbers.

How it is done is ours, after attack ``span``. With adapter s B A, the gradient of A is s B' times the sum of outer
products of derivatives and vectors: its rows lie in the span of the tokens' vectors. While B is zero, so is it. The
gradient of B is the sum with A x in the place of x: its rows tell tokens by the r numbers A x. So the first tells as
many pairs of a token and a place as all first adapters have rows together, the second fewer than r.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.attacks.token_layers import TokenLayer, nearest, outside, row_space, token_layers
from harness.base.errors import UsageError
from harness.base.words import PAD
from harness.models import RowModel

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
        """How far every token at every place (V, T) lies outside of what was used; None where nothing is told: of a
        gradient that is zero, or whose rows span all there is."""
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
    """What may be read of gradients by name: of A, then of all B together, then of each B, since a gradient by values
    may be so nearly the same for all tokens that most of it is rounding.

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
    """How many tokens can be told at most, by the rows and columns of the gradients that are not zero."""
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
