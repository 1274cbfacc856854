"""Token rows: a trained table of words has a gradient in just the rows of the words that were used.

That is a bag of words, exact. Where places are learned too, the row of a word is the sum of the rows of its places,
so that least squares put every word where it stood. The first half is folklore (Melis et al., "Exploiting Unintended
Feature Leakage in Collaborative Learning", IEEE S&P 2019, section 4.1); the second is ours, after APRIL (attack
``patches``).
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.token_layers import require_texts
from harness.base.errors import UsageError
from harness.base.words import PAD, images_of
from harness.models import RowModel
from harness.observation import Observation

_ROUNDING = 1e-6


@ATTACKS.register("token_rows")
@validated_attack
class TokenRows(ClosedForm):
    """Without learned places words stand in the order of their numbers, since nothing tells a better one."""

    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"

    def solved(self, observation: Observation) -> Tensor:
        model = observation.model
        words, places = tables_of(model, "token_rows")
        if observation.unknowns > 1:
            raise UsageError(
                f"attack 'token_rows' orders the words of one text, not of {observation.unknowns}; use --batch-size 1 "
                "and one local step"
            )
        parts = model.layout.split(observation.target)
        learned = None if places is None else parts[places].flatten(1, -2)
        found = [
            ordered(parts[words][row], None if learned is None else learned[row], model.image_shape[-1])
            for row in range(observation.rows)
        ]
        return images_of(torch.stack(found)).flatten(1).to(observation.target)


def tables_of(model: RowModel, attack: str) -> tuple[str, str | None]:
    """Names of the trained table of words, and of learned places that are added to it; None where there are none.

    Raises:
        UsageError: the table is not trained, or the network reads no texts.
    """
    words = table_of_words(model, attack)
    if words is None or f"{words[0]}.weight" not in model.layout.names:
        raise UsageError(
            f"attack {attack!r} needs a table of words that is trained here, which model {model.name!r} lacks; use "
            "--attack span with --batch-size 1"
        )
    return f"{words[0]}.weight", learned_places(model, *words)


def table_of_words(model: RowModel, attack: str) -> tuple[str, int] | None:
    """The name of the layer that puts out a vector for each word, trained or not, and its width; None without one.

    Raises:
        UsageError: the network reads no texts.
    """
    vocabulary = require_texts(model, attack)
    named = ((name, one) for name, one in model.plain_module.named_modules() if isinstance(one, nn.Embedding))
    return next(((name, one.embedding_dim) for name, one in named if one.num_embeddings == vocabulary), None)


def learned_places(model: RowModel, words: str, width: int) -> str | None:
    """The name of the trained places that are added to the vectors of words; None without."""
    places = model.image_shape[-1]
    return next(
        (
            name for name, one in model.plain_module.named_parameters()
            if one.dim() > 1 and one.shape[-1] == width and one.numel() // width == places and name != f"{words}.weight"
        ),
        None,
    )  # fmt: skip


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
