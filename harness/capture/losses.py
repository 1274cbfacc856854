"""What a client's loss is, read from its gradient at the network's output: which multiple of the mean cross-entropy.

Attacks play the mean cross-entropy of a batch. A sum over the batch is a multiple of it, and so is a mean that is
divided by something. Label smoothing, class weights and other losses are none.

Source: the gradient of cross-entropy at logits z is softmax(z) less the target, times what each example counts.
"""

from collections.abc import Sequence
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

MEND = "capture a round with the mean cross-entropy, or give loss_scale to judge it as that many times the mean"


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
    """How much a multiple may be off by the rounding of floats, relative to it."""
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
