"""Token rows: the gradient of a trained token embedding is nonzero only in the rows of the tokens that were used.

That is a bag of words, exact. Where places are learned too, the row of a word is the sum of the rows of its places,
so that least squares put every word where it stood. The first half is folklore (Melis et al., "Exploiting Unintended
Feature Leakage in Collaborative Learning", IEEE S&P 2019, section 4.1); the second is ours, after APRIL (attack
``patches``).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.token_layers import Seen, errors_of, require_a_head, require_texts, stopped_at, tried_gradients
from harness.base.errors import UsageError
from harness.base.words import PAD, UNKNOWN, images_of
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode
from harness.observation import Observation

_ROUNDING = 1e-6
#: How well products of float32 agree, as a share of a derivative's length.
_AGREES = 1e-4
# What a number moved by, in what rounding alone would move it, if it was used.
_MOVED = 10.0


@ATTACKS.register("token_rows")
@validated_attack
class TokenRows(ClosedForm):
    """Without learned places words stand in the order of their numbers, since nothing tells a better one."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        model = observation.model
        words, places = tables_of(model, "token_rows")
        require_a_head(observation, "token_rows")
        if observation.unknowns > 1:
            raise UsageError(
                f"attack 'token_rows' orders the words of one text, not of {observation.unknowns}; use --batch-size 1 "
                "and one local step"
            )
        parts = model.layout.split(observation.target)
        used, learned = words.of(parts), None if places is None else places.of(parts)
        found = [
            ordered(used[row], None if learned is None else learned[row], model.image_shape[-1])
            for row in range(observation.rows)
        ]
        return images_of(torch.stack(found)).flatten(1).to(observation.target)


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a weight (..., E), by its name, that belong to tokens or to places.

    Attributes:
        index: (V,) or (T,), of each token or place the number of its row.
    """

    name: str
    index: Tensor

    def of(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Its rows (R, V or T, E) among tensors (R, ..., E) by name."""
        return parts[self.name].flatten(1, -2)[:, self.index.to(parts[self.name].device)]


@dataclass(frozen=True, eq=False)
class Tables:
    """The table from which a network takes a vector for each word, and the learned places that are added to it.

    Attributes:
        layer: the name of the layer that puts the vectors out, trained or not. width: numbers of a vector.
        places: None where none are trained.
        words_alone: whether only rows of words that a text has get a gradient.
    """

    layer: str
    width: int
    words: TableRows
    places: TableRows | None
    words_alone: bool


def tables_of(model: RowModel, attack: str) -> tuple[TableRows, TableRows | None]:
    """The rows of words in their trained table, and of learned places that are added to them; None without such.

    Raises:
        UsageError: the table is not trained, or is used for more than the words of a text; or the network reads no
            texts.
    """
    require_texts(model, attack)
    tables = read_tables(model)
    if tables is None or tables.words.name not in model.layout.names:
        raise UsageError(
            f"attack {attack!r} needs a table of words that is trained here, which model {model.name!r} lacks; use "
            "--attack span with --batch-size 1"
        )
    if not tables.words_alone:
        raise UsageError(
            f"attack {attack!r} needs a table whose rows get a gradient by the words of a text alone, and model "
            f"{model.name!r} uses the table of words elsewhere too, as a tied output does; use --attack span with "
            "--batch-size 1"
        )
    return tables.words, tables.places


@lru_cache(maxsize=2)
def read_tables(model: RowModel) -> Tables | None:
    """Find them by what the network computes; None where no table of words is looked up.

    A network may swap tokens, add some of its own, or hold more rows than there are tokens or places. So two texts that
    differ at each place say which rows are looked up for a place. A row of learned places has, up to a factor, the same
    derivative as the vector of the word that stands there.
    """
    half, places = ((model.vocabulary or 0) - 1) // 2, model.image_shape[-1]
    text = torch.arange(places) % half + 1
    for name, layer in model.plain_module.named_modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            continue
        one, other = (_looked_up(model, layer, tokens) for tokens in (text, text + half))
        if one is None or other is None or one.shape != other.shape or int((one != other).sum()) != places:
            continue
        there, words = one != other, TableRows(f"{name}.weight", _rows_of_tokens(model, layer, one != other))
        gradients, by_vectors = tried_gradients(model, images_of(text), layer)
        vectors = by_vectors.reshape(-1, weight.shape[1])
        learned = _learned_places(gradients, words.name, vectors[there]) if len(vectors) == len(there) else None
        sizes = gradients[words.name].norm(dim=1) if words.name in gradients else vectors.new_zeros(len(weight))
        others = sizes.index_fill(0, one.to(sizes.device), 0.0)
        return Tables(name, weight.shape[1], words, learned, bool(others.max() <= _ROUNDING * sizes.max()))
    return None


def moved(seen: Observation) -> Tensor:
    """Return which numbers (R, P) of what was read moved further than rounding moves them."""
    reading = seen.reading
    if reading is not None and seen.certainty is not None:
        return seen.target.abs() > _MOVED * reading.error(0.0 * seen.target, seen.weights)
    if reading is not None and reading.decays:  # weights that nothing else moved are off by rounding too
        return seen.target.abs() > _MOVED * errors_of(seen)
    return seen.target != 0


def used_rows(seen: Observation) -> tuple[Tensor | None, Tensor | None]:
    """Return which words (V,) and places (T,) of one row moved; None for what does not say which were used."""
    tables = read_tables(seen.model)
    if tables is None:
        return None, None
    parts = seen.model.layout.split(moved(seen))
    words = tables.words.of(parts)[0].any(1) if tables.words_alone and tables.words.name in parts else None
    return words, None if tables.places is None else tables.places.of(parts)[0].any(1)


def _looked_up(model: RowModel, layer: nn.Module, tokens: Tensor) -> Tensor | None:
    """The numbers of rows (n,) that a layer is given for a text (T,), in order; None where it is given no such."""
    network, own = model.plain_module, next(model.plain_module.parameters())
    with torch.no_grad(), in_evaluation_mode(network), stopped_at(layer) as given, suppress(Seen):
        network(images_of(tokens[None]).to(own))
    return None if not given or given[0].is_floating_point() else given[0].flatten().long().cpu()


def _rows_of_tokens(model: RowModel, layer: nn.Module, there: Tensor) -> Tensor:
    """The row (V,) of each token, of which those of a text are looked up where ``there`` (n,) says so.

    Number 0, which fills a text's end, stands at the end of one more text: a network may not look it up.
    """
    known, places = model.vocabulary or 0, model.image_shape[-1]
    texts = functional.pad(torch.arange(1, known), (0, (1 - known) % places), value=UNKNOWN).view(-1, places)
    ended = functional.pad(texts[0, :-1], (0, 1), value=PAD)
    rows = torch.full((known,), PAD)
    for some in (*texts, ended):
        found = _looked_up(model, layer, some)
        if found is not None and found.shape == there.shape:
            rows[some] = found[there]
    return rows


def _learned_places(gradients: Mapping[str, Tensor], words: str, vectors: Tensor) -> TableRows | None:
    """The rows of places in the weight whose rows have the derivatives (T, E) by the vectors of words there."""
    wanted = functional.normalize(vectors.double(), dim=1)
    for name, gradient in gradients.items():
        if gradient.dim() < 2 or gradient.shape[-1] != wanted.shape[1] or name == words:
            continue
        rows = functional.normalize(gradient.flatten(0, -2).double(), dim=1)
        apart, index = torch.cdist(wanted, rows, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        # Whatever is predicted last may not depend on the last place; a row without a gradient is its row too.
        used = index[wanted.any(1)]
        if len(rows) >= len(wanted) and apart.max() <= _AGREES and len(used.unique()) == len(used) > 0:
            return TableRows(name, index.cpu())
    return None


def ordered(words: Tensor, places: Tensor | None, count: int) -> Tensor:
    """The text (count,) of gradients of the words (V, E) and, where they are learned, of the places (count, E)."""
    tokens, sizes = torch.full((count,), PAD), words.double().norm(dim=1)
    used = (sizes > _ROUNDING * sizes.max()).nonzero()[:, 0] if bool(sizes.isfinite().all()) else sizes.new_zeros(0)
    used = used[used != PAD].long()
    if not len(used):
        return tokens
    if places is None:
        tokens[: len(used)] = used[:count].cpu()
        return tokens
    own = places.double()
    there = (own.norm(dim=1) > _ROUNDING * own.norm(dim=1).max()).nonzero()[:, 0]
    # Row of word = sum of the rows of its places: shares (words, places) of 0 or 1.
    shares = words[used].double() @ torch.linalg.pinv(own[there])
    tokens[there.cpu()] = used[shares.argmax(0)].cpu()
    return tokens
