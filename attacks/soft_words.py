"""Texts as vectors, which an attack may change little by little: how attack ``map`` reads texts.

A word counts for a network by the vector that a table puts out for it. So the network is taken behind its table: it
reads vectors (T, E), one for each place, and the gradient of the table itself is left out. In the end each vector is
taken for the nearest word of the table. Idea: Zhu et al., "Deep Leakage from Gradients" (NeurIPS 2019, section 4.2).
The prior is ours: a Gaussian with the mean and covariance of the vectors that words have at a place in public texts of
the class. How long a text is, the gradient of learned places says. Where it leaves several lengths open, or there are
no such places, some are tried, first those whose likeliest public text is likeliest.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.attacks.candidates import dummy_gradient
from harness.attacks.decode import ends_of, likely_lengths, noise_on
from harness.attacks.residual import improbability, knows_clip, negative_log_likelihood
from harness.attacks.token_layers import require_texts
from harness.attacks.token_rows import TableRows, Tables, read_tables
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.base.words import PAD, UNKNOWN, images_of, tokens_of
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode
from harness.models.rows import Way
from harness.observation import Observation

#: How much of the covariance of any words is added to that of words at a place, so that a rare word is not ruled out;
#: and of its mean variance, the least along any direction: a covariance needs a root.
_ANY, _LEAST = 0.02, 1e-4
#: Public texts of a length that are held against what was read, at most.
_OF_A_LENGTH = 8
#: Lengths that are so much less likely than the likeliest (natural logarithms) are not tried.
_OPEN = 12.0


class BehindWords(nn.Module):
    """A network of texts that is given vectors in the place of words: (B, 1, E + 1, T), last a row of 1 where one is.

    Args:
        network: of texts as images (B, 1, BITS, T).
        table: the name of its layer that puts out a vector for each word.
    """

    def __init__(self, network: nn.Module, table: str) -> None:
        super().__init__()
        self.network, self.table = network, table

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K)."""
        vectors, there = images[:, 0, :-1].mT, images[:, 0, -1] > 0.5
        if getattr(self.network, "reads_shorter", False):
            longest = max(1, int(there.sum(1).max()))
            vectors, there = vectors[:, :longest], there[:, :longest]
        return self.of_vectors(vectors, there * UNKNOWN)

    def of_vectors(self, vectors: Tensor, tokens: Tensor) -> Tensor:
        """Logits (B, K) of tokens (B, T) for which the table puts out vectors (B, T, E). Raises ValueError: it puts out
        others, such as some of words of its own."""

        def put(_: nn.Module, __: object, made: Tensor) -> Tensor:
            given = vectors.flatten(0, 1) if made.dim() == 2 else vectors  # as of bags of single words
            if given.shape != made.shape:
                raise ValueError("the table puts out other vectors than one for each word")
            return given

        hook = self.network.get_submodule(self.table).register_forward_hook(put)
        try:
            return self.network(images_of(tokens).to(vectors))
        finally:
            hook.remove()


def behind_words(model: RowModel) -> tuple[RowModel, Tables]:
    """A network of texts behind its table of words, of whose weights it has all others; and where these are.

    Raises:
        UsageError: it has no such table, or reads words elsewhere too.
    """
    require_texts(model, "map")
    tables, places = read_tables(model), model.image_shape[-1]
    refusal = UsageError(
        f"attack 'map' reads texts through one table of words, and model {model.name!r} has none, or reads words "
        "elsewhere too, as one that predicts the next word does; use --attack span or identify"
    )
    if tables is None or not tables.words_alone:
        raise refusal
    name, width = tables.layer, tables.width
    network = copy.deepcopy(model.plain_module)
    layer = network.get_submodule(name)
    if "weight" in layer._parameters:  # it is trained; here nothing reads it
        fixed = layer.get_parameter("weight").detach()
        del layer.weight
        layer.register_buffer("weight", fixed)
    soft, behind = copy.copy(model), BehindWords(network, name)
    soft.plain_module, soft.layout, soft.image_shape = behind, Layout.of(behind), (1, width + 1, places)
    others = tuple(f"network.{one}" for one in model.layout.names if one != f"{name}.weight")
    if soft.layout.names != others or not _reads_vectors_alone(behind, width, places):
        raise refusal
    soft.evaluate_by(Way(None, False, alone=True))
    return soft, tables


def _reads_vectors_alone(behind: BehindWords, width: int, places: int) -> bool:
    """Return whether vectors alone tell what the network makes of words, whichever these are."""
    random, behind = torch.Generator().manual_seed(0), copy.deepcopy(behind).requires_grad_(False)
    own = next(behind.parameters())
    vectors = torch.randn(2, 1, places, width, generator=random).to(own)
    for one in behind.parameters():  # a head of zeros hides what is read
        one += 0.02 * torch.randn(one.shape, generator=random).to(one)
    words = torch.full((1, places), UNKNOWN, device=own.device)
    try:
        with torch.no_grad(), in_evaluation_mode(behind):
            made, same, other = (
                behind.of_vectors(vectors[row], tokens) for row, tokens in ((0, words), (0, words + 1), (1, words))
            )
    except ValueError:
        return False
    return bool(torch.allclose(made, same, rtol=1e-4, atol=1e-6)) and not torch.equal(made, other)


@dataclass(frozen=True, eq=False)
class Vectors:
    """A table of words (V, E), and what public texts (N, T) of classes (N,) say of its vectors."""

    table: Tensor
    texts: Tensor
    classes: Tensor
    _known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def at(self, label: int) -> tuple[Tensor, Tensor]:
        """Means (T, E) and roots of covariances (T, E, E) of vectors at each place, in texts of a class.

        A word's share at a place is drawn to that in all texts, which has the weight of one text.
        """
        if label not in self._known:
            everywhere, table = self._counts(self.texts).sum(1) + 1, self.table.double()
            everywhere = everywhere / everywhere.sum()
            own = self._counts(of_class(self.texts, self.classes, label))
            whole, used = table.T @ (everywhere[:, None] * table), own.sum(1).nonzero()[:, 0]
            counts, words, total = own[used], table[used], own.sum(0)[:, None] + 1
            means = (counts.T @ words + everywhere @ table) / total
            squares = torch.stack([(words.T * at) @ words for at in counts.T]) + whole
            covariances = squares / total[..., None] - means[:, :, None] * means[:, None]
            apart = table[PAD + 1 :] - table[PAD + 1 :].mean(0)
            any_word = apart.T @ apart / len(apart) + _LEAST * apart.square().mean() * torch.eye(apart.shape[1]).to(
                table
            )
            roots = torch.linalg.cholesky(covariances + _ANY * any_word)
            self._known[label] = means.to(self.table), roots.to(self.table)
        return self._known[label]

    def _counts(self, texts: Tensor) -> Tensor:
        """Return how often each word stands at each place (V, T). The end is not counted as a word."""
        counts = torch.stack([column.bincount(minlength=len(self.table)) for column in texts.T], 1).double()
        counts[PAD] = 0.0
        return counts

    def nearest(self, vectors: Tensor) -> Tensor:
        """The words (...,) whose vectors are nearest to some (..., E)."""
        words = self.table[PAD + 1 :]
        apart = words.square().sum(1) - 2 * vectors @ words.T
        return apart.argmin(-1) + PAD + 1


@dataclass(frozen=True)
class SoftTexts(Observation):
    """An observation of one text a row, through a network behind its table of words.

    Attributes:
        words: of each row.
        learned: learned places; None without any.
    """

    words: tuple[Vectors, ...] = ()
    learned: TableRows | None = None

    def take(self, index: Tensor) -> "SoftTexts":
        """See :meth:`Observation.take`."""
        taken = super().take(index)
        assert isinstance(taken, SoftTexts)
        return taken if taken is self else replace(taken, words=tuple(self.words[row] for row in index.tolist()))

    def placed(self, position: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what positions (R, (E + 1) T) with labels (R, 1) mean.

        Returns:
            coordinates (R, 1, T E) in which the prior is standard normal, texts (R, 1, 1, BITS, T), and what the
            network is given (R, 1, 1, E + 1, T).
        """
        places = self.model.image_shape[-1]
        whole = position.view(len(position), -1, places)
        coordinates, there = whole[:, :-1].mT, whole[:, -1].detach() > 0.5
        texts, given = [], []
        for words, label, own, used in zip(self.words, labels[:, 0].tolist(), coordinates, there, strict=True):
            means, roots = words.at(label)
            vectors = means + torch.einsum("tde,te->td", roots, own)
            vectors = torch.where(used[:, None], vectors, words.table[PAD])
            texts.append(torch.where(used, words.nearest(vectors.detach()), PAD))
            given.append(torch.cat([vectors.mT, used[None].to(vectors)]))
        return (
            coordinates.flatten(1)[:, None],
            images_of(torch.stack(texts))[:, None],
            torch.stack(given)[:, None, None],
        )

    def unlikely(self, texts: Tensor, labels: Tensor) -> Tensor:
        """Negative log-likelihood (R,), float64, of texts (R, 1, 1, BITS, T) with labels (R, 1), up to a constant."""
        return improbability(self, self._gradient(texts, labels))

    def _gradient(self, texts: Tensor, labels: Tensor) -> Tensor:
        tokens = tokens_of(texts)[:, 0]
        vectors = torch.stack([words.table[text] for words, text in zip(self.words, tokens, strict=True)])
        given = torch.cat([vectors.mT, (tokens != PAD)[:, None].to(vectors)], 1)[:, None, None]
        return dummy_gradient(self, given, labels, knows_clip(self), differentiable=False).detach()

    def explained(self, texts: Tensor, labels: Tensor) -> Tensor:
        """Return whether texts (R, 1, 1, BITS, T) with labels (R, 1) leave nothing but rounding of what was read,
        (R,)."""
        return negative_log_likelihood(self, self._gradient(texts, labels)) <= self.target.shape[1]

    def used(self, labels: Tensor, turns: list[int]) -> Tensor:
        """Return which places (R, T) are used, by the class (R,) of each row: those of the length whose turn it is."""
        places, known, found = self.model.image_shape[-1], dict[tuple[int | str, ...], list[int]](), list[int]()
        for row, (label, turn) in enumerate(zip(labels.tolist(), turns, strict=True)):
            key = self.keys[row][:-1]  # the last is that of the start
            if key not in known:
                known[key] = self._ordered(row, label)
            found.append(known[key][turn if turn < len(known[key]) else 0])
        where = labels.device
        return torch.arange(places, device=where) < torch.tensor(found, device=where)[:, None]

    def _ordered(self, row: int, label: int) -> list[int]:
        """The open lengths of a row of a class: first those whose likeliest public text is likeliest."""
        words = self.words[row]
        texts, unlikely = of_class(words.texts, words.classes, label), dict[int, float]()
        lengths, found = _lengths(texts), open_lengths(self, row, self.learned, texts)
        for length in found if len(found) > 1 else []:
            own = texts[lengths == length][:_OF_A_LENGTH]
            if len(own):
                rows = torch.full((len(own),), row, device=self.target.device)
                labels = torch.full((len(own), 1), label, device=rows.device)
                unlikely[length] = float(self.take(rows).unlikely(images_of(own)[:, None], labels).min())
        return sorted(found, key=lambda length: unlikely.get(length, torch.inf))


def _lengths(texts: Tensor) -> Tensor:
    return (texts != PAD).sum(1).clamp_min(1)


def of_class(texts: Tensor, classes: Tensor, label: int) -> Tensor:
    """The texts (n, T) of a class; all where it has none."""
    own = texts[classes == label]
    return own if len(own) else texts


def open_lengths(observation: Observation, row: int, learned: TableRows | None, texts: Tensor) -> list[int]:
    """The lengths that a row's text may have, the likeliest first, by the gradient of ``learned`` places and by public
    texts (N, T) of its class; without such places, those of these texts."""
    if learned is None:
        return _lengths(texts).unique().tolist()
    own = learned.of(observation.model.layout.split(observation.target[row : row + 1]))[0].double().cpu()
    likely = likely_lengths(own, noise_on(observation, (learned.name,)), ends_of(texts).cpu())
    order = likely.argsort(descending=True, stable=True)
    return (order[likely[order] >= likely.max() - _OPEN] + 1).tolist() or [len(likely)]


def open_starts(observation: Observation, labels: Tensor) -> Tensor:
    """Labels (R, starts, 1) of the starts at texts, of which those (R, starts, 1) of likely classes are known, -1 for
    no more: as many more starts take the first class and another length as may be."""
    tables, prior = read_tables(observation.model), observation.prior
    learned = None if tables is None else tables.places
    assert prior is not None and prior.texts is not None and prior.classes is not None  # as required
    texts, classes = tokens_of(prior.texts.unflatten(1, (1, -1, observation.model.image_shape[-1]))), prior.classes
    for row, own in enumerate(labels):
        first = int(own[0])
        found = open_lengths(observation, row, learned, of_class(texts, classes, first))
        more = own[: len(found)]
        more[more < 0] = first
    return labels


def softened(observation: Observation) -> Callable[[Observation], SoftTexts]:
    """Return what makes of some rows of an observation of texts those that are attacked in their place.

    Raises:
        UsageError: several texts lie behind a row, there are no public texts, the network does not read words through
            one table, or what was read is not told coordinate by coordinate.
    """
    require_one_text(observation)
    model, prior, layout = observation.model, observation.prior, observation.model.layout
    assert prior is not None and prior.texts is not None and prior.classes is not None  # as required
    soft, tables = behind_words(model)
    table, places = tables.words.name, tables.places
    sizes = zip(layout.names, layout.sizes, strict=True)
    kept = torch.cat([torch.full((size,), name != table) for name, size in sizes]).nonzero()[:, 0]
    kept = kept.to(observation.target.device)
    texts, classes = tokens_of(prior.texts.unflatten(1, (1, -1, model.image_shape[-1]))), prior.classes

    def words_of(rows: Observation) -> tuple[Vectors, ...]:
        """Return the vectors of each row; one and the same for rows after each other that have the same table."""
        found: list[Vectors] = []
        for weights in rows.weights:
            trained = layout.split(weights[None]).get(table)
            own = model.plain_module.get_buffer(table) if trained is None else trained[0].detach()
            own = own[tables.words.index.to(own.device)]
            alike = bool(found) and torch.equal(found[-1].table, own)
            found.append(found[-1] if alike else Vectors(own, texts, classes))
        return tuple(found)

    def made(rows: Observation) -> SoftTexts:
        facts: dict[str, Any] = {one.name: getattr(rows, one.name) for one in fields(Observation)}
        of_all = ("weights", "target", "correction", "certainty", "trained")
        facts |= {one: facts[one][:, kept] for one in of_all if facts[one] is not None}
        if rows.noise is not None and isinstance(rows.noise.deviation, Tensor):
            facts["noise"] = replace(rows.noise, deviation=rows.noise.deviation[kept])
        if rows.clipping is not None and rows.clipping.grouping == "whole":  # of a gradient that is not all here
            facts["clipping"] = replace(rows.clipping, bound=None)
        facts["model"] = soft
        learned = None if places is None else replace(places, name=f"network.{places.name}")
        return SoftTexts(**facts, words=words_of(rows), learned=learned)

    return made


def require_one_text(observation: Observation) -> None:
    """Raises UsageError: not one text is behind each row, or what is read is not told coordinate by coordinate."""
    noise, prior = observation.noise, observation.prior
    if observation.examples > 1:
        raise UsageError(
            f"attack 'map' reads one text per observation, not {observation.examples}; use --batch-size 1 and one "
            "local step, or --attack span"
        )
    if prior is None or prior.texts is None:
        raise UsageError("attack 'map' on texts needs public texts; use --prior auto, or --prior FILE of your own")
    if noise is not None and (noise.deviation is None or noise.unread or noise.whitening is not None):
        raise UsageError(
            "attack 'map' on texts needs independent noise of a known level, and this level follows private data, is "
            "published by nobody, or is of several rounds; use --attack identify"
        )
    if observation.carrying is not None or observation.coding is not None:
        raise UsageError(
            "attack 'map' on texts leaves the gradient of the table of words out, and so cannot play a choice of "
            "coordinates or a rounding; use --attack identify"
        )
