"""Loss of a client, read from its gradient at the network's output: which multiple of the mean cross-entropy it is.

Attacks play the mean cross-entropy of a batch. A sum over the batch is a multiple of it, and so is a mean that is
divided by something. Label smoothing, class weights and other losses are none.

Source: the gradient of cross-entropy at logits z is softmax(z) less the target, times what each example counts.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

# How near the gradient must be to that of cross-entropy, relative to its norm, and in steps of its floats.
_NEAR, _FLOATS = 1e-3, 4
# How near a multiple of few digits is, to be what was meant.
_CLOSE = 1e-5
# Labels are found with a scale, and the scale with labels, so often.
_FITS = 3
# Of a sum of probabilities: from which on an output is no logarithm of them.
_LOGARITHM = 0.02
# Under this name the graph of a loss remembers what is a network's output. It keeps no tensor alive.
_OUTPUT = "output of a watched network"
# More nodes than a loss has between an output and its number; the walk ends there.
_NODES = 100_000

FIX = "capture a round with the mean cross-entropy, or give loss_scale to judge it as that many times the mean"


def share_of(output: Tensor, gradient: Tensor) -> Tensor:
    """Return which multiple of the mean cross-entropy of its examples a batch's loss is.

    Args:
        output: (B, K), of the network, logits or their logarithmic softmax.
        gradient: (B, K), of the loss with respect to it.

    Returns:
        One number; NaN of another loss, 0 where the gradient is too small to tell.
    """
    chance, made = output.double().softmax(1), gradient.double() * len(output)
    rows, share = _fitted(output, chance, made)
    near = near_of(output, gradient)
    unlike = made.new_full((), torch.nan)
    found = torch.where((made - share * rows).norm() <= near * made.norm(), share, unlike)
    # Rounding moves a gradient by less than a step of the probabilities' floats, below which nothing is to be seen.
    seen = rows.norm() * near > _step(output, gradient) * chance.norm()
    return torch.where(seen, found, torch.zeros_like(found))


def kind_of(output: Tensor, gradient: Tensor) -> str:
    """Say what loss has such a gradient, which is no multiple of that of the mean cross-entropy."""
    chance, made = output.double().softmax(1), gradient.double() * len(output)
    near = near_of(output, gradient)
    smoothing = _smoothing(chance, made, near)
    if smoothing is not None:
        return f"cross-entropy with label smoothing {smoothing:.2g}"
    rows = chance - _one_hot(made)
    each = (made * rows).sum(1, keepdim=True) / rows.square().sum(1, keepdim=True).clamp_min(1e-30)
    weighed = bool((made - each * rows).norm() <= near * made.norm())
    return "cross-entropy with class weights, or of a part of the examples" if weighed else "no cross-entropy"


def _step(*values: Tensor) -> float:
    return max(torch.finfo(one.dtype).eps for one in values)


def near_of(output: Tensor, gradient: Tensor) -> float:
    """Return how much a multiple may be off by the rounding of floats, relative to it."""
    return max(_NEAR, _FLOATS * _step(output, gradient))


def _fitted(output: Tensor, chance: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients (B, K) of each example's cross-entropy, under the labels that fit best, and their multiple."""
    logarithms = ((output.double().exp().sum(1) - 1).abs() < _LOGARITHM).all() & (made <= 0).all()
    labels = _one_hot(made)
    rows, share = made, made.new_ones(())
    for _ in range(_FITS):
        rows = torch.where(logarithms, -labels, chance - labels)
        share = (made * rows).sum() / rows.square().sum()
        # Also of an example whose gradient is 0, as it is where the network is sure.
        labels = torch.where(logarithms, labels, _one_hot(made / share.clamp_min(1e-30) - chance))
    return rows, share


def _one_hot(values: Tensor) -> Tensor:
    return torch.zeros_like(values).scatter_(1, values.argmin(1, keepdim=True), 1.0)


def _smoothing(chance: Tensor, made: Tensor, near: float) -> float | None:
    """The label smoothing a of gradients s (p - (1 - a) e_y - a / K); None where there is none such."""
    left, size = made, made.shape[1]
    for _ in range(_FITS):
        labels = _one_hot(left)
        columns = torch.stack([(chance - labels).flatten(), (labels - 1 / size).flatten()], 1).cpu()
        fit = torch.linalg.lstsq(columns, made.flatten()[:, None].cpu()).solution
        scale, smoothed = fit[:, 0].tolist()
        apart = (made.cpu() - (columns @ fit).reshape(made.shape)).norm()
        if scale > 0 and 0 < smoothed < scale and bool(apart <= near * made.cpu().norm()):
            return smoothed / scale
        left = made / scale - chance if scale > 0 else made
    return None


def facts_of_losses(steps: Sequence[Sequence[float | None]], near: float) -> dict[str, Any] | None:
    """Return the facts of a capture about what its losses count.

    Args:
        steps: of each step the multiples of its batches' losses; None or 0 where one was not seen, NaN of another loss.
        near: how much they may be off, relative to them.

    Returns:
        None where they are not all of one multiple.
    """
    seen = seen_of(steps)
    if not seen:
        return {}
    first, batches = seen[0], len(steps[0])
    if not all(abs(one / first - 1) <= 2 * near for one in seen):
        return None
    if batches > 1 and abs(first * batches - 1) <= near:
        return {}
    scale = _rounded(first, near)
    return ({"accumulate_sum": True} if batches > 1 else {}) | ({} if scale == 1 else {"loss_scale": scale})


def mark_output(made: Tensor, mark: tuple[int, int]) -> None:
    """Remember in its graph that this is a network's output: its pass, and its place among the outputs."""
    if made.grad_fn is not None:
        _notes_of(made.grad_fn)[_OUTPUT] = mark


def _notes_of(node: Node) -> dict[str, Any]:
    notes: Any = node.metadata  # torch's own hints take this property for a method
    return notes


def weights_beside(loss: Tensor) -> tuple[set[int], set[tuple[int, int]]]:
    """Return the weights, by their identity, that a loss reaches otherwise than through a marked output of a network,
    and the marks of outputs that it reaches otherwise than through another.

    Penalties reach weights so, and the distance to the weights before the round that FedProx adds.
    """
    found, met = set[int](), set[tuple[int, int]]()
    waiting: list[Node | None] = [loss.grad_fn]
    visited = set[Node | None]()
    while waiting and len(visited) < _NODES:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if (mark := _notes_of(node).get(_OUTPUT)) is not None:
            met.add(mark)
            continue
        if (weight := getattr(node, "variable", None)) is not None:
            found.add(id(weight))
        waiting += [other for other, _ in node.next_functions]
    return (set() if waiting else found), met


def seen_of(steps: Sequence[Sequence[float | None]]) -> list[float]:
    """Return the multiples that were seen."""
    return [one for step in steps for one in step if one]


def _rounded(multiple: float, near: float) -> float:
    """A multiple as it was meant, such as the size of a batch or a part of 1, but for rounding."""
    for one in (float(round(multiple)), 1 / max(1, round(1 / multiple))):
        if one and abs(multiple / one - 1) <= near:
            return one
    short = [float(f"{multiple:.{digits}g}") for digits in range(1, 7)]
    close = near if near > _NEAR else _CLOSE  # of half precision nothing closer is known
    return next((one for one in short if abs(multiple / one - 1) <= close), multiple)


# --------------------------------------------------------------------------------------
# Gradients that were scaled down between the backward pass and the step, as ``clip_grad_norm_`` does.
#
# The backward pass leaves marks at every weight, and the step takes some. What was multiplied by one factor in all
# weights was clipped; steps that were clipped have the same norm, which is the bound. A single step tells a clip from a
# division by its numbers: people write bounds, and divisors, of few digits.


# How near a number of two digits is, to be meant; a clip divides by a norm with 1e-6 added to it.
_OF_FEW_DIGITS = 1e-4
# How much a factor, or a norm, may be off by rounding; of half precision more.
_SAME_NORM, _NEAR_OF_HALF = 1e-3, 1e-2


def marks_of(values: Tensor) -> Tensor:
    """Return two numbers that tell whether a tensor is another than before: its norm, and half of how far it goes along
    a fixed direction, which signs and places that were exchanged change too.

    Of a sparse or complex one the second is 0.
    """
    values = values.detach()
    norm = values.norm()
    if values.layout is not torch.strided or not values.is_floating_point():
        return torch.stack([norm, torch.zeros_like(norm)])
    rows = values.reshape(len(values) if values.dim() > 1 else 1, -1)
    rows = rows.float() if rows.element_size() < 4 else rows
    left, right = (_signs(size).to(rows) for size in rows.shape)
    with torch.autocast(rows.device.type, enabled=False):
        return torch.stack([norm, (left @ (rows @ right) / 2).to(norm)])


@lru_cache(maxsize=64)
def _signs(size: int) -> Tensor:
    """Return as many signs, always the same; nobody else's random numbers are used up."""
    return torch.randint(2, (size,), generator=torch.Generator().manual_seed(size)).float() * 2 - 1


@dataclass(frozen=True)
class _Step:
    """Changes of the gradients of one step.

    Attributes:
        factor: by which all were multiplied; None where it is not one for all weights.
        norm: of all together, as the step took them.
        near: how much both may be off, relative to them.
    """

    factor: float | None
    norm: float
    near: float

    @property
    def changed(self) -> bool:
        return self.factor is None or abs(self.factor - 1) > self.near


class Clips:
    """Watches the gradients of weights; nothing is changed."""

    def __init__(self) -> None:
        # By the weights' identity: marks of what arrived last, those of what was there before, and those of all.
        self._arrived: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._left: dict[int, Tensor] = {}
        self._followed: set[int] = set()
        self._steps: list[_Step] = []
        self._unseen = self._removed = False
        # Whether something changed gradients while backward passes made them; one bool, read at the end.
        self._by_hooks: Tensor | None = None
        self._between: Tensor | None = None

    def follow(self, weights: Iterable[Tensor]) -> list[Any]:
        """Look at what each backward pass leaves at these weights; returns the handles of the hooks."""
        new = [one for one in weights if one.requires_grad and one.is_leaf and id(one) not in self._followed]
        self._followed |= {id(one) for one in new}
        return [handle for one in new for handle in (self._look_first(one), self._look_last(one))]

    def _look_first(self, weight: Tensor) -> Any:
        """Before hooks of somebody else's, which may change a gradient."""
        handle = weight.register_hook(lambda gradient: self._safely(self._arrive, weight, gradient))
        hooks: Any = weight._backward_hooks
        for other in [one for one in hooks if one != handle.id]:
            hooks[other] = hooks.pop(other)  # torch calls them in the order of a plain dict
        return handle

    def _look_last(self, weight: Tensor) -> Any:
        return weight.register_post_accumulate_grad_hook(lambda one: self._safely(self._leave, one))

    @staticmethod
    def _safely(look: Callable[..., None], *given: Any) -> None:
        with suppress(Exception):
            look(*given)

    def _arrive(self, weight: Tensor, gradient: Tensor) -> None:
        there = None if weight.grad is None else marks_of(weight.grad)
        left = self._left.get(id(weight))
        if there is not None and left is not None:
            self._between = _either(self._between, _differ(there, left) & (there[0] != 0))
        self._arrived[id(weight)] = marks_of(gradient), there

    def _leave(self, weight: Tensor) -> None:
        if weight.grad is None:
            return
        left = self._left[id(weight)] = marks_of(weight.grad)
        arrived, there = self._arrived.get(id(weight), (left, None))
        alone = torch.zeros_like(left) if there is None else there
        self._by_hooks = _either(self._by_hooks, _differ(left, arrived) & (alone[0] == 0))

    def reached(self) -> set[int]:
        """The weights, by their identity, that backward passes have added to since the last step."""
        return set(self._left)

    def stepped(self, weights: Iterable[Tensor], scale: float) -> None:
        """A step is taken with the gradients that are there; ``scale``: what a scaler multiplied the losses by."""
        weights = [*weights]
        there = [one for one in weights if one.grad is not None and id(one) in self._followed]
        self._removed = self._removed or any(one.grad is None and id(one) in self._left for one in weights)
        made = {id(one): marks for one in there if (marks := self._made(one)) is not None}
        if not there or len(made) < len(there):
            self._unseen = True
        else:
            taken = torch.stack([marks_of(one.grad).double().cpu() for one in there if one.grad is not None])
            left = torch.stack([made[id(one)].double().cpu() for one in there])
            half = any(one.grad is not None and one.grad.element_size() < 4 for one in there)
            if taken.isfinite().all() and left.isfinite().all():
                self._steps.append(_step_of(left, taken, scale, _NEAR_OF_HALF if half else _SAME_NORM))
        self._left.clear()
        self._arrived.clear()

    def _made(self, weight: Tensor) -> Tensor | None:
        """Marks of what backward passes made; None where none was seen."""
        if id(weight) in self._left:
            return self._left[id(weight)]
        if id(weight) in self._arrived:  # ``torch.autograd.grad`` leaves nothing at the weight
            return self._arrived[id(weight)][0]
        marks = None if weight.grad is None else marks_of(weight.grad)
        return marks if marks is not None and not marks[0] else None

    def facts(self, unlike: dict[tuple[str, ...], str]) -> dict[str, Any]:
        """The bound, where gradients were clipped; what else was done to them stands in ``unlike``."""
        changed = [one for one in self._steps if one.changed]
        problem = self._problem()
        if problem is None and not changed:
            return {}
        if problem is None:
            first = changed[0]
            bound, near = float(f"{first.norm:.4g}"), 2 * first.near
            clipped = all(one.factor is not None and one.factor < 1 and _is(one.norm, bound, near) for one in changed)
            meant = len(changed) > 1 or _is_meant(first.norm) or not _is_meant(first.factor or 1.0)
            if bound and clipped and meant and all(one.norm <= bound * (1 + near) for one in self._steps):
                return {"clip_grad_norm": bound}
            problem = "gradients were changed before a step, and not as clip_grad_norm_ does"
        unlike["clip_grad_norm", "fedprox", "defense"] = (
            f"{problem}; leave that out in the captured round, or give clip_grad_norm, fedprox or defense if it is one "
            "of these"
        )
        return {}

    def _problem(self) -> str | None:
        """Return why no bound can be read from the norms before steps; None where it can."""
        if self._by_hooks is not None and self._by_hooks:
            return "a hook on a weight changes its gradient"
        if self._between is not None and self._between:
            return "gradients were changed between two backward passes of one step, as clips of each batch do"
        if self._removed:
            return "gradients were taken away before a step"
        if self._unseen:
            return "a step took gradients that came from no backward pass of its network, so that no clip is seen"
        return None


def _step_of(left: Tensor, taken: Tensor, scale: float, near: float) -> _Step:
    total, norm = float(left[:, 0].norm()), float(taken[:, 0].norm())
    factor = norm / total if total else 1.0
    one = bool(((taken - factor * left).abs() <= near * factor * left[:, :1] + 1e-12).all())
    # A scaler divides by its scale before a clip; a fused optimizer does so in the step.
    if one and abs(factor - 1) > near:
        factor *= scale
    return _Step(factor if one else None, norm, near)


def _either(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else old.to(new.device) | new


def _differ(marks: Tensor, other: Tensor) -> Tensor:
    """Return whether marks are apart by more than rounding, one bool."""
    near = _NEAR_OF_HALF if marks.element_size() < 4 else _SAME_NORM
    return ((marks - other).abs() > near * other[0]).any()


def _is_meant(value: float) -> bool:
    """Return whether somebody may have written this number, or 1 by it: it has few digits."""
    return value > 0 and any(abs(float(f"{one:.2g}") / one - 1) < _OF_FEW_DIGITS for one in (value, 1 / value))


def _is(value: float, other: float, near: float) -> bool:
    return abs(value - other) <= near * other
