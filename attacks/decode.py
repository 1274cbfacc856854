"""Decode: the likeliest text behind a gradient with known noise.

How it is done is ours. The row of a word in the gradient of the table of words is the sum of the rows of its places in
the gradient of the learned places. Under noise of a known level, the likelihood that a word stood at a place follows
from that, and what public texts say of words and places is the prior. Where these tables are not trained, as with
adapters, the layers that read vectors of single tokens tell words, as in attack ``span``, and the search begins at the
likeliest public text if no other is likelier. Where that leaves words about as likely, the whole gradient decides, by
the likelihood of attack ``identify``. How several texts are taken apart is said below.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks import sentences
from harness.attacks.among import at_once, example_gradients
from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.attacker import Reads
from harness.attacks.identify import Identify
from harness.attacks.residual import knows_clip, unread_level
from harness.attacks.token_layers import Candidates, TokenLayer, Vectors, directions, require_texts, token_layers
from harness.attacks.token_rows import TableRows, tables_of
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.base.words import PAD, images_of, tokens_of
from harness.models.side_by_side import side_by_side
from harness.observation import Observation, Tier

# A word that is so much likelier than all others (natural logarithms) is not compared again, by tables and by layers,
# which count what goes together as independent; how many are, and by layers how many times as often.
_CERTAIN, _SURELY, _OTHERS, _MORE = 12.0, 30.0, 4, 4
# Of a row's root mean square, what single precision leaves as an error; one place in so many is surely used.
_ROUNDING, _SURE = 1e-6, 5


@ATTACKS.register("decode")
@validated_attack
class Decode(ClosedForm):
    """``tries``: of one text, gradients by which words that are about as likely are compared, at most; four times as
    many where the tables are not trained."""

    tries: Annotated[int, Field(ge=0, le=10_000)] = 48
    tier: ClassVar[Tier] = "informed"
    uses_labels: ClassVar[bool] = False
    reads: ClassVar[Reads] = "texts"
    several: ClassVar[bool] = True

    def solved(self, observation: Observation) -> Tensor:
        tables, rows = _tables(observation), torch.arange(observation.rows, device=observation.target.device)
        layers = () if tables else token_layers(observation.model, "decode")
        vectors = Candidates(observation, layers)

        def of_row(row: Tensor) -> Tensor:
            seen = observation.take(row)
            if not bool(seen.target.isfinite().all()):
                return torch.full((seen.unknowns, observation.model.image_shape[-1]), PAD)
            if tables is None:
                return self._by_layers(seen, layers, partial(vectors, row=int(row)))[None]
            return _texts(seen, tables) if observation.unknowns > 1 else self._by_tables(seen, tables)[None]

        found = side_by_side(of_row, rows.split(1), apart=rows.device.type == "cpu")
        return images_of(torch.stack(found)).flatten(1).to(observation.target)

    def effort(self, observation: Observation) -> int:
        if observation.unknowns > 1:
            return STARTS + ROUNDS * observation.unknowns
        if _tables(observation) is None:
            return STARTS + observation.model.image_shape[-1] + _MORE * self.tries
        return 1 + observation.model.classes + self.tries

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        return unread_level(observation)

    def _by_tables(self, seen: Observation, tables: tuple[TableRows, TableRows]) -> Tensor:
        """The text (T,) of one row."""
        likely = likely_words(seen, tables)
        text, doubtful = likely.text(), likely.doubtful(_CERTAIN)[: self.tries // _OTHERS]
        return _compared(seen, text, _label(seen, text), likely, doubtful) if doubtful else text

    def _by_layers(self, seen: Observation, layers: tuple[TokenLayer, ...], vectors: Vectors) -> Tensor:
        """Return the text (T,) of one row, from layers that read vectors of single tokens."""
        scores = scores_by_layers(seen, layers, vectors)
        text, label = _start(seen, scores)
        likely = Likely(scores, int((text != PAD).sum()))
        doubtful, left = likely.doubtful(_SURELY), _MORE * self.tries // _OTHERS
        sure = [place for place in range(likely.length) if place not in doubtful]
        text[sure] = scores.argmax(0)[sure]
        for _ in range(left // max(1, min(left, len(doubtful)))):
            before, text = text, _compared(seen, text, label, likely, doubtful[:left])
            if torch.equal(before, text):
                break
        return text


def _compared(seen: Observation, text: Tensor, label: int, likely: "Likely", places: Iterable[int]) -> Tensor:
    """A text (T,) of a class after its word at each place was compared with the likeliest, by the whole gradient."""
    best = likely.scores.topk(min(_OTHERS, len(likely.scores) - 1), dim=0).indices  # an end is no word
    for place in places:
        words = best[:, place]
        if text[place] not in words:
            words = torch.cat([text[place, None], words])
        others = text.repeat(len(words), 1)
        others[:, place] = words
        text = others[int(_improbable(seen, others, torch.full((len(words),), label)).argmin())]
    return text


def _texts(seen: Observation, tables: tuple[TableRows, TableRows]) -> Tensor:
    """Several of one row: (n, T)."""
    at, _ = _public(seen, *(len(one.index) for one in tables))
    return mixed_texts(seen, tables, _noise(seen, tables), at)


def _label(seen: Observation, text: Tensor) -> int:
    """Under which the gradient is likeliest, had this text been behind it."""
    labels = torch.arange(seen.model.classes)
    return int(_improbable(seen, text.expand(len(labels), -1), labels).argmin())


def _improbable(seen: Observation, texts: Tensor, labels: Tensor) -> Tensor:
    """Return how improbable texts (N, T) with labels (N,) are, by the whole gradient: (N,)."""
    return Identify().distances(seen, images_of(texts)[None], labels[None])[0]


def _tables(observation: Observation) -> tuple[TableRows, TableRows] | None:
    """Return where both tables are. Return None where they are not trained, and layers that read vectors of tokens tell
    of one text.

    Raises:
        UsageError: the noise has no known level, or several texts cannot be taken apart.
    """
    if observation.noise is not None and (observation.noise.deviation is None or observation.noise.unread):
        raise UsageError(
            "attack 'decode' needs noise of a known level, and this level follows private data or is published by "
            "nobody; use --attack identify"
        )
    try:
        words, places = tables_of(observation.model, "decode")
    except UsageError:
        words, places = None, None
        require_texts(observation.model, "decode")
    if observation.unknowns > 1:
        require_texts_apart(observation, places is not None)
    return None if words is None or places is None else (words, places)


@dataclass(frozen=True)
class Likely:
    """Log-probability of each word at each place (V, T), in natural logarithms, and the number of places that are
    used."""

    scores: Tensor
    length: int

    def text(self) -> Tensor:
        """The likeliest tokens (T,)."""
        tokens = self.scores.argmax(0)
        tokens[self.length :] = PAD
        return tokens

    def doubtful(self, certain: float) -> list[int]:
        """Places where no word is so much likelier than all others, the most doubtful ones first."""
        best = self.scores.topk(2, dim=0).values
        apart = (best[0] - best[1])[: self.length]
        return [place for place in apart.argsort().tolist() if apart[place] <= certain]


def scores_by_layers(seen: Observation, layers: tuple[TokenLayer, ...], vectors: Vectors) -> Tensor:
    """Return how likely each word is at each place (V, T) of one row, in natural logarithms. It
    follows from layers that read the vectors of single tokens, and from public texts."""
    parts, deviation = seen.model.layout.split(seen.target), noise_on(seen, tuple(one.weight for one in layers))
    places = seen.model.image_shape[-1]
    scores = _public(seen, seen.model.vocabulary or 0, places)[0].clone()
    for source in dict.fromkeys(one.source for one in layers):
        gradient = torch.cat([parts[one.weight][0].cpu().double() for one in layers if one.source == source])
        scores += directions(
            gradient, vectors(source).cpu(), max(deviation, _ROUNDING * float(gradient.square().mean().sqrt()))
        )
    scores[PAD] = -torch.inf
    return scores


def _start(seen: Observation, scores: Tensor) -> tuple[Tensor, int]:
    """The text (T,) that makes what was read likeliest, and its class: of public ones of every class, and of those of
    the likeliest words of every length."""
    places, classes = scores.shape[1], seen.model.classes
    whole = scores.argmax(0)
    cut = torch.where(torch.arange(places) > torch.arange(places)[:, None], PAD, whole)
    texts, labels = cut[-1:].expand(classes, -1), torch.arange(classes)
    if seen.prior is not None and seen.prior.texts is not None:
        texts, labels = public_texts(seen)
    unlikely = _improbable(seen, texts, labels)
    text, label = texts[unlikely.argmin()], labels[unlikely.argmin()]
    others = _improbable(seen, cut, label.expand(places))
    found = cut[others.argmin()] if others.min() < unlikely.min() else text
    return found, _label(seen, found)


def public_texts(seen: Observation) -> tuple[Tensor, Tensor]:
    """Return public texts (N, T), as many of each class, and their classes (N,)."""
    prior, classes = seen.prior, seen.model.classes
    assert prior is not None
    each = max(1, STARTS // classes)
    drawn = torch.cat([prior.drawn(label, each, generator("decode", label)) for label in range(classes)])
    texts = tokens_of(drawn.unflatten(1, (1, -1, seen.model.image_shape[-1]))).cpu()
    return texts, torch.arange(classes).repeat_interleave(each)


def likely_words(seen: Observation, tables: tuple[TableRows, TableRows]) -> Likely:
    """Return how likely the words of one row are, by the gradients of both tables."""
    parts = seen.model.layout.split(seen.target)
    words, places = (one.of(parts)[0].cpu().double() for one in tables)
    noise = _variance(places, _noise(seen, tables))
    known = _public(seen, len(words), len(places))
    length = int(likely_lengths(places, _noise(seen, tables), known[1]).argmax()) + 1
    scores = known[0].clone()
    scores[:, :length] += together(words, places[:length], noise)
    scores[PAD] = -torch.inf
    return Likely(scores, length)


def _noise(seen: Observation, tables: tuple[TableRows, TableRows]) -> float:
    return noise_on(seen, tuple(one.name for one in tables))


def noise_on(seen: Observation, names: Sequence[str]) -> float:
    """The deviation of known noise on the gradients of some weights, by their names."""
    deviation = 0.0 if seen.noise is None else seen.noise.deviation
    if not isinstance(deviation, Tensor):
        return float(deviation or 0.0)
    parts = seen.model.layout.split(deviation.expand(1, seen.target.shape[1]))
    return float(torch.cat([parts[name].flatten() for name in names]).square().mean().sqrt())


def together(words: Tensor, places: Tensor, noise: float) -> Tensor:
    """Log-likelihood ratios (V, T) that a word (V, E) stood at a place (T, E), rather than that it did not.

    Least squares make the row of a word of those of places. What is 1 for a word's own places comes out smaller, by
    what noise adds to the places' products. What is 0 for others has an error of both rows' noise.
    """
    if not places.any():  # below a head of zeros
        return words.new_zeros(len(words), len(places))
    products = places @ places.T
    inverse = torch.linalg.inv(products + 1e-12 * products.diagonal().mean() * torch.eye(len(places)))
    error = 2 * noise * inverse.diagonal()
    kept = (1 - places.shape[1] * noise * inverse.diagonal()).clamp_min(0.0)
    return kept * (words @ places.T @ inverse - kept / 2) / error


def _variance(places: Tensor, noise: float) -> float:
    """Return the variance on the gradients of places (T, E): that of noise of a known deviation, or of the error of
    single precision where it is larger."""
    return max(max(noise, _ROUNDING * float(places.square().mean().sqrt())) ** 2, 1e-300)


def likely_lengths(places: Tensor, deviation: float, known: Tensor) -> Tensor:
    """Log-likelihoods (T,) that so many places are used, by their gradients (T, E), float64, with noise of a deviation.

    Args:
        known: (T,), the log-probability that a text ends behind each.
    """
    noise = _variance(places, deviation)
    here = places.square().mean(1)
    signal = (here - noise).clamp_min(0.0).topk(max(1, len(places) // _SURE)).values.mean()
    used = places.shape[1] / 2 * (here / noise - here / (signal + noise) - ((signal + noise) / noise).log())
    return used.cumsum(0) + known


def _public(seen: Observation, words: int, places: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities by public texts: of words at places (V, T), and of ends (T,); alike where there are none."""
    prior = seen.prior
    if prior is None or prior.texts is None:
        return torch.zeros(words, places).double(), torch.zeros(places).double()
    texts = tokens_of(prior.texts.unflatten(1, (1, -1, places))).cpu()
    counts = torch.stack([column.bincount(minlength=words)[:words] for column in texts.T], 1).double()
    counts[PAD] = 0.0
    anywhere = (counts.sum(1, keepdim=True) + 1) / (counts.sum() + words)
    return ((counts + anywhere) / (counts.sum(0) + 1)).log(), ends_of(texts)


def ends_of(texts: Tensor) -> Tensor:
    """Log-probabilities (T,) that a text ends behind each place, by public texts (N, T)."""
    places = texts.shape[1]
    ends = (texts != PAD).sum(1).clamp_min(1) - 1
    ended = ends.bincount(minlength=places).double() + 1 / places
    return (ended / ended.sum()).log()


# --------------------------------------------------------------------------------------
# Several texts behind a gradient with known noise: how attack ``decode`` takes them apart.
#
# How it is done is ours. Each text is first taken for a public one: of a sample, those whose gradients together come
# nearest. That tells the classes. The gradient of the learned places then tells where each text ends, since the
# derivatives by the words of one text are nearly alike, and those of others are not. By these derivatives the gradient
# of the table of words tells which words a text has; their order is mostly left to what public texts say of words,
# places and neighbours. Each round computes the derivatives anew, of the texts found so far.


#: Public texts of all classes that are compared, rounds, and sweeps over all words in each.
STARTS, ROUNDS, SWEEPS = 96, 4, 3
# Words whose neighbours are counted, at most; how much less than one word in a text an end counts.
_COUNTED, _HALF = 4_096, 0.5
_TINY = 1e-14


def require_texts_apart(observation: Observation, tables: bool) -> None:
    """Raises UsageError: there are no such tables of words and places or no public texts, or each text's share in
    the gradient cannot be computed."""
    clipping, several = observation.clipping, f"attack 'decode' on {observation.unknowns} texts needs"
    if not tables:
        needed = "a table of words and learned places that are trained and used nowhere else"
        raise UsageError(f"{several} {needed}; use --attack identify")
    if observation.prior is None or observation.prior.texts is None:
        raise UsageError(f"{several} public texts; use --prior auto, or --batch-size 1")
    if clipping is not None and not (knows_clip(observation) and clipping.unit == "example"):
        raise UsageError(f"{several} clips of single examples with a known bound; use --attack identify")
    if observation.certainty is not None:
        raise UsageError(f"{several} gradients that add up; use --optimizer sgd, or --batch-size 1")


@dataclass(frozen=True)
class Language:
    """Log-probabilities by public texts: of words at places (V, T), and of neighbours.

    Attributes:
        at: (V, T). index: (V,), the number of a word among those that are counted. after: (U, U), of the second word
            behind the first.
    """

    at: Tensor
    index: Tensor
    after: Tensor

    @classmethod
    def of(cls, texts: Tensor, at: Tensor) -> "Language":
        """Return the language of public texts (N, T)."""
        often = texts.flatten().bincount(minlength=len(at))[: len(at)]
        often[PAD] = 0
        chosen = often.argsort(descending=True, stable=True)[: min(_COUNTED, int((often > 0).sum()))]
        index = torch.zeros(len(at), dtype=torch.long)
        index[chosen] = torch.arange(1, len(chosen) + 1)
        first, second = texts[:, :-1].flatten(), texts[:, 1:].flatten()
        there = (first != PAD) & (second != PAD)
        size = len(chosen) + 1
        pairs = (index[first[there]] * size + index[second[there]]).bincount(minlength=size**2).double().view(size, -1)
        alone = torch.cat([often.new_ones(1), often[chosen]]).double()
        return cls(at, index, ((pairs + alone / alone.sum()) / (pairs.sum(1, keepdim=True) + 1)).log())

    def of_texts(self, texts: Tensor) -> Tensor:
        """Return the mean of the log-probabilities by places and by neighbours of texts (N, L) without an end: (N,)."""
        known = self.index[texts]
        at = self.at[texts, torch.arange(texts.shape[1])].sum(1)
        return (at + self.after[known[:, :-1], known[:, 1:]].sum(1)) / 2

    def of_word(self, text: Tensor, place: int) -> Tensor:
        """Return the mean of the log-probabilities by place and by neighbours of every word (V,) at a place of a text
        (L,)."""
        known, total = self.index[text], self.at[:, place].clone()
        if place:
            total += self.after[known[place - 1], self.index]
        if place + 1 < len(text):
            total += self.after[self.index, known[place + 1]]
        return total / 2

    def ordered(self, text: Tensor) -> Tensor:
        """A text (L,) after swaps of two words, each the likeliest one, as long as they make it likelier."""
        first, second = torch.triu_indices(len(text), len(text), 1)
        for _ in range(len(text)):
            swapped = text.repeat(len(first) + 1, 1)
            rows = torch.arange(1, len(swapped))
            swapped[rows, first], swapped[rows, second] = text[second], text[first]
            best = int(self.of_texts(swapped).argmax())
            if torch.equal(swapped[best], text):
                break
            text = swapped[best]
        return text


class Mixture:
    """One row's gradients of both tables: of words (V, E) and of places (T, E), and those of texts behind it.

    Args:
        seen: of one row, fit for it (:func:`require_texts_apart`).
        tables: where the two are.
        noise: deviation of its noise.
    """

    def __init__(self, seen: Observation, tables: tuple[TableRows, TableRows], noise: float) -> None:
        self._seen, self._tables, self._noise = seen, tables, noise
        self.words, self.places = (part[0] for part in self._parts(seen.target.double()))
        self._whole = torch.cat([self.words, self.places])

    def _parts(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        parts = self._seen.model.layout.split(gradients)
        words, places = (one.of(parts).cpu() for one in self._tables)
        return words, places

    def of(self, texts: Tensor, labels: Tensor) -> Tensor:
        """Return what texts (N, T) of classes (N,) would each have in both: (N, V + T, E)."""
        found = []
        for some in torch.arange(len(texts)).split(max(2, at_once(self._seen))):
            made = example_gradients(self._seen, images_of(texts[some]), labels[some], len(some))
            found.append(torch.cat(self._parts(made), 1).float())
        return torch.cat(found) / self._seen.unknowns

    def start(self, pool: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the texts to start from, as many as there are behind the gradient, and their classes. First choose
        those of the public texts (N, T) of classes (N,) that explain most, one after the other. Then replace each by
        the text of its class that fits best among those that end where it does."""
        made = self.of(pool, classes).flatten(1)
        target, products = self._whole.flatten().float(), made @ made.T
        fits, chosen = made @ target, list[int]()
        for _ in range(self._seen.unknowns):
            chosen.append(int((products.diagonal() - 2 * fits).argmin()))
            fits = fits - products[:, chosen[-1]]
        found, lengths = torch.tensor(chosen), (pool != PAD).sum(1)
        ends = self._ends(made[found].unflatten(1, self._whole.shape), lengths[found])
        texts, labels = pool[found].clone(), classes[found]
        for one, end in enumerate(ends.tolist()):
            off = torch.where(classes == labels[one], (lengths - end).abs(), pool.shape[1])
            others = made[found].sum(0) - made[found[one]]
            left = products.diagonal() - 2 * (made @ (target - others))
            found[one] = torch.where(off <= off.min(), left, torch.inf).argmin()
            texts[one] = pool[found[one]]
            texts[one, end:] = PAD
            length = int(lengths[found[one]])
            texts[one, length:end] = texts[one, length - 1]
        return texts, labels

    def _ends(self, made: Tensor, lengths: Tensor) -> Tensor:
        """Return how many places each text has (n,). The derivatives at a place are a sum of those typical for the
        texts that are still there."""
        typical = made[:, len(self.words) :].sum(1) / lengths.clamp_min(1)[:, None]
        shares = torch.linalg.lstsq(typical.T.double(), self.places.T).solution
        return (shares.nan_to_num(0.0) - _HALF).clamp(-1, 1).cumsum(1).argmax(1) + 1

    def nearer(self, texts: Tensor, labels: Tensor, language: Language) -> Tensor:
        """Texts (n, T) whose words explain more, by the derivatives of those that are given."""
        made, there = self.of(texts, labels).double(), texts != PAD
        derivatives = made[:, len(self.words) :]
        missing = self.places - derivatives.sum(0)
        derivatives = derivatives + (missing / there.sum(0).clamp_min(1)[:, None]) * there[..., None]
        texts = texts.clone()
        for _ in range(SWEEPS):
            left = self.words.index_put((texts[there],), -derivatives[there], accumulate=True)
            variance = self._variance(left, len(texts[there].unique()))
            for text, own, length in zip(texts, derivatives, there.sum(1).tolist(), strict=True):
                for place in range(length):
                    one, old = own[place], text[place].clone()
                    left[old] += one
                    scores = (left @ one - one @ one / 2) / variance + language.of_word(text[:length], place)
                    scores[PAD] = -torch.inf
                    text[place] = scores.argmax()
                    left[text[place]] -= one
                text[:length] = language.ordered(text[:length])
        return texts

    def _variance(self, left: Tensor, used: int) -> float:
        """Return the variance of the noise, or of what inexact derivatives leave in the rows of so many words: the
        larger one."""
        rows = left.square().sum(1).topk(max(1, used)).values
        return max(self._noise**2, float(rows.mean()) / left.shape[1], _TINY)


def mixed_texts(seen: Observation, tables: tuple[TableRows, TableRows], noise: float, at: Tensor) -> Tensor:
    """The texts (n, T) of one row; ``at``: (V, T), log-probabilities of words at places."""
    places, prior = seen.model.image_shape[-1], seen.prior
    assert prior is not None and prior.texts is not None  # as required
    exact = _without_noise(seen)
    if exact is not None:
        return exact
    (pool, classes), mixture = public_texts(seen), Mixture(seen, tables, noise)
    every = tokens_of(prior.texts.unflatten(1, (1, -1, places))).cpu()
    language = Language.of(every, at)
    texts, labels = mixture.start(pool, classes)
    for _ in range(ROUNDS):
        before, texts = texts, mixture.nearer(texts, labels, language)
        if torch.equal(before, texts):
            break
    return texts


def _without_noise(seen: Observation) -> Tensor | None:
    """All texts as attack ``span`` reads them, which only next to no noise leaves; else None."""
    try:
        texts = sentences.of_row(seen, 0)
    except UsageError:  # attention stands elsewhere in this network
        return None
    return texts if bool((texts != PAD).any(1).all()) else None
