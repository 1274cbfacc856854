"""Decode: the likeliest text behind a gradient with known noise.

How it is done is ours. The row of a word in the gradient of the table of words is the sum of the rows of its places in
the gradient of the learned places. Under noise of a known level, the likelihood that a word stood at a place follows
from that, and what public texts say of words and places is the prior. Where that leaves words about as likely, the
whole gradient decides, by the likelihood of attack ``identify``. How several texts are taken apart is said in
:mod:`harness.attacks.mixed_texts`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.identify import Identify
from harness.attacks.mixed_texts import ROUNDS, STARTS, mixed_texts, require_texts_apart
from harness.attacks.residual import unread_level
from harness.attacks.token_rows import tables_of
from harness.base.errors import UsageError
from harness.base.words import PAD, images_of, tokens_of
from harness.observation import Observation, Tier

# A word that is so much likelier than all others (natural logarithms) is not compared again; how many are.
_CERTAIN, _OTHERS = 12.0, 4
# Of a row's root mean square, what single precision leaves as an error; one place in so many is surely used.
_ROUNDING, _SURE = 1e-6, 5


@ATTACKS.register("decode")
@validated_attack
class Decode(ClosedForm):
    """``tries``: of one text, gradients by which words that are about as likely are compared, at most."""

    tries: Annotated[int, Field(ge=0, le=10_000)] = 48
    tier: ClassVar[Tier] = "informed"
    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"
    several: ClassVar[bool] = True

    def solved(self, observation: Observation) -> Tensor:
        tables, rows = _tables(observation), torch.arange(observation.rows, device=observation.target.device)
        several = observation.examples > 1
        found = [
            _texts(seen, tables) if several else self._text(seen, tables)
            for seen in (observation.take(row) for row in rows.split(1))
        ]
        return images_of(torch.stack(found)).flatten(1).to(observation.target)

    def effort(self, observation: Observation) -> int:
        if observation.examples > 1:
            return STARTS + ROUNDS * observation.examples
        return 1 + observation.model.classes + self.tries

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        return unread_level(observation)

    def _text(self, seen: Observation, tables: tuple[str, str]) -> Tensor:
        likely = likely_words(seen, tables)
        text = likely.text()
        if not bool(seen.target.isfinite().all()):
            return torch.full_like(text, PAD)
        best = likely.scores.topk(_OTHERS, dim=0)
        doubtful = (best.values[0] - best.values[1])[: likely.length]
        left, label = self.tries, None
        for place in doubtful.argsort().tolist():
            if doubtful[place] > _CERTAIN or left < _OTHERS:
                break
            label = _label(seen, text) if label is None else label
            others = text.repeat(_OTHERS, 1)
            others[:, place], left = best.indices[:, place], left - _OTHERS
            text = others[int(_improbable(seen, others, label).argmin())]
        return text


def _texts(seen: Observation, tables: tuple[str, str]) -> Tensor:
    """Several of one row: (n, T)."""
    shapes = dict(zip(seen.model.layout.names, seen.model.layout.shapes, strict=True))
    at, _ = _public(seen, shapes[tables[0]][0], seen.model.image_shape[-1])
    return mixed_texts(seen, tables, _deviation(seen, tables), at)


def _label(seen: Observation, text: Tensor) -> int:
    """Under which the gradient is likeliest, had this text been behind it."""
    return int(torch.cat([_improbable(seen, text[None], label) for label in range(seen.model.classes)]).argmin())


def _improbable(seen: Observation, texts: Tensor, label: int) -> Tensor:
    """Of texts (N, T), by the whole gradient: (N,)."""
    return Identify().distances(seen, images_of(texts)[None], torch.tensor([label]))[0]


def _tables(observation: Observation) -> tuple[str, str]:
    """The names of both tables.

    Raises:
        UsageError: places are not learned, the noise has no known level, or several texts cannot be taken apart.
    """
    words, places = tables_of(observation.model, "decode")
    if places is None:
        raise UsageError("attack 'decode' needs learned places, which tell where a word stood; use --attack identify")
    if observation.noise is not None and (observation.noise.deviation is None or observation.noise.unread):
        raise UsageError(
            "attack 'decode' needs noise of a known level, and this level follows private data or is published by "
            "nobody; use --attack identify"
        )
    if observation.examples > 1:
        require_texts_apart(observation)
    return words, places


@dataclass(frozen=True)
class Likely:
    """How likely each word is at each place (V, T), in natural logarithms, and how many places are used."""

    scores: Tensor
    length: int

    def text(self) -> Tensor:
        """The likeliest tokens (T,)."""
        tokens = self.scores.argmax(0)
        tokens[self.length :] = PAD
        return tokens


def likely_words(seen: Observation, tables: tuple[str, str]) -> Likely:
    """Of one row, by the gradients of both tables."""
    parts = seen.model.layout.split(seen.target)
    words, places = (parts[name][0].cpu().double().flatten(0, -2) for name in tables)
    noise = max(_deviation(seen, tables), _ROUNDING * float(places.square().mean().sqrt())) ** 2
    known = _public(seen, parts[tables[0]].shape[1], len(places))
    noise = max(noise, 1e-300)
    length = _length(places, noise, known[1])
    scores = known[0].clone()
    scores[:, :length] += together(words, places[:length], noise)
    scores[PAD] = -torch.inf
    return Likely(scores, length)


def _deviation(seen: Observation, tables: tuple[str, str]) -> float:
    deviation = 0.0 if seen.noise is None else seen.noise.deviation
    if not isinstance(deviation, Tensor):
        return float(deviation or 0.0)
    parts = seen.model.layout.split(deviation.expand(1, seen.target.shape[1]))
    return float(torch.cat([parts[name].flatten() for name in tables]).square().mean().sqrt())


def together(words: Tensor, places: Tensor, noise: float) -> Tensor:
    """Log-likelihood ratios (V, T) that a word (V, E) stood at a place (T, E), rather than that it did not.

    Least squares make the row of a word of those of places. What is 1 for a word's own places comes out smaller, by
    what noise adds to the places' products. What is 0 for others has an error of both rows' noise.
    """
    products = places @ places.T
    inverse = torch.linalg.inv(products + 1e-12 * products.diagonal().mean() * torch.eye(len(places)))
    error = 2 * noise * inverse.diagonal()
    kept = (1 - places.shape[1] * noise * inverse.diagonal()).clamp_min(0.0)
    return kept * (words @ places.T @ inverse - kept / 2) / error


def _length(places: Tensor, noise: float, known: Tensor) -> int:
    """How many places are used; ``known``: (T,), the log-probability that a text ends behind each."""
    here = places.square().mean(1)
    signal = (here - noise).clamp_min(0.0).topk(max(1, len(places) // _SURE)).values.mean()
    used = places.shape[1] / 2 * (here / noise - here / (signal + noise) - ((signal + noise) / noise).log())
    return int((used.cumsum(0) + known).argmax()) + 1


def _public(seen: Observation, words: int, places: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities by public texts: of words at places (V, T), and of ends (T,); alike where there are none."""
    prior = seen.prior
    if prior is None or prior.texts is None:
        return torch.zeros(words, places).double(), torch.zeros(places).double()
    texts = tokens_of(prior.texts.unflatten(1, (1, -1, places))).cpu()
    counts = torch.stack([column.bincount(minlength=words)[:words] for column in texts.T], 1).double()
    counts[PAD] = 0.0
    anywhere = (counts.sum(1, keepdim=True) + 1) / (counts.sum() + words)
    ends = (texts != PAD).sum(1).clamp_min(1) - 1
    ended = ends.bincount(minlength=places).double() + 1 / places
    return ((counts + anywhere) / (counts.sum(0) + 1)).log(), (ended / ended.sum()).log()
