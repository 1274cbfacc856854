"""Gradients that were scaled down between the backward pass and the step, as ``clip_grad_norm_`` does.

The backward pass leaves a norm at every weight, and the step takes one. What was multiplied by one factor in all
weights was clipped; steps that were clipped have the same norm, which is the bound.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# How much a factor, or a norm, may be off by rounding; of half precision more.
_NEAR, _NEAR_OF_HALF = 1e-3, 1e-2


@dataclass(frozen=True)
class _Step:
    """What happened to the gradients of one step.

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
        self._left: dict[int, Tensor] = {}
        self._followed: set[int] = set()
        self._steps: list[_Step] = []
        self._whole = True

    def follow(self, weights: Iterable[Tensor]) -> list[Any]:
        """Look at what each backward pass leaves at these weights; returns the handles of the hooks."""
        new = {id(one): one for one in weights if one.requires_grad and one.is_leaf and id(one) not in self._followed}
        self._followed |= new.keys()
        return [one.register_post_accumulate_grad_hook(self._leave) for one in new.values()]

    def _leave(self, weight: Tensor) -> None:
        with suppress(Exception):
            if weight.grad is not None:
                self._left[id(weight)] = weight.grad.detach().norm()

    def reached(self) -> set[int]:
        """The weights, by their identity, that backward passes have added to since the last step."""
        return set(self._left)

    def stepped(self, weights: Iterable[Tensor], scale: float) -> None:
        """A step is taken with the gradients that are there; ``scale``: what a scaler multiplied the losses by."""
        there = [one for one in weights if one.grad is not None]
        known = bool(there) and all(id(one) in self._left for one in there)
        if known:
            taken = torch.stack([one.grad.detach().norm().double().cpu() for one in there if one.grad is not None])
            left = torch.stack([self._left[id(one)].double().cpu() for one in there])
            half = any(one.grad is not None and one.grad.element_size() < 4 for one in there)
            known = bool(taken.isfinite().all() and left.isfinite().all())
            if known:
                self._steps.append(_step_of(left, taken, scale, _NEAR_OF_HALF if half else _NEAR))
        self._whole = self._whole and known
        self._left.clear()

    def facts(self, unlike: dict[tuple[str, ...], str]) -> dict[str, Any]:
        """The bound, where gradients were clipped; what else was done to them stands in ``unlike``."""
        changed = [one for one in self._steps if one.changed]
        if not self._whole or not changed:
            return {}
        first = changed[0]
        bound, near = float(f"{first.norm:.4g}"), 2 * first.near
        clipped = all(one.factor is not None and one.factor < 1 and _is(one.norm, bound, near) for one in changed)
        if clipped and all(one.norm <= bound * (1 + near) for one in self._steps):
            return {"clip_grad_norm": bound}
        unlike["clip_grad_norm", "fedprox", "defense"] = (
            "gradients were changed before a step, and not as clip_grad_norm_ does; leave that out in the captured "
            "round, or give clip_grad_norm, fedprox or defense if it is one of these"
        )
        return {}


def _step_of(left: Tensor, taken: Tensor, scale: float, near: float) -> _Step:
    total = float(left.norm())
    factor = float(taken.norm()) / total if total else 1.0
    one = bool(((taken - factor * left).abs() <= near * factor * left + 1e-12).all())
    # A scaler divides by its scale before a clip; a fused optimizer does so in the step.
    if one and abs(factor - 1) > near:
        factor *= scale
    return _Step(factor if one else None, float(taken.norm()), near)


def _is(value: float, other: float, near: float) -> bool:
    return abs(value - other) <= near * other
