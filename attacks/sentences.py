"""Sentences from the gradients of several texts: which tokens stood together, and in which order.

How it is done is ours. Where a word was used once, its row of the table's gradient is the loss's derivative by one
token, and the first attention's gradient, a sum over words and places of known vectors, has the derivative by the query
of that token. Such a derivative is a sum over the tokens to which the word listens, which are those of its own text:
every term can be computed but for whether it is there, and for one number of each head. So the text is a sparse
solution, none of it negative, of as many equations as the vectors have numbers, with one word at each place up to its
end. Derivatives of a place are sums of those of its words, so least squares tell which pairs of a word and a place are
likely; of solutions the likeliest is taken. A text whose sum equals what was seen is right, and with its gradient taken
away the words of the others are rarer.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.attacks.token_layers import other_words, outside, row_space, token_layer, trial_text, vectors_at
from harness.attacks.token_rows import TableRows, tables_of
from harness.base.errors import UsageError
from harness.base.words import PAD, images_of
from harness.models import NextWord, RowModel
from harness.models.batch_norm import in_evaluation_mode
from harness.observation import Observation

# Vectors that are one; a pair in the span of the first layer; of the largest row of the table, the least of a word.
_SAME, _MAY, _USED = 1e-4, 1e-4, 1e-4
# Of a sum: how far a right text's may be off, and of its gradient by the one word; of a word's derivatives, that by its
# query up to which it listens to itself alone; how far the number of equal texts may be off.
_RIGHT, _ITS_OWN, _ALONE, _WHOLE = 1e-3, 1e-2, 1e-4, 0.1
# Words from which a text is looked for, in vain, before the search ends; how often the weights of pairs are computed
# anew, and how often without coming nearer.
_TRIES, _ROUNDS, _PATIENCE = 32, 10, 2
# What a share is off by that least squares tell; what a pair costs that is not likely, in equations.
_BLUR, _COST = 0.2, 0.01
# Of the typical weight of a place, what a text has at least.
_HEAVY = 0.4
# Texts with labels that are tried at most, by so many numbers of the gradient, and of all so many; of the largest share
# in it, the least of a text, and how much of it may be left. Numbers of whole gradients that are held at once.
_MOST_TRIED, _MOST_NUMBERS, _MOST_KEPT, _LEFT, _HELD = 1024, 2**14, 2**22, 1e-3, 2**25


@dataclass(frozen=True)
class FirstAttention:
    """The first attention of a network of texts.

    Attributes:
        name: of its module; norm: of the layer whose output it reads.
        before: what is added to what it says is the norm's input, not its output.
    """

    name: str
    norm: str
    before: bool

    @property
    def matrix(self) -> str:
        """The name of its trained matrix (3 E, E) of queries, keys and values."""
        return f"{self.name}.in_proj_weight"


@contextmanager
def _calls(network: nn.Module) -> Iterator[list[tuple[str, nn.Module, Tensor, Tensor]]]:
    """Collect, in order, each module's name, itself, its first input and its output."""
    seen: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    hooks = []
    for name, module in network.named_modules():

        def see(module: nn.Module, given: tuple[Tensor, ...], out: object, name: str = name) -> None:
            value = out[0] if isinstance(out, tuple) else out
            if given and isinstance(given[0], Tensor) and isinstance(value, Tensor):
                seen.append((name, module, given[0].detach(), value.detach()))

        hooks.append(module.register_forward_hook(see))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@lru_cache(maxsize=2)
def first_attention(model: RowModel) -> FirstAttention:
    """Find it by what the network computes.

    Raises:
        UsageError: the network's first trained layer is no such attention, it reads no later places, or the words have
            no trained table.
    """
    words, _ = tables_of(model, "span")
    name, places = token_layer(model, "span").prefix, model.image_shape[-1]
    network = model.plain(model.initial_weights([("tokens",)])[0])
    text = trial_text(model)[None]
    other = torch.cat([text[:, :1], other_words(text[:, 1:])], 1)  # all is changed but the first word
    with torch.no_grad(), in_evaluation_mode(network), _calls(network) as calls:
        network(images_of(torch.cat([text, other])).to(next(network.parameters())))

    def same(one: Tensor, other: Tensor) -> bool:
        return one.shape == other.shape and bool((one - other).norm() <= _SAME * other.norm())

    attended = next(((given, out) for at, module, given, out in calls if at == name and _attends(module)), None)
    if attended is not None and places > 1 and same(attended[1][0, 0], attended[1][1, 0]):
        raise UsageError(
            f"attack 'span' tells several texts apart by attention that reads the whole text, and that of model "
            f"{model.name!r} reads no later words; use --batch-size 1, or --attack identify"
        )
    if attended is not None:
        for norm, module, given, out in calls:
            if _norms(module) and same(out, attended[0]):
                for added, before in ((given, True), (out, False)):
                    if any(same(read, added + attended[1]) for _, _, read, _ in calls):
                        return FirstAttention(name, norm, before)
    raise UsageError(
        f"attack 'span' tells several texts apart by the first attention (with batch_first) behind a table "
        f"{words.name.split('.')[0]!r} and a layer norm, which model {model.name!r} lacks; use --batch-size 1"
    )


def _attends(module: nn.Module) -> bool:
    whole = isinstance(module, nn.MultiheadAttention) and module.batch_first
    return whole and None not in (module.in_proj_weight, module.in_proj_bias)


def _norms(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) and module.elementwise_affine and module.bias is not None


@dataclass(frozen=True)
class Pairs:
    """The pairs of a word and a place that may have been used, and what the first attention makes of each.

    Attributes:
        words: (W,), the tokens that were used. rows: (W, E), of each the table's gradient. sums: (W, 3 E), of each the
            derivatives by query, key and value, over the deviation, summed over where it stands.
        word, place: (N,), of each pair, ``word`` an index into ``words``. likely: (N,), how much of the word's
            derivatives the place has, by least squares.
        centred: (N, E), the norm's input less its mean, over its deviation. deviation: (N,).
        queries, keys: (N, H, D). values: (H, N, E), of each head behind the last matrix.
    """

    words: Tensor
    rows: Tensor
    sums: Tensor
    word: Tensor
    place: Tensor
    likely: Tensor
    centred: Tensor
    deviation: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor

    def text(self, chosen: Tensor, places: int) -> Tensor:
        """The tokens (T,) of some of the pairs (N,)."""
        tokens = torch.full((places,), PAD)
        tokens[self.place[chosen]] = self.words[self.word[chosen]]
        return tokens

    def is_alone(self, word: int) -> bool:
        """Return whether a word listens to itself alone, so that another query would hear the same."""
        query, *others = self.sums[word].chunk(3)
        return bool(query.norm() <= _ALONE * torch.cat(others).norm())

    def exponentials(self, own: int) -> Tensor:
        """Return how much (H, N) pair ``own`` would attend to each pair, up to a factor of each head."""
        scores = torch.einsum("hd,nhd->hn", self.queries[own], self.keys) / self.keys.shape[2] ** 0.5
        return (scores - scores.amax(1, keepdim=True)).exp()

    def total(self, attended: Tensor, gained: Tensor) -> Tensor:
        """The derivative (H, D) by the query of a pair that listens to each so much (H, N), were ``gained`` (H, N) that
        by what each says."""
        attended = attended / attended.sum(1, keepdim=True)
        gained = gained - (attended * gained).sum(1, keepdim=True)
        return torch.einsum("hn,nhd->hd", attended * gained, self.keys) / self.keys.shape[2] ** 0.5

    def spread(self, own: int) -> Tensor:
        """Weights (N,) of pairs before anything is known: the likely ones of a place, and pair ``own``."""
        weights = self.likely.clamp(_BLUR**2, 1.0).square()
        there = weights / torch.zeros_like(weights).index_add(0, self.place, weights)[self.place]
        return there.where(self.place != self.place[own], 0.0).index_fill(0, torch.tensor(own), 1.0)

    def surest(self) -> Tensor:
        """Return the pairs (N,) in order: first those of words that were used once, at that place, which have all of
        its derivatives, and small ones."""
        squares = torch.zeros(len(self.words)).to(self.likely).index_add(0, self.word, self.likely.square())
        off = squares[self.word] - 2 * self.likely + 1
        return ((off + _BLUR) * self.sums.norm(dim=1)[self.word]).argsort(stable=True)


@dataclass(frozen=True)
class Listening:
    """Derivatives of a word if it stood at the place of pair ``own``.

    Attributes:
        query: (H, D), by its query. attends: (H, N), to each pair, up to a factor of each head.
        said: (H, N), by what each pair says to it. unsaid: (H, N, 0 or 2), the same in directions in which the
            derivative by what attention says is not known, since a norm has none there.
    """

    own: int
    query: Tensor
    attends: Tensor
    said: Tensor
    unsaid: Tensor

    @classmethod
    def of(cls, pairs: Pairs, own: int, query: Tensor, said: Tensor) -> "Listening | None":
        """Return the derivatives at pair ``own``, given that by its query and those (E, 1 or 3) by what attention says;
        None where these are no numbers, as a norm without a gain leaves them."""
        if not bool(said.isfinite().all()):
            return None
        gained = pairs.values @ said
        return cls(own, query, pairs.exponentials(own), gained[..., 0], gained[..., 1:])


@dataclass(frozen=True)
class Guess:
    """Guess of the numbers in which the equations of a word are not linear.

    Attributes:
        there: (N,), how much each pair is in its text. gain: (H,), the derivative by what each head says, times that,
            on average over the text. said: (0 or 2,), along the directions that are not known. found: all numbers that
            the last step solved for, from which the next one starts; None before the first.
    """

    there: Tensor
    gain: Tensor
    said: Tensor
    found: Tensor | None = None

    @classmethod
    def first(cls, pairs: Pairs, heard: Listening) -> "Guess":
        there = pairs.spread(heard.own)
        attended = heard.attends * there
        gain = (attended * heard.said).sum(1) / attended.sum(1)
        return cls(there, gain, heard.said.new_zeros(heard.unsaid.shape[2]))


def equations(pairs: Pairs, heard: Listening, guess: Guess) -> tuple[Tensor, Tensor]:
    """Columns (M, N) of the pairs, whose weighted sum is zero at a word's own text, and (M, H + 0 or 2) derivatives of
    that sum by ``gain`` and ``said``.

    With softmax weights e_j / Z, the query's derivative is the sum of e_j (g_j - gain) k_j / Z, and Z that of e_j. So
    the sum of e_j ((g_j - gain) k_j - derivative) is zero, and by the definition of gain that of e_j (g_j - gain).
    """
    width = pairs.keys.shape[2] ** 0.5
    exponentials, keys, unsaid = heard.attends, pairs.keys.transpose(0, 1) / width, heard.unsaid
    less = exponentials * (heard.said + unsaid @ guess.said - guess.gain[:, None])
    columns = less[..., None] * keys - exponentials[..., None] * heard.query[:, None]
    heads = 1 / columns.norm(dim=2).mean(1).clamp_min(1e-300)
    sums = heads * heard.query.norm(dim=1)
    attended = exponentials * guess.there
    by_gain = [
        torch.block_diag(*(-heads[:, None] * torch.einsum("hn,hnd->hd", attended, keys))[..., None]),
        torch.diag(-sums * attended.sum(1)),
    ]
    by_said = [
        (torch.einsum("hn,hnk,hnd->hdk", attended, unsaid, keys) * heads[:, None, None]).flatten(0, 1),
        torch.einsum("hn,hnk->hk", attended, unsaid) * sums[:, None],
    ]
    columns = torch.cat([(columns * heads[:, None, None]).transpose(1, 2).flatten(0, 1), less * sums[:, None]])
    return columns, torch.cat([torch.cat(by_gain), torch.cat(by_said)], 1)


class Reader:
    """Reader of gradients (P,) of a network with weights (P,)."""

    def __init__(self, model: RowModel, weights: Tensor, target: Tensor) -> None:
        self.model, self.weights = model, weights
        self.found, (self.table, self.learned) = first_attention(model), tables_of(model, "span")
        network = model.plain(weights)
        attention, norm = (
            deepcopy(network.get_submodule(name)).cpu().double().requires_grad_(False)
            for name in (self.found.name, self.found.norm)
        )
        assert isinstance(attention, nn.MultiheadAttention) and isinstance(norm, nn.LayerNorm)  # as they were found
        self.attention, self.norm = attention, norm
        self.places = model.image_shape[-1]
        self.largest = float(self.words(target).norm(dim=1).max())

    def of(self, target: Tensor, name: str) -> Tensor:
        """The part of a gradient (P,) that is of the weights of that name, in double precision."""
        return self.model.layout.split(target[None])[name][0].cpu().double()

    def rows(self, target: Tensor, table: TableRows) -> Tensor:
        """The rows (V or T, E) of a table in a gradient (P,), in double precision."""
        return table.of(self.model.layout.split(target[None]))[0].cpu().double()

    def words(self, target: Tensor) -> Tensor:
        """The rows (V, E) of a gradient (P,) that are of each word."""
        return self.rows(target, self.table)

    def used(self, target: Tensor) -> Tensor:
        """The words (W,) behind a gradient (P,), and number 0 where the network reads it."""
        return (self.words(target).norm(dim=1) > _USED * self.largest).nonzero()[:, 0]

    def pairs(self, target: Tensor) -> Pairs | None:
        """Those that may have been used; None where the share of each word in the gradient cannot be told."""
        rows, matrix, used = self.words(target), self.of(target, self.found.matrix), self.used(target)
        if not len(used):
            return None
        given = vectors_at(self.model, self.found.norm, self.weights, used[:, None].expand(-1, self.places))
        assert given is not None  # it was called when it was found
        given = given.cpu().double()
        deviation = (given.var(-1, unbiased=False) + self.norm.eps).sqrt()
        centred = (given - given.mean(-1, keepdim=True)) / deviation[..., None]
        read = centred * self.norm.weight + self.norm.bias
        may = outside(read, row_space(matrix)) < _MAY
        (word, place), there = may.nonzero().T, may.any(0)
        if not len(word) or len(used) + int(there.sum()) > rows.shape[1]:
            return None
        three = read[word, place] @ self.attention.in_proj_weight.T + self.attention.in_proj_bias
        queries, keys, values = three.unflatten(1, (3, self.attention.num_heads, -1)).unbind(1)
        last = self.attention.out_proj.weight.unflatten(1, (self.attention.num_heads, -1))
        values = torch.einsum("nhd,ehd->hne", values, last)
        sums, of_places = self._sums(given[:, there], matrix)
        learned = [] if self.learned is None else [self.rows(target, self.learned)[there]]
        shares = _shares([*sums.chunk(3, 1), rows[used]], [*of_places.chunk(3, 1), *learned])
        likely, own = shares[word, there.cumsum(0)[place] - 1], (word, place)
        return Pairs(used, rows[used], sums, *own, likely, centred[own], deviation[own], queries, keys, values)

    def _sums(self, given: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of words (W, 3 E) and of places (T, 3 E). Vectors (W, T, E) are sums of one of the word and
        one of the place, but for their deviation."""
        parts = torch.cat([given[:, 0], given[0, 1:] - given[:1, 0]])
        parts = torch.cat([(parts - parts.mean(1, keepdim=True)) * self.norm.weight, self.norm.bias[None]])
        words, others = (matrix @ torch.linalg.pinv(parts)).T[:-1].split([len(given), given.shape[1] - 1])
        return words, torch.cat([words.sum(0, keepdim=True) - others.sum(0, keepdim=True), others])

    def listening(self, pairs: Pairs, own: int) -> Listening | None:
        """Return the derivatives of the word of pair ``own`` at its place; None where they are no numbers."""
        return Listening.of(pairs, own, *self._derivatives(pairs, own))

    def _derivatives(self, pairs: Pairs, own: int) -> tuple[Tensor, Tensor]:
        """By the query (H, D) of a pair, and by what attention says to it (E, 1), or (E, 3) with the directions in
        which that is not known."""
        row, centred, deviation = pairs.rows[pairs.word[own]], pairs.centred[own], pairs.deviation[own]
        derivatives = pairs.sums[pairs.word[own]] * deviation
        query = derivatives.unflatten(0, (3, self.attention.num_heads, -1))[0]
        back, gain = derivatives @ self.attention.in_proj_weight, self.norm.weight
        if self.found.before:
            back = back * gain
            back = back - back.mean() - centred * (back * centred).mean()
            return query, (row - back / deviation)[:, None]
        return query, torch.stack([row * deviation / gain - back, 1 / gain, centred / gain], 1)

    def without(self, target: Tensor, text: Tensor, word: Tensor) -> tuple[Tensor, float] | None:
        """A gradient less that of a text (T,), and the text's share in it, at the label at which the row of one of its
        words is explained; at several labels where equal texts have these."""
        seen, best, found, rows = self.words(target)[word], _ITS_OWN, None, []
        for label in range(self.model.classes):
            own = self._gradient(text, torch.tensor(label))
            rows.append(self.words(own)[word])
            share = float((seen @ rows[-1]) / rows[-1].square().sum().clamp_min(1e-300))
            off = float((seen - share * rows[-1]).norm() / seen.norm())
            if off < best and share > 0:
                best, found = off, (target - share * own, share)
        return found or self._without_several(target, text, seen, torch.stack(rows))

    def _without_several(
        self, target: Tensor, text: Tensor, seen: Tensor, rows: Tensor
    ) -> tuple[Tensor, float] | None:  # fmt: skip
        """Rows (K, E) of all labels, weighed by their probabilities, add up to zero: equal texts lack one label."""
        shares = [nonnegative(rows.index_fill(0, torch.tensor(label), 0.0).T, seen) for label in range(len(rows))]
        known = [one for one in shares if one is not None]
        best = min(known, key=lambda one: float((seen - one @ rows).norm()), default=None)
        if best is None or float((seen - best @ rows).norm() / seen.norm()) >= _ITS_OWN:
            return None
        share = float(best.sum())
        return target - share * self._gradient(text, (best / share).to(target)), share

    def _gradient(self, text: Tensor, label: Tensor) -> Tensor:
        """The gradient (P,) of a text (T,) with a label (), or with one that has probabilities (K,)."""
        images, labels = images_of(text[None, None]).to(self.weights), label[None, None].to(self.weights.device)
        return self.model.gradient(self.weights[None], images, labels)[0]


def _shares(words: list[Tensor], places: list[Tensor]) -> Tensor:
    """Return the shares (W, T) of derivatives of words (W, E) that make up those of places (T, E), by least squares.
    Each kind of derivatives counts alike, and one that only words have does not count."""
    scales = [one.norm().clamp_min(1e-300) for one in words[: len(places)]]
    ones, others = (torch.cat([a / b for a, b in zip(of, scales, strict=False)], 1) for of in (words, places))
    return (others @ torch.linalg.pinv(ones)).T


def sentences(reader: Reader, target: Tensor, examples: int) -> Tensor:
    """The texts (n, T) of a gradient (P,), empty where one was not found. Equal texts are one whose share is several
    times that of one text."""
    found: list[Tensor] = []
    shares: list[float] = []
    tried = Counter[tuple[int, int]]()
    while len(found) < examples and (one := _next(reader, target, tried)) is not None:
        text, target, share = one
        found.append(text)
        shares.append(share)
    pairs = reader.pairs(target) if len(found) < examples else None
    rest = (examples - len(found), _possible(reader, pairs)) if pairs else None
    more = rest and explained(reader.model, reader.weights[None], target, *rest)
    if more:
        found, shares = [*found, *more[0]], [*shares, *more[1].tolist()]
    if more or not len(reader.used(target)):  # so all shares are known, whatever the scale
        shares = [share / sum(shares) for share in shares]
    texts = torch.stack(found) if found else torch.empty(0, reader.places, dtype=torch.long)
    return with_copies(texts, torch.tensor(shares), examples)


def _possible(reader: Reader, pairs: Pairs) -> Tensor:
    """The texts (N, T) of pairs, one at each place up to their ends; none where they are too many to try."""
    texts, ends = torch.full((1, reader.places), PAD), list[Tensor]()
    for place in range(reader.places):
        words = pairs.words[pairs.word[pairs.place == place]]
        if len(texts) * len(words) + sum(map(len, ends)) > _MOST_TRIED:
            return texts[:0]
        texts = texts.repeat_interleave(len(words), 0)
        texts[:, place] = words.repeat(len(texts) // max(1, len(words)))
        ends.append(texts)
        if not len(words):
            break
    return torch.cat(ends)


def explained(
    model: RowModel, weights: Tensor, target: Tensor, examples: int, texts: Tensor
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    """Some of the texts (N, T) with their shares, if so many at most explain a gradient (P,), at weights (1, P), by
    least squares without negative shares; None where not, or where they are too many to try."""
    labels = 1 if isinstance(model.plain_module, NextWord) else model.classes
    texts = texts.repeat_interleave(labels, 0)
    if not 0 < len(texts) <= _MOST_TRIED:
        return None
    targets, together = torch.arange(len(texts), device=target.device) % labels, max(1, _HELD // len(target))
    kept = target.abs().topk(min(_MOST_NUMBERS, _MOST_KEPT // len(texts), len(target))).indices
    parts = [
        model.per_example_gradients(weights, images_of(some)[None].to(target), label[None])[0][:, kept]
        for some, label in zip(texts.split(together), targets.split(together), strict=True)
    ]
    columns, wanted = torch.cat(parts).cpu().double(), target[kept].cpu().double()
    shares = nonnegative(columns.T, wanted)
    if shares is None or (wanted - shares @ columns).norm() > _LEFT * wanted.norm():
        return None
    there = shares > _LEFT * shares.max()
    if int(there.sum()) > examples:  # no explanation by so many texts
        return None
    return texts[there], shares[there]


def with_copies(texts: Tensor, shares: Tensor, examples: int) -> Tensor:
    """The texts (n, T) behind a gradient in which some (N, T) have shares (N,): each once, those again whose share is
    several times that of one text, and empty ones."""
    counts = examples * shares
    copies = counts.round().where((counts - counts.round()).abs() < _WHOLE, 1.0).clamp_min(1.0).long()
    empty = texts.new_full((examples, texts.shape[1]), PAD)
    return torch.cat([texts, texts.repeat_interleave(copies - 1, 0), empty])[:examples]


def _next(
    reader: Reader, target: Tensor, tried: Counter[tuple[int, int]]
) -> tuple[Tensor, Tensor, float] | None:  # fmt: skip
    """One text, the gradient without it, and its share. First come the surest pairs that were least often ``tried``."""
    pairs = reader.pairs(target)
    if pairs is None:
        return None
    names = list(zip(pairs.words[pairs.word].tolist(), pairs.place.tolist(), strict=True))
    for own in sorted(pairs.surest().tolist(), key=lambda pair: tried[names[pair]])[:_TRIES]:
        tried[names[own]] += 1
        text = _heard(reader, pairs, own)
        left = None if text is None else reader.without(target, text, pairs.words[pairs.word[own]])
        if text is not None and left is not None:
            return text, *left
    return None


def _heard(reader: Reader, pairs: Pairs, own: int) -> Tensor | None:
    """The text (T,) that says all a word heard at its place, or the word alone if that is nothing; None if there is
    none."""
    if pairs.is_alone(int(pairs.word[own])):
        return pairs.text(torch.tensor([own]), reader.places)
    heard = reader.listening(pairs, own)
    if heard is None:
        return None
    guess, off = Guess.first(pairs, heard), [torch.inf]
    while len(off) <= _ROUNDS and min(off[-_PATIENCE:]) <= min(off):
        guess = _nearer(pairs, heard, guess)
        if guess is None:
            break
        text = _chosen(pairs, guess.there)
        off.append(unexplained(pairs, heard, text))
        if off[-1] < _RIGHT:
            return pairs.text(text > 0, reader.places)
    return None


def _nearer(pairs: Pairs, heard: Listening, guess: Guess) -> Guess | None:
    """A step of Gauss and Newton: weights that are not negative, and changes of ``gain`` and ``said`` of any sign; None
    where it leads nowhere."""
    (columns, derivatives), own = equations(pairs, heard, guess), heard.own
    others = (pairs.place != pairs.place[own]).nonzero()[:, 0]
    typical = columns.norm(dim=0).mean()
    scale = typical / derivatives.norm(dim=0).clamp_min(1e-300)
    either = derivatives * scale
    told = torch.cat([columns[:, others], either, -either], 1)
    counted, wanted = _of_texts(pairs, own, others, told.shape[1])
    known = torch.cat([functional.pad(told, (0, counted.shape[1] - told.shape[1])), typical * counted])
    found = nonnegative(known, torch.cat([-columns[:, own], typical * wanted]), guess.found)
    if found is None:  # a step went beyond all numbers
        return None
    there = torch.zeros_like(guess.there)
    there[others], there[own] = found[: len(others)], 1.0
    more, less = found[len(others) : told.shape[1]].chunk(2)
    gain, said = ((more - less) * scale).split([len(guess.gain), len(guess.said)])
    return Guess(there, guess.gain + gain, guess.said + said, found)


def _of_texts(pairs: Pairs, own: int, others: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return equations (M, count + L) and what they add up to (M,): each place up to the end of a text has one word,
    and unlikely pairs cost a little. Unknown are the weights of other pairs, as the first of ``count`` numbers, and
    which of L lengths the text has."""
    places, place = torch.arange(int(pairs.place.max()) + 1), int(pairs.place[own])
    ends = places[place:] + 1
    one = (pairs.place[others] == places[:, None]).to(pairs.likely)
    longer = (ends > places[:, None]).to(one)
    costs = _COST * (1 - pairs.likely[others].clamp(0.0, 1.0))
    rows = torch.cat([functional.pad(one, (0, count - len(others))), -longer], 1)
    rows = torch.cat([rows, functional.pad(costs[None], (0, rows.shape[1] - len(others)))])
    return rows, torch.zeros(len(rows)).to(rows).index_fill(0, torch.tensor(place), -1.0)


def _chosen(pairs: Pairs, weights: Tensor) -> Tensor:
    """One pair of each place up to the end of a text (N,): the heaviest; behind the end they are light."""
    grid = weights.new_zeros(len(pairs.words), int(pairs.place.max()) + 1)
    grid[pairs.word, pairs.place] = weights
    heaviest, words = grid.max(0)
    typical = heaviest[heaviest > 0].median() if bool((heaviest > 0).any()) else heaviest[0]
    length = int((heaviest - _HEAVY * typical).clamp(-typical, typical).cumsum(0).argmax()) + 1
    return ((pairs.place < length) & (words[pairs.place] == pairs.word) & (weights > 0)).double()


def unexplained(pairs: Pairs, heard: Listening, there: Tensor) -> float:
    """The share of what a word heard that a text does not explain, whatever is said in directions that nobody knows."""
    attended = heard.attends * there
    each = (heard.said, *heard.unsaid.unbind(2))
    sums = torch.stack([pairs.total(attended, gained).flatten() for gained in each])
    left = heard.query.flatten() - sums[0]
    if not bool(sums.isfinite().all()):
        return torch.inf
    if len(sums) > 1:
        left = left - sums[1:].T @ torch.linalg.lstsq(sums[1:].T, left[:, None]).solution[:, 0]
    return float((left.norm() / heard.query.norm()).nan_to_num(torch.inf))


def of_row(observation: Observation, row: int) -> Tensor:
    """The texts (n, T) of one row."""
    weights, target = observation.weights[row], observation.target[row]
    if not target.isfinite().all():
        return torch.full((observation.unknowns, observation.model.image_shape[-1]), PAD)
    return sentences(Reader(observation.model, weights, target), target, observation.unknowns)


# --------------------------------------------------------------------------------------
# Least squares with weights that are not negative, for a few hundred equations of thousands of columns.
#
# As Lawson and Hanson do it (1974), but several columns join at once, and all that turn negative leave at once, as long
# as that comes nearer; a start from the last solution of like equations saves most steps. The solution is theirs.


# Columns that join at once, and fewer where these lead nowhere; what counts as a way nearer, as a share.
_JOIN = (16, 4, 1)
_NEARER = 1e-10
_STEPS = 1_000


def nonnegative(columns: Tensor, wanted: Tensor, start: Tensor | None = None) -> Tensor | None:
    """Weights (N,), none negative, whose sum of columns (M, N) comes nearest to a vector (M,); None of no numbers.

    Args:
        start: (N,), weights of which those above zero are tried first.
    """
    if not (columns.isfinite().all() and wanted.isfinite().all()):
        return None
    scale = columns.norm(dim=0).clamp_min(1e-300)
    rows, length = (columns / scale).T.contiguous(), wanted.norm()
    used = torch.zeros_like(scale, dtype=torch.bool) if start is None else start > 0
    used, weights = _settled(rows, wanted, used)
    rest = wanted - rows[used].T @ weights[used]
    for _ in range(_STEPS):
        slopes = (rows @ rest).masked_fill(used, -torch.inf)
        steepest = slopes.topk(min(_JOIN[0], len(slopes)))
        joining = steepest.indices[steepest.values > _NEARER * length]
        if not len(joining):
            break
        for count in _JOIN:
            tried = used.clone()
            tried[joining[:count]] = True
            tried, found = _settled(rows, wanted, tried, weights if count == 1 else None)
            left = wanted - rows[tried].T @ found[tried]
            if left.norm() < rest.norm() * (1 - 1e-12):
                used, weights, rest = tried, found, left
                break
        else:
            break
    return weights / scale


def _settled(
    rows: Tensor, wanted: Tensor, used: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Those of the used rows (N, M) that stay where negative ones leave, and their weights (N,).

    Args:
        weights: (N,), from which a way without negative weights is taken, so that none leaves that is needed: the slow
            and sure way. None for all at once.
    """
    made = torch.zeros(len(rows), dtype=rows.dtype)
    while used.any():
        own = rows[used]
        factor, failed = torch.linalg.cholesky_ex(own @ own.T)
        if failed:  # columns that are alike
            found = torch.linalg.lstsq(own.T, wanted[:, None], driver="gelsd").solution[:, 0]
        else:
            found = torch.cholesky_solve((own @ wanted)[:, None], factor)[:, 0]
        leaving = found <= 0
        if not bool(leaving.any()):
            made[used] = found
            break
        if weights is not None:
            before, weights = weights[used], weights.clone()
            far = (before / (before - found)).nan_to_num(0.0).where(leaving, torch.inf)
            weights[used] = before + far.min() * (found - before)
            leaving = far <= far.min()
        used = used.clone()
        used[used.nonzero()[:, 0][leaving]] = False
    return used, made
