"""What an adversary can read, where, and what it is declared to know.

Surfaces follow Fed-αCDP section 3.1 (type-0 server, type-1 client update, type-2 local step). A surface is a tap
between two hooks of a client's round; nothing here depends on which defense is running.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.layout import Grouping
from harness.models import RowModel

UpdateModel = Literal["first", "avg", "unroll"]

SURFACES: dict[int, str] = {0: "T0.in", 1: "T1.out", 2: "T2.step"}

TAPS: dict[str, str] = {
    "T2.raw": "per-example gradients straight from the loss, before the defense",
    "T2.clip": "per-example gradients after clipping, before noise",
    "T2.examples": "sanitised per-example gradients, where the defense adds noise per example",
    "T2.step": "what local SGD consumes (surface 2)",
    "T1.raw": "the client's update before its outgoing transform",
    "T1.out": "what leaves the client (surface 1)",
    "T0.in": "what arrives at the server from this client, or of a secure sum: the mean of its clients (surface 0)",
    "T0.post": "this client's update after the server's per-client transform",
    "T1.delta_y": "SCAFFOLD: how far the model moved, to one who knows no variates (T1.out: to one who does)",
    "T1.delta_c": "SCAFFOLD: how the client's variate changed, to one who does not know it",
}

TAPS_OF_VARIATES = ("T1.delta_y", "T1.delta_c")
"""Halves of a SCAFFOLD client's message. Who followed the client from the start knows its variate, and sees T1.out."""

TAPS_AFTER_STEP = tuple(tap for tap in TAPS if tap != "T2.raw")
"""Everything that has passed the defense's local step."""


def surface_of(tap: str) -> int | None:
    """The surface number a tap stands for, or None for a tap between surfaces."""
    return next((surface for surface, name in SURFACES.items() if name == tap), None)


def check_tap(tap: str) -> str:
    """The tap itself.

    Raises:
        UsageError: there is no such tap.
    """
    if tap not in TAPS:
        raise UsageError(f"unknown tap {tap!r}; known taps: {', '.join(TAPS)}")
    return tap


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
