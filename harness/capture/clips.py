"""Gradients that were scaled down between the backward pass and the step, as ``clip_grad_norm_`` does.

The backward pass leaves a norm at every weight, and the step takes one. What was multiplied by one factor in all
weights was clipped; steps that were clipped have the same norm, which is the bound. A single step tells a clip from a
division by its numbers: people write bounds, and divisors, of few digits.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# How near a number of two digits is, to be meant; a clip divides by a norm with 1e-6 added to it.
_OF_FEW_DIGITS = 1e-4
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
        # By the weights' identity: the norm of what arrived last, that of what was there before, and that of all.
        self._arrived: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._left: dict[int, Tensor] = {}
        self._followed: set[int] = set()
        self._steps: list[_Step] = []
        self._unseen = False
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
        there = None if weight.grad is None else weight.grad.detach().norm()
        left = self._left.get(id(weight))
        if there is not None and left is not None:
            self._between = _either(self._between, _differ(there, left) & (there != 0))
        self._arrived[id(weight)] = gradient.detach().norm(), there

    def _leave(self, weight: Tensor) -> None:
        if weight.grad is None:
            return
        left = self._left[id(weight)] = weight.grad.detach().norm()
        arrived, there = self._arrived.get(id(weight), (left, None))
        alone = torch.zeros_like(left) if there is None else there
        self._by_hooks = _either(self._by_hooks, _differ(left, arrived) & (alone == 0))

    def reached(self) -> set[int]:
        """The weights, by their identity, that backward passes have added to since the last step."""
        return set(self._left)

    def stepped(self, weights: Iterable[Tensor], scale: float) -> None:
        """A step is taken with the gradients that are there; ``scale``: what a scaler multiplied the losses by."""
        there = [one for one in weights if one.grad is not None and id(one) in self._followed]
        made = {id(one): norm for one in there if (norm := self._made(one)) is not None}
        if not there or len(made) < len(there):
            self._unseen = True
        else:
            taken = torch.stack([one.grad.detach().norm().double().cpu() for one in there if one.grad is not None])
            left = torch.stack([made[id(one)].double().cpu() for one in there])
            half = any(one.grad is not None and one.grad.element_size() < 4 for one in there)
            if taken.isfinite().all() and left.isfinite().all():
                self._steps.append(_step_of(left, taken, scale, _NEAR_OF_HALF if half else _NEAR))
        self._left.clear()
        self._arrived.clear()

    def _made(self, weight: Tensor) -> Tensor | None:
        """The norm that backward passes made; None where none was seen."""
        if id(weight) in self._left:
            return self._left[id(weight)]
        if id(weight) in self._arrived:  # ``torch.autograd.grad`` leaves nothing at the weight
            return self._arrived[id(weight)][0]
        norm = None if weight.grad is None else weight.grad.detach().norm()
        return norm if norm is not None and not norm else None

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
            if clipped and meant and all(one.norm <= bound * (1 + near) for one in self._steps):
                return {"clip_grad_norm": bound}
            problem = "gradients were changed before a step, and not as clip_grad_norm_ does"
        unlike["clip_grad_norm", "fedprox", "defense"] = (
            f"{problem}; leave that out in the captured round, or give clip_grad_norm, fedprox or defense if it is one "
            "of these"
        )
        return {}

    def _problem(self) -> str | None:
        """Why no bound can be read from the norms before steps; None where it can."""
        if self._by_hooks is not None and self._by_hooks:
            return "a hook on a weight changes its gradient"
        if self._between is not None and self._between:
            return "gradients were changed between two backward passes of one step, as clips of each batch do"
        if self._unseen:
            return "a step took gradients that came from no backward pass of its network, so that no clip is seen"
        return None


def _step_of(left: Tensor, taken: Tensor, scale: float, near: float) -> _Step:
    total = float(left.norm())
    factor = float(taken.norm()) / total if total else 1.0
    one = bool(((taken - factor * left).abs() <= near * factor * left + 1e-12).all())
    # A scaler divides by its scale before a clip; a fused optimizer does so in the step.
    if one and abs(factor - 1) > near:
        factor *= scale
    return _Step(factor if one else None, float(taken.norm()), near)


def _either(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else old.to(new.device) | new


def _differ(norm: Tensor, other: Tensor) -> Tensor:
    """Whether norms are apart by more than rounding, one bool."""
    near = _NEAR_OF_HALF if norm.element_size() < 4 else _NEAR
    return (norm - other).abs() > near * other


def _is_meant(value: float) -> bool:
    """Whether somebody may have written this number, or 1 by it: it has few digits."""
    return any(abs(float(f"{one:.2g}") / one - 1) < _OF_FEW_DIGITS for one in (value, 1 / value))


def _is(value: float, other: float, near: float) -> bool:
    return abs(value - other) <= near * other
