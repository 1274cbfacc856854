"""Attention of tokens among themselves, in four passes."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.models.four_passes.layers import Layer

_by_softmax = torch.ops.aten._softmax_backward_data.default


class Scores:
    r"""Softmax attention of queries, keys and values (G, ., D), one for each of G heads of examples.

    S = a q k^T with a = 1 / sqrt(D), A = softmax S, y = A v. With the symmetric map s(V) = A V - A sum(A V) of a
    softmax (products by element, sums along rows): dA = dy v^T, dv = A^T dy, dS = s(dA), dq = a dS k, dk = a dS^T q.
    Moved: S. = a (q. k^T + q k.^T), A. = s(S.), y. = A. v + A v.; dA. = dy. v^T + dy v.^T, dv. = A.^T dy + A^T dy.,
    dS. = s(dA.) + A. (dA - sum(A dA)) - A sum(A. dA), dq. = a (dS. k + dS k.), dk. = a (dS.^T q + dS^T q.).
    """

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._factor = 1 / math.sqrt(queries.shape[-1])
        self._queries, self._keys, self._values = queries, keys, values
        self._weights = (torch.bmm(queries, keys.mT).mul_(self._factor)).softmax(-1)
        return torch.bmm(self._weights, values)

    def backward(self, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self._outer = outer
        by_weights = torch.bmm(outer, self._values.mT)
        self._centred = by_weights - (by_weights * self._weights).sum(-1, keepdim=True)
        self._by_scores = (self._centred * self._weights).mul_(self._factor)
        by_queries = torch.bmm(self._by_scores, self._keys)
        return by_queries, torch.bmm(self._by_scores.mT, self._queries), torch.bmm(self._weights.mT, outer)

    def forward_moved(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        self._queries_moved, self._keys_moved, self._values_moved = queries, keys, values
        scores = torch.bmm(queries, self._keys.mT).baddbmm_(self._queries, keys.mT).mul_(self._factor)
        self._weights_moved = self._through_softmax(scores)
        return torch.bmm(self._weights_moved, self._values).baddbmm_(self._weights, values)

    def backward_moved(self, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_weights = torch.bmm(outer, self._values.mT).baddbmm_(self._outer, self._values_moved.mT)
        moved = self._weights_moved * self._centred
        by_scores = self._through_softmax(by_weights).add_(moved)
        # The centre of dA is inside: the rows of A. add up to nothing.
        by_scores.addcmul_(self._weights, moved.sum(-1, keepdim=True), value=-1).mul_(self._factor)
        by_queries = torch.bmm(by_scores, self._keys).baddbmm_(self._by_scores, self._keys_moved)
        by_keys = torch.bmm(by_scores.mT, self._queries).baddbmm_(self._by_scores.mT, self._queries_moved)
        by_values = torch.bmm(self._weights_moved.mT, self._outer).baddbmm_(self._weights.mT, outer)
        return by_queries, by_keys, by_values

    def _through_softmax(self, values: Tensor) -> Tensor:
        """s."""
        return _by_softmax(values, self._weights, -1, values.dtype)


class Attention:
    """Every token looks at all of its example; ``project`` makes queries, keys and values of it, side by side."""

    def __init__(self, project: Layer, heads: int, tokens: int) -> None:
        self._project, self._heads, self._tokens, self._scores = project, heads, tokens, Scores()

    def forward(self, values: Tensor) -> Tensor:
        return self._joined(self._scores.forward(*self._apart(self._project.forward(values), 3)))

    def backward(self, outer: Tensor) -> Tensor:
        made = self._scores.backward(*self._apart(outer, 1))
        return self._project.backward(self._joined(*made))

    def forward_moved(self, moved: Tensor) -> Tensor:
        return self._joined(self._scores.forward_moved(*self._apart(self._project.forward_moved(moved), 3)))

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        made = self._scores.backward_moved(*self._apart(outer_moved, 1))
        return self._project.backward_moved(self._joined(*made))

    def _apart(self, values: Tensor, kinds: int) -> tuple[Tensor, ...]:
        return _apart(values, kinds, self._tokens, self._heads)

    def _joined(self, *kinds: Tensor) -> Tensor:
        return _joined(kinds, self._heads)


class FirstAttention:
    """The first token (B, E) of each example looks at all; others (B T, E) are looked at only."""

    def __init__(self, ask: Layer, project: Layer, heads: int, tokens: int) -> None:
        self._ask, self._project, self._heads, self._tokens, self._scores = ask, project, heads, tokens, Scores()

    def forward(self, values: Tensor) -> Tensor:
        queries = self._ask.forward(first(values, self._tokens))
        return self._looked(self._scores.forward, queries, self._project.forward(values))

    def backward(self, outer: Tensor) -> Tensor:
        queries, *others = self._scores.backward(*_apart(outer, 1, 1, self._heads))
        made = self._project.backward(_joined(others, self._heads))
        first(made, self._tokens).add_(self._ask.backward(_joined([queries], self._heads)))
        return made

    def forward_moved(self, moved: Tensor) -> Tensor:
        queries = self._ask.forward_moved(first(moved, self._tokens))
        return self._looked(self._scores.forward_moved, queries, self._project.forward_moved(moved))

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        queries, *others = self._scores.backward_moved(*_apart(outer_moved, 1, 1, self._heads))
        made = self._project.backward_moved(_joined(others, self._heads))
        first(made, self._tokens).add_(self._ask.backward_moved(_joined([queries], self._heads)))
        return made

    def _looked(self, scores: Callable[[Tensor, Tensor, Tensor], Tensor], queries: Tensor, others: Tensor) -> Tensor:
        (asking,), (keys, values) = _apart(queries, 1, 1, self._heads), _apart(others, 2, self._tokens, self._heads)
        return _joined([scores(asking, keys, values)], self._heads)


class FirstResidual:
    """y = x + f(x) of the first token of each example, where f makes (B, E) of all of them (B T, E)."""

    def __init__(self, chain: Layer, tokens: int) -> None:
        self._chain, self._tokens = chain, tokens

    def forward(self, values: Tensor) -> Tensor:
        return first(values, self._tokens) + self._chain.forward(values)

    def backward(self, outer: Tensor) -> Tensor:
        return self._with(self._chain.backward(outer), outer)

    def forward_moved(self, moved: Tensor) -> Tensor:
        return first(moved, self._tokens) + self._chain.forward_moved(moved)

    def backward_moved(self, outer_moved: Tensor) -> Tensor:
        return self._with(self._chain.backward_moved(outer_moved), outer_moved)

    def _with(self, every: Tensor, own: Tensor) -> Tensor:
        made = every.clone()
        first(made, self._tokens).add_(own)
        return made


def first(values: Tensor, tokens: int) -> Tensor:
    """The first token (B, E) of each example of (B T, E)."""
    return values[::tokens]


def _apart(values: Tensor, kinds: int, tokens: int, heads: int) -> tuple[Tensor, ...]:
    """So many kinds of values (B T, kinds E) as (B H, T, D) each."""
    parted = values.reshape(-1, tokens, kinds, heads, values.shape[1] // (kinds * heads))
    return parted.permute(2, 0, 3, 1, 4).flatten(1, 2).unbind()


def _joined(kinds: Sequence[Tensor], heads: int) -> Tensor:
    """The inverse."""
    together = torch.stack(tuple(kinds)) if len(kinds) > 1 else kinds[0][None]
    parted = together.unflatten(1, (-1, heads)).permute(1, 3, 0, 2, 4)
    return parted.reshape(parted.shape[0] * parted.shape[1], -1)
