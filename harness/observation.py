"""What an attack is handed: what an adversary read, and what it is declared to know."""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from harness.models import RowModel
from harness.vectors.layout import Grouping

UpdateModel = Literal["first", "avg", "unroll"]


@dataclass(frozen=True)
class Clipping:
    """The clipping a defense is known to apply to what is read at a tap.

    ``bound`` is in units of the gradient that the attacker matches, None where clients have bounds, or lengths of
    their steps, of their own; ``unit`` says what is clipped.
    """

    bound: float | None
    grouping: Grouping
    unit: Literal["example", "update"]


@dataclass(frozen=True)
class Observation:
    """All that an attack is handed: what was read from R independent clients, and declared public knowledge.

    ``target`` (R, P) is the gradient to match: a gradient that was read, or an update divided by minus the learning
    rate (and by the number of local steps for ``avg``). For ``unroll`` it is that update over the whole run of local
    steps. Ground truth is never part of it; ``labels`` (R, n) is filled only when the adversary is declared to know
    the labels (``--labels known``). ``sparse`` says that the defense is known to leave coordinates out of what was
    read, with zeros in their place. ``correction`` (R, P) is what every local step is known to add to the gradient
    (SCAFFOLD), where it is known; ``target`` is without it.
    """

    model: RowModel
    weights: Tensor
    target: Tensor
    examples: int
    keys: tuple[tuple[int | str, ...], ...]
    learning_rate: float = 0.05
    local_steps: int = 1
    update_model: UpdateModel = "first"
    clipping: Clipping | None = None
    labels: Tensor | None = None
    sparse: bool = False
    correction: Tensor | None = None

    @property
    def rows(self) -> int:
        """R, the number of independent clients observed."""
        return self.target.shape[0]

    def take(self, index: Tensor) -> "Observation":
        """The same observation restricted to some rows (in the given order, repeats allowed)."""
        return replace(
            self,
            weights=self.weights[index],
            target=self.target[index],
            keys=tuple(self.keys[i] for i in index.tolist()),
            labels=None if self.labels is None else self.labels[index],
            correction=None if self.correction is None else self.correction[index],
        )

    @property
    def clipping_groups(self) -> tuple[int, ...]:
        """Sizes of the groups of coordinates that share one unknown scale."""
        return self.model.layout.groups(self.clipping.grouping if self.clipping else "whole")

    def fingerprint(self) -> str:
        """A hash of everything an attack can see; equal observations have equal fingerprints."""
        digest = hashlib.sha256()
        for tensor in (self.weights, self.target, self.labels, self.correction, *self.model.plain_module.buffers()):
            if tensor is not None:
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        facts = (
            self.model.name, self.model.image_shape, self.model.classes, self.examples, self.keys,
            self.learning_rate, self.local_steps, self.update_model, self.clipping, self.labels is None, self.sparse,
            *(() if self.correction is None else ("corrected",)),
        )  # fmt: skip
        digest.update(repr(facts).encode())
        return digest.hexdigest()[:20]

    def to(self, device: torch.device, dtype: torch.dtype) -> "Observation":
        """A copy on another device and in another floating-point precision."""
        return replace(
            self,
            model=self.model.to(device, dtype),
            weights=self.weights.to(device, dtype),
            target=self.target.to(device, dtype),
            labels=None if self.labels is None else self.labels.to(device),
            correction=None if self.correction is None else self.correction.to(device, dtype),
        )
