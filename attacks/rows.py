"""Rows: whole rows of a table from the gradient of a batch, one at a time; a fully connected network or transformer.

Of a transformer with a token of each column, one row alone is told in closed form (:mod:`harness.attacks.row_tokens`).
A guess of a row says what the gradient must contain if the row is in the batch, by the known weights. Most of that can
be checked without the other rows (:mod:`harness.attacks.row_checks`). So rows are searched one by one: a guess changes
one categorical column at a time, and takes the numbers that fit best. What is found is taken out of the gradient, whose
rank falls by as many, and the search begins again. Where a batch has more rows than the layers have dimensions no check
is exact; then the best half of the guesses is taken out, and all numbers are fitted together at the end.

The server is honest: it only reads. Of the data the attacker knows which features make a column, as public as the
network. Idea of one-hot columns, pooled restarts and the entropy of a column as the attacker's own confidence: Vero et
al., "TabLeak: Tabular Data Leakage in Federated Learning" (ICML 2023), who descend the distance of gradients. The span
of a layer's gradient: Dimitrov et al., "SPEAR" (NeurIPS 2024). That one row is checked alone is ours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from harness.attacks.analytic import closed_form
from harness.attacks.attack import ATTACKS, ClosedForm, validated_attack
from harness.attacks.row_checks import Batch, Checks, Network, bent, descended, fitted, layer_names, noise_of
from harness.attacks.row_tokens import TokenNetwork, mean_row, token_layers
from harness.base.columns import Columns
from harness.base.randomness import generator
from harness.base.ranges import Count
from harness.models import RowModel
from harness.models.side_by_side import side_by_side
from harness.observation import Observation

_SURE = (1e-7, 1e-6, 1e-5)
"""Shares of a guess outside of the spans up to which it is a row of the batch; the least that some guess keeps."""
_FEW, _EACH = 60, 15
"""Guesses that a search begins with, at least, and for each row that is left."""
_AGAIN = 2
"""So many searches may find nothing sure before the best guesses are taken for rows."""
_TOGETHER = 100
_TURNS, _EXPLAINED = 3, 1e-10
"""Most turns of fitting all rows together, and what is left of the gradient when they are right."""
_DOUBTFUL = 16
"""One row in so many, the last that were found, has its categories fitted with the numbers."""


def read_layers(model: RowModel) -> Sequence[tuple[str, str]]:
    """Return the parameter names (weight, bias) of the linear layers that the attack reads: those that get one vector
    of each row.

    Raises:
        UsageError: the network is neither fully connected nor one that makes tokens of columns.
    """
    return token_layers(model) or layer_names(model)


def network_of(model: RowModel, weights: Tensor, gradients: Mapping[str, Tensor]) -> Network:
    """Return the network with weights (P,), of a batch with gradients by name."""
    return TokenNetwork.of_tokens(model, weights, gradients) if token_layers(model) else Network.of(model, weights)


@ATTACKS.register("rows")
@validated_attack
class Rows(ClosedForm):
    """Rows come in the order of the attacker's confidence.

    Attributes:
        draws: guesses that each search begins with.
        searches: most searches per victim.
    """

    draws: Count = 500
    searches: Count = 12

    uses_labels: ClassVar[bool] = False

    def superfluous(self, observation: Observation) -> str | None:
        height = observation.model.image_shape[-2]
        return "attack 'rows' reads tables, and these are images; a suite leaves it out" if height > 1 else None

    def solved(self, observation: Observation) -> Tensor:
        read_layers(observation.model)

        def of_row(row: int) -> Tensor:
            return self.found(observation, row).rows.flatten()

        light = observation.target.device.type == "cpu"
        return torch.stack(side_by_side(of_row, range(observation.rows), light)).to(observation.target)

    def found(self, observation: Observation, row: int) -> "Found":
        """Return what is found behind one row of an observation, all its ``unknowns`` rows of the table."""
        count, read = observation.unknowns, observation.target[row].double()
        columns = observation.columns or Columns(tuple(map(str, range(math.prod(observation.model.image_shape)))))
        named = observation.model.layout.split(read * count)
        names = read_layers(observation.model)
        tokens = bool(token_layers(observation.model))
        one = observation.take(torch.tensor([row], device=read.device))
        rescaled = count == 1 and observation.clipping is not None
        blank = mean_row(observation.model, named, rescaled) if tokens else closed_form(one, False)[0].double()
        blank = blank.clamp(0, 1)
        if not read.isfinite().all():
            return Found(columns.project(blank.nan_to_num(0.0)).repeat(count, 1), torch.zeros(count))
        if tokens and count == 1:
            return Found(columns.project(blank)[None], torch.zeros(count))
        sums = tuple(torch.cat([named[weight], named[bias][:, None]], 1) for weight, bias in names)
        batch = Batch(network_of(observation.model, observation.weights[row], named), sums)
        numbers = blank[: len(columns.continuous)]
        search = _Search(batch, columns, count, numbers, generator("rows", *observation.keys[row]))
        # Under a clip rows are in the gradient by shares that nobody knows, and none can be taken out.
        search.run(self.draws, self.searches if observation.clipping is None else 0)
        return search.result(blank)


@dataclass(frozen=True)
class Found:
    """``rows`` (n, D) of a table, those first of which the attacker is most certain; ``entropy`` (n,) of their
    categorical columns, in shares of the largest possible."""

    rows: Tensor
    entropy: Tensor


@dataclass
class _Guesses:
    """Guesses (m, D) with labels (m,), best first: how far from the batch each is, by all checks and strictly."""

    rows: Tensor
    labels: Tensor
    score: Tensor
    strict: Tensor

    def take(self, some: Tensor) -> "_Guesses":
        return _Guesses(self.rows[some], self.labels[some], self.score[some], self.strict[some])


@dataclass
class _Search:
    """The search for the rows of one batch."""

    batch: Batch
    columns: Columns
    count: int
    usual: Tensor
    random: torch.Generator
    rows: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    entropy: Tensor = field(init=False)
    exact: bool = field(init=False, default=True)
    sure: int = field(init=False, default=0)
    others: _Guesses | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.rows = self.usual.new_zeros(0, self.columns.width)
        self.labels = torch.zeros(0, dtype=torch.long, device=self.usual.device)
        self.entropy = self.usual.new_zeros(0)

    @property
    def left(self) -> int:
        """Return how many rows are not found yet."""
        return self.count - len(self.rows)

    def run(self, draws: int, searches: int) -> None:
        """Searches until all rows are found, or a search finds none; of no searches, one, and nothing is taken out."""
        noise, again = [noise_of(gradient, self.count) for gradient in self.batch.gradients], 0
        if not searches:
            self.guessed(Checks(self.batch.network, self.batch.gradients, self.count, self.columns, noise), draws)
        for _ in range(searches):
            if not self.left:
                break
            rest = self.batch.without(self.rows, self.labels)
            checks = Checks(self.batch.network.without(self.rows, self.labels), rest, self.left, self.columns, noise)
            guesses = self.guessed(checks, min(draws, _FEW + _EACH * self.left))
            if not len(guesses.rows):
                break
            sure = next((sure for level in _SURE if len(sure := (guesses.strict < level).nonzero()[:, 0])), None)
            if sure is None and checks.settled and self.exact and again < _AGAIN:
                again += 1
                continue
            if sure is None or not checks.settled:
                self.exact, sure = False, torch.arange((self.left + 1) // 2)
            self.keep(checks, guesses, sure[: self.left])
        if not self.exact and self.others is not None:
            self.fit_all(self.others)

    def guessed(self, checks: Checks, draws: int) -> _Guesses:
        """The best guess of each set of categories, with the label by which it is in the gradient."""
        made = []
        for part in self.drawn(checks, draws).split(_TOGETHER):
            labels = torch.randint(0, checks.classes, (len(part),), generator=self.random).to(part.device)
            rows, _ = descended(checks, part, labels, self.usual)
            made.append(rows)
        rows = torch.cat(made)
        every = torch.arange(checks.classes, device=rows.device)
        rows, labels = rows.repeat(len(every), 1), every.repeat_interleave(len(rows))
        score = checks.score(rows, labels).where(checks.part(rows, labels) > 0, torch.inf)
        found: dict[tuple[int, ...], int] = {}
        names = torch.cat([self.columns.categories(rows), labels[:, None]], 1).tolist()
        order = score.argsort()
        for place in order[score[order].isfinite()].tolist():
            found.setdefault(tuple(names[place]), place)
        some = torch.tensor(list(found.values()), dtype=torch.long, device=rows.device)
        self.others = _Guesses(rows[some], labels[some], score[some], checks.score(rows[some], labels[some], True))
        return self.others

    def drawn(self, checks: Checks, draws: int) -> Tensor:
        """Guesses (m, D) of categories that are in the batch, all alike probable."""
        rows = self.usual.new_zeros(draws, self.columns.width)
        rows[:, : len(self.usual)] = self.usual
        for place in self.columns.slices:
            there = checks.present[place].double().cpu() + 1e-9
            chosen = torch.multinomial(there, draws, True, generator=self.random).to(rows.device)
            rows[torch.arange(draws), place.start + chosen] = 1.0
        return rows

    def keep(self, checks: Checks, guesses: _Guesses, chosen: Tensor) -> None:
        """Takes chosen guesses out of the gradient, and fits the numbers of all."""
        kept = guesses.take(chosen[chosen < len(guesses.rows)])
        self.rows, self.labels = torch.cat([self.rows, kept.rows]), torch.cat([self.labels, kept.labels])
        self.entropy = torch.cat([self.entropy, self.doubt(checks, kept)])
        places = {tuple(row) for row in kept.rows.tolist()}
        rest = [place for place, row in enumerate(guesses.rows.tolist()) if tuple(row) not in places]
        self.others = guesses.take(torch.tensor(rest, dtype=torch.long, device=guesses.rows.device))
        self.sure = len(self.rows) if self.exact else self.sure
        free = self.numbers_of(self.rows)
        free[: 0 if self.exact else self.sure] = False
        self.rows = fitted(self.batch, self.rows, self.labels, free, self.left)

    def numbers_of(self, rows: Tensor) -> Tensor:
        """Return which features (m, D) are those of continuous columns."""
        free = torch.zeros_like(rows, dtype=torch.bool)
        free[:, : len(self.columns.continuous)] = True
        return free

    def doubt(self, checks: Checks, kept: _Guesses) -> Tensor:
        """Entropies (m,) of the categorical columns, mean of shares of the largest: other categories are as probable
        as the guess fits better than it would with them."""
        total = self.usual.new_zeros(len(kept.rows))
        groups = list(checks.alternatives(kept.rows))
        for rows in groups:
            score = checks.score(rows, kept.labels[:, None].expand(-1, rows.shape[1]))
            chance = (kept.score[:, None] / score.clamp_min(1e-30)).square()
            chance = chance / chance.sum(1, keepdim=True)
            bits = -(chance * chance.clamp_min(1e-30).log()).sum(1)
            total += bits / max(len(groups), 1) / max(torch.tensor(rows.shape[1]).log().item(), 1e-30)
        return total

    def fit_all(self, others: _Guesses) -> None:
        """Fits the numbers of all rows together, and the categories of those that were found last."""
        rows, labels = self.rows, self.labels
        if len(rows) < self.count:
            more = others.take(torch.arange(min(self.left, len(others.rows))))
            rows, labels = torch.cat([rows, more.rows]), torch.cat([labels, more.labels])
        if len(rows) < self.count:
            return
        free = self.numbers_of(rows)
        free[: self.sure] = False
        doubtful = free.clone()
        present = self.batch.network.present(self.batch.gradients[0], 0.0)
        doubtful[max(self.sure, self.count - max(1, self.count // _DOUBTFUL)) :] |= present
        best, least = rows, self.batch.unexplained(rows, labels, 0)
        for _ in range(_TURNS):
            rows = self.columns.project(bent(self.batch, rows, labels, doubtful, 2))
            rows = bent(self.batch, rows, labels, free, 5)
            rows = fitted(self.batch, rows, labels, free, 0, 4)
            loss = self.batch.unexplained(rows, labels, 0)
            helped = loss < least / 2
            if loss < least:
                best, least = rows, loss
            if least < _EXPLAINED or not helped:
                break
        added = self.entropy.new_ones(len(best) - len(self.entropy))
        self.rows, self.labels, self.entropy = best, labels, torch.cat([self.entropy, added])

    def result(self, blank: Tensor) -> Found:
        """All rows; those that were not found are the best guesses that are left, then the mean row."""
        order = self.entropy.argsort()
        rows, entropy = [self.rows[order]], [self.entropy[order]]
        if self.left and self.others is not None:
            rows.append(self.others.rows[: self.left])
        rows.append(self.columns.project(blank).expand(self.count, -1))
        entropy.append(entropy[0].new_ones(self.count))
        made = torch.cat(rows)[: self.count]
        return Found(self.columns.project(made), torch.cat(entropy)[: self.count])
