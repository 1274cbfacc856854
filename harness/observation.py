"""The input of an attack: what an adversary observed, and what it is declared to know."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from harness.base.coding import Coding
from harness.base.columns import Columns
from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN, LocalOptimizer, UpdateReading
from harness.base.vectors import Grouping, group_sums
from harness.datasets.prior import Prior
from harness.models import RowModel
from harness.models.batch_norm import KnownBatches

# Noise whose level follows the gradient that it hides: not published, but known of every candidate.

Whose = Literal["each", "largest", "whole"]

# Keeps the derivative of a norm finite where a tensor's gradient vanishes.
_TINY = 1e-30


@dataclass(frozen=True)
class NoiseLevel:
    """The deviation of noise on the gradient of one example, as a function of that gradient without noise.

    Attributes:
        factor: deviation by norm.
        of: whose L2 norm: ``each``, of each tensor its own; ``largest``, of all tensors the largest one; ``whole``, of
            the whole gradient.
        least, most: which the norm is held between.
        rounds: how many rounds lie one after another in the gradient, each with norms of its own.

    Raises:
        UsageError: there are no such numbers, or no such norm.
    """

    factor: float
    of: Whose
    least: float = 0.0
    most: float = math.inf
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.of not in get_args(Whose):
            known = ", ".join(get_args(Whose))
            raise UsageError(f"a level that follows the norm of {self.of!r} is not known; declare one of {known}")
        numbers = self.factor, self.least, self.most
        if not all(isinstance(one, Real) for one in numbers):
            raise UsageError(f"a level is declared with numbers, not {', '.join(map(repr, numbers))}")
        if not (0 <= self.factor < math.inf and 0 <= self.least <= self.most):
            raise UsageError("a level's factor is a number of at least 0, and 0 <= least <= most")

    def times(self, factor: float) -> "NoiseLevel":
        """That of values multiplied by a number."""
        return replace(self, factor=self.factor * factor)

    def deviations(self, gradients: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return the deviations of each tensor's coordinates (R, M), float64, differentiable.

        ``gradients`` (R, P) are clipped as the defense does."""
        squares = group_sums(gradients.square(), sizes).double().unflatten(1, (self.rounds, -1))
        if self.of == "whole":
            squares = squares.sum(2, keepdim=True).expand_as(squares)
        norms = (squares + _TINY).sqrt()
        if self.of == "largest":
            norms = norms.amax(2, keepdim=True).expand_as(norms)
        return self.factor * torch.clamp(norms.flatten(1), self.least, self.most)


UpdateModel = Literal["first", "avg", "path", "unroll"]
"""At which weights an attacker takes the gradients of local steps: those before the round (``first`` of one step,
``avg``), points on the straight line to those after it (``path``), or where its own images lead (``unroll``)."""
Tier = Literal["plain", "informed", "tampering"]
"""What an attacker knows beyond the network, its weights, the learning rate and the batch size: ``plain``, whether it
is clipped and that coordinates are left out; ``informed``, the defense with all its settings, and public data;
``tampering``, the same as a server that sends weights of its own making."""
Law = Literal["gaussian", "laplace", "uniform", "skellam", "poisson_binomial", "unknown"]

_CLOSED_UNDER_SUMS = ("gaussian", "skellam", "poisson_binomial")


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
class Noise:
    """The noise that what is read at a tap is known to carry, to who knows the defense and its settings.

    Attributes:
        law: of the noise on a coordinate; ``unknown`` where noises of different laws add up, or where something that
            is not linear came after it.
        deviation: its standard deviation in units of the gradient that the attacker matches: one number, or (P,) one
            per coordinate. None where nobody publishes it (it follows the private data), or what came after the noise
            is not linear. Of coordinates that are known to be left out it says nothing.
        grouping: which coordinates share a level that has to be estimated: all, or those of a tensor.
        level: where the deviation is None and Gaussian noise is on the gradient of one example, how it follows that
            gradient; None where nobody can say.
        unread: whether its level follows private data otherwise than ``level`` says, or more can be read of it than
            is handed to attackers: other noise was added to it, several looks were averaged, or something came after.
        bare: whether some coordinates carry none, where no deviations of 0 say so.
        mixture: of a round whose noise is correlated with that of earlier ones: how much of the independent noise of
            each round up to this one is in it, their squares sum to 1. Empty where rounds are independent, None where
            nobody can say.
        whitening: (T, T), of T such rounds one after another: what makes of their noise independent noise of
            deviation 1. ``deviation`` stays that of each round by itself.

    Raises:
        UsageError: there is no such law, with which attackers would reckon in silence as with another; or a deviation
            is negative or no number; or a level is declared beside it, or of another law.
    """

    law: Law
    deviation: float | Tensor | None
    grouping: Grouping = "whole"
    level: NoiseLevel | None = None
    unread: bool = False
    bare: bool = False
    mixture: tuple[float, ...] | None = ()
    whitening: Tensor | None = None

    def __post_init__(self) -> None:
        if self.law not in get_args(Law):
            raise UsageError(f"noise of law {self.law!r} is not known; declare one of {', '.join(get_args(Law))}")
        level = torch.as_tensor(0.0 if self.deviation is None else self.deviation)
        if not bool((level.isfinite() & (level >= 0)).all()):
            raise UsageError("noise whose deviation is negative or no number is not known; declare one of at least 0")
        if not isinstance(self.level, NoiseLevel | None):
            raise UsageError(f"noise of level {self.level!r} is not known; declare a NoiseLevel, or a deviation")
        if self.level is not None and (self.deviation is not None or self.law != "gaussian"):
            raise UsageError("a level that follows the gradient is declared of Gaussian noise without a deviation only")

    @property
    def estimated(self) -> bool:
        """Return whether the law is known but its level has to be estimated from the observation."""
        return self.deviation is None and self.law != "unknown"

    @property
    def follows(self) -> bool:
        """Return whether its level follows private data, and so may reveal something about them."""
        return self.estimated or self.unread

    @property
    def leaves_some_bare(self) -> bool:
        """Return whether some coordinates carry none, which more of it does not hide."""
        return self.bare or (isinstance(self.deviation, Tensor) and bool((self.deviation == 0).any()))

    def facts(self) -> tuple[object, ...]:
        """Return the parts that distinguish it from another, with a text of its own."""
        follows = () if self.level is None else (self.level,)
        words = [word for word, holds in (("unread", self.unread), ("bare", self.bare)) if holds]
        mixed = () if self.whitening is None else (_digits(self.whitening),)
        return "noise", self.law, _digits(self.deviation), self.grouping, *follows, *words, *mixed

    def to(self, device: torch.device, dtype: torch.dtype) -> "Noise":
        """Return the same noise for tensors of another device and floating-point precision."""
        tensors = {name: getattr(self, name) for name in ("deviation", "whitening")}
        moved = {name: one.to(device, dtype) for name, one in tensors.items() if isinstance(one, Tensor)}
        return replace(self, **moved) if moved else self

    def times(self, factor: float) -> "Noise":
        """The noise on values multiplied by a number."""
        if self.deviation is not None:
            white = None if self.whitening is None else self.whitening / factor
            return replace(self, deviation=self.deviation * factor, whitening=white)
        return self if self.level is None else replace(self, level=self.level.times(factor))

    def plus(self, other: "Noise | None") -> "Noise":
        """The noise of a sum with another, independent one; of two on a grid, it is the same grid."""
        if other is None:
            return self
        law: Law = self.law if self.law == other.law and self.law in _CLOSED_UNDER_SUMS else "unknown"
        if self.deviation is None or other.deviation is None:
            grouping: Grouping = "layer" if "layer" in (self.grouping, other.grouping) else "whole"
            told = law != "unknown" and not (self.unread or other.unread)
            bare, unread = self.leaves_some_bare and other.leaves_some_bare, self.follows or other.follows
            return Noise(law, None, grouping, unread=not told and unread, bare=bare, mixture=self._mixed(other))
        return Noise(law, (self.deviation**2 + other.deviation**2) ** 0.5, mixture=self._mixed(other))

    def _mixed(self, other: "Noise") -> tuple[float, ...] | None:
        """Return how a sum with another is correlated over rounds: empty where it is not, None where nobody says."""
        return () if self.mixture == other.mixture == () else None

    def changed(self, clipping: Clipping | None) -> "Noise":
        """The noise after something that is not linear: a clip of each tensor leaves each a level of its own."""
        apart: Grouping = "layer" if "layer" in (self.grouping, clipping and clipping.grouping) else "whole"
        mixture = None if self.mixture else self.mixture
        return Noise("unknown", None, apart, unread=self.follows, bare=self.leaves_some_bare, mixture=mixture)

    def averaged(self, count: int) -> "Noise":
        """The noise of a mean of so many values, each with noise like this of its own."""
        law: Law = self.law if count == 1 or self.law in _CLOSED_UNDER_SUMS else "unknown"
        # A level is read off the looks one by one more exactly than off their mean.
        lost = count > 1 and self.follows and (self.level is not None or law == "unknown")
        return replace(self, law=law, unread=self.unread or lost).times(count**-0.5)  # Gaussian if it has a level


Choice = Literal["largest", "chance", "unknown"]
"""Which coordinates of a group are sent: those of largest magnitude, before they are cut; others in every look, by
chance; or the same ones in every look, by what nobody knows."""


@dataclass(frozen=True)
class Chosen:
    """The coordinates that a defense sends, where it leaves others out: of each group no more than so many.

    Attributes:
        counts: (M,), of each group. grouping: the groups, the whole vector or its tensors.
        choice: which ones.
        least: magnitude that none which is sent lies below, in units of what is read.
        looks: how many of what a defense gives out were averaged.
        clipped: whether the update is clipped only after that, so that the others do not count in its length.
    """

    counts: tuple[int, ...]
    grouping: Grouping = "whole"
    choice: Choice = "unknown"
    least: float = 0.0
    looks: int = 1
    clipped: bool = False

    @property
    def most(self) -> int:
        """Return the number of coordinates that may differ from zero."""
        return sum(self.counts)


@dataclass(frozen=True)
class Simulated:
    """N simulated observations: images (N, n, C, H, W), labels (N, n), and gradients (N, P) as ``target`` has them."""

    images: Tensor
    labels: Tensor
    gradients: Tensor


class Play(Protocol):
    """Runs the first ``count`` public observations through the round of a network with weights (P,).

    They meet the very defense, at the same tap, each with noise of its own, or, ``quiet``, without its noise.
    """

    def __call__(self, weights: Tensor, count: int, quiet: bool) -> Simulated: ...


@dataclass(frozen=True, eq=False)
class Simulation:
    """The round of victims who share weights, for an attacker to play with public examples, none of them a victim's.

    ``name`` tells it from others, ``count`` is how many observations can be played.
    """

    name: str
    count: int
    play: Play


@dataclass(frozen=True)
class Observation:
    """The input of an attack: observations of R independent clients, and declared public knowledge.

    ``target`` (R, P) is the gradient to match: a gradient that was read, or an update divided by minus the learning
    rate (and by the number of local steps for ``avg``). For ``unroll`` it is that update over the whole run of local
    steps. Ground truth is never part of it; ``labels`` (R, n) is filled only when the adversary is declared to know
    the labels (``--labels known``). ``sparse`` says that the defense is known to leave coordinates out of what was
    read, with zeros in their place. ``correction`` (R, P) is what every local step is known to add to the gradient
    (SCAFFOLD), where it is known; ``target`` is without it. ``optimizer`` is that of the local steps, ``reading`` how
    its update became the target (None: as plain SGD's), and ``certainty`` (R, P) weights of its coordinates, by how
    exactly each is known (None: all alike). ``places`` says which of a client's examples is taken to be in each place
    of its local steps, where it passes over them several times (None: all are different). ``batches`` is there where
    the network normalises batches as a whole (BatchNorm in training mode): how large they are, and what running
    statistics gave away of them. ``columns`` says which features of a table's row make a column (None for others); it
    is as public as the network, and no part of the fingerprint. ``client`` (T, n) is there where each T rows are the
    rounds of one client, which holds n examples and trains on some of them in each round, nobody else knows which.
    ``noise``, ``carrying``, ``cut``, ``coding``, ``disguises``, ``prior`` and ``simulation`` are for attackers of the
    tiers above ``plain`` alone: the noise that ``target`` is known to carry (None where it is known to carry none),
    which of its coordinates carry anything else, where noise covers the zeros of a ``sparse`` one (None where it does
    not), the magnitude ``cut`` at which its coordinates were cut before such noise (None where none were), the coarser
    form ``coding`` that they were written in after that (None without), the changes ``disguises`` of images
    (..., C, H, W), one of which was made before gradients were computed (empty where none is known), the weights
    ``trained`` that clients are found to have put in the place of ``weights`` (None for none), what public data of the
    same kind say of the examples, and where victims share weights, the round to run such data through.
    """

    model: RowModel
    weights: Tensor
    target: Tensor
    examples: int
    keys: tuple[tuple[int | str, ...], ...]
    learning_rate: float = 0.05
    local_steps: int = 1
    update_model: UpdateModel = "first"
    optimizer: LocalOptimizer = PLAIN
    reading: UpdateReading | None = None
    certainty: Tensor | None = None
    places: tuple[int, ...] | None = None
    clipping: Clipping | None = None
    labels: Tensor | None = None
    sparse: bool = False
    correction: Tensor | None = None
    batches: KnownBatches | None = None
    noise: Noise | None = None
    carrying: Chosen | None = None
    cut: float | None = None
    prior: Prior | None = None
    simulation: Simulation | None = None
    coding: Coding | None = None
    disguises: tuple[Callable[[Tensor], Tensor], ...] = ()
    trained: Tensor | None = None
    columns: Columns | None = None
    client: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """R, the number of independent clients observed."""
        return self.target.shape[0]

    @property
    def unknowns(self) -> int:
        """Return the number of different examples behind an observation, of those in all ``examples`` places."""
        return self.examples if self.places is None else max(self.places) + 1

    def in_places(self, values: Tensor) -> Tensor:
        """Return values (R, n, ...) of different examples in the places of all local steps; what is there as it is."""
        return values if self.places is None or values.shape[1] == self.examples else values[:, list(self.places)]

    @property
    def by_steps(self) -> bool:
        """Return whether candidates are made step by step, so that it matters in which step an example is."""
        alike = self.reading is None or self.reading.alike
        return self.update_model in ("path", "unroll") or not alike

    @property
    def level(self) -> NoiseLevel | None:
        """Return how the noise level follows the one example of each row; None where it does not, or several
        are, or what they were clipped to is not known, or something was added to them."""
        if self.noise is None or self.examples > 1 or self.correction is not None:
            return None
        if self.clipping is not None and self.clipping.bound is None:
            return None
        return self.noise.level

    def take(self, index: Tensor) -> "Observation":
        """Return the observation restricted to some rows (in the given order, repeats allowed)."""
        if torch.equal(index.cpu(), torch.arange(self.rows)):
            return self  # of a large network the copy takes as long as an iteration
        return replace(
            self,
            weights=self.weights[index],
            target=self.target[index],
            keys=tuple(self.keys[i] for i in index.tolist()),
            labels=None if self.labels is None else self.labels[index],
            correction=None if self.correction is None else self.correction[index],
            certainty=None if self.certainty is None else self.certainty[index],
            batches=self.batches and self.batches.take(index),
            trained=None if self.trained is None else self.trained[index],
        )

    def repeated(self, row: int, count: int) -> "Observation":
        """Return one row as often, without copies: all lie in one memory."""

        def same(values: Tensor) -> Tensor:
            return values[row].expand(count, *values.shape[1:])

        def perhaps(values: Tensor | None) -> Tensor | None:
            return None if values is None else same(values)

        index = torch.full((count,), row, device=self.target.device)
        return replace(
            self, weights=same(self.weights), target=same(self.target), keys=(self.keys[row],) * count,
            labels=perhaps(self.labels), correction=perhaps(self.correction), certainty=perhaps(self.certainty),
            batches=self.batches and self.batches.take(index), trained=perhaps(self.trained),
        )  # fmt: skip

    def known_to(self, tier: Tier) -> "Observation":
        """Return the observation with only what an attacker of that tier knows."""
        if tier != "plain":
            return self if self.trained is None else replace(self, weights=self.trained, trained=None)
        return self._plain

    @cached_property
    def _plain(self) -> "Observation":
        return replace(
            self, noise=None, carrying=None, cut=None, prior=None, simulation=None, coding=None, disguises=(),
            trained=None,
        )  # fmt: skip

    @property
    def clipping_groups(self) -> tuple[int, ...]:
        """Sizes of the groups of coordinates that share one unknown scale."""
        return self.model.layout.groups(self.clipping.grouping if self.clipping else "whole")

    def fingerprint(self) -> str:
        """A hash of everything an attack can see; equal observations have equal fingerprints."""
        # Buffers are not of this observation alone, and may be changed where they are.
        return self._hashed() if any(True for _ in self.model.plain_module.buffers()) else self._hashed_once

    @cached_property
    def _hashed_once(self) -> str:
        return self._hashed()

    def _hashed(self) -> str:
        digest = hashlib.sha256()
        for tensor in (self.weights, self.target, self.labels, self.correction, *self.model.plain_module.buffers()):
            if tensor is not None:
                for row in tensor.detach().cpu() if tensor.dim() > 1 else [tensor.detach().cpu()]:  # one copy at a time
                    digest.update(row.contiguous().flatten().numpy().data)
        facts = (
            self.model.name, self.model.image_shape, self.model.classes, self.examples, self.keys,
            self.learning_rate, self.local_steps, self.update_model, self.clipping, self.labels is None, self.sparse,
            *(() if self.optimizer.is_plain else (self.optimizer.text, self.reading)),
            *(() if self.correction is None else ("corrected",)),
            *(() if self.places is None else ("places", self.places)),
            *(() if self.batches is None else self.batches.facts()),
            *(() if self.noise is None else self.noise.facts()),
            *(() if self.carrying is None else ("carrying", self.carrying)),
            *(() if self.cut is None else ("cut", self.cut)),
            *(() if self.coding is None else ("coding", self.coding)),
            *(("disguises", len(self.disguises)) if self.disguises else ()),
            *(() if self.prior is None else ("prior", self.prior.fingerprint())),
            *(() if self.simulation is None else ("simulation", self.simulation.name)),
            *(() if self.client is None else ("client", self.client)),
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
            certainty=None if self.certainty is None else self.certainty.to(device, dtype),
            batches=self.batches and self.batches.to(device, dtype),
            trained=None if self.trained is None else self.trained.to(device, dtype),
            noise=None if self.noise is None else self.noise.to(device, dtype),
            prior=None if self.prior is None else self.prior.to(device, dtype),
        )


def _digits(deviation: float | Tensor | None) -> str:
    if isinstance(deviation, Tensor):
        return hashlib.sha256(deviation.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
    return repr(deviation)
