"""Clips, noise that goes by their bounds, and what else the defenses have in common.

A clip knows its bound, and noise the clip that it goes by: what they cost together follows from the two.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from harness.base.coding import Coding, Largest
from harness.base.errors import UsageError
from harness.base.vectors import Grouping, Layout, clip, noise_deviation
from harness.federation.context import RoundContext, State
from harness.federation.memory import Remembered
from harness.federation.operations import OF_EXAMPLES, UPDATES, Operation, StepState, require_one_of, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.observation import Chosen, Clipping, Law, Noise
from harness.privacy import Event, Statement, client_views, example_views, make_statement
from harness.privacy import sum_multiplier as on_the_sum


@dataclass(frozen=True)
class AnyClip(Operation):
    """The base of clips: lengths of ``grouping`` (each tensor, or the vector as a ``whole``) are at most ``bound``.

    Attributes:
        bound: the L2 norm, in the units of what is cut; the first one of a clip that adapts.
        symbol: of the bound, in words.
    """

    bound: float
    grouping: Grouping = "layer"
    _: KW_ONLY
    symbol: str = "C"

    unit: ClassVar[Literal["example", "update"]]
    clips = True
    fixed: ClassVar[bool] = True
    """Whether it cuts to ``bound`` in every round and step."""
    uneven: ClassVar[str | None] = None
    """Why noise that goes by it does not add up over clients, in words; None where it does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bound > 0:
            raise UsageError(f"{self.title} to {self.bound!r}: a bound is greater than 0")
        require_one_of(self, "grouping", self.grouping, get_args(Grouping))

    @property
    def only_adds(self) -> bool:
        return self.fixed and math.isinf(self.bound)

    def now(self, server: State | None) -> float:
        """The bound, by what the server remembers."""
        return self.bound

    def known(self, context: RoundContext) -> float | None:
        """The bound that who knows the settings knows; None where it follows private data."""
        return self.bound

    def bounds(self, learning_rate: float, server: State) -> Clipping | None:
        """The clip that noise which goes by it rests on, in units of a gradient; None without."""
        return self.clipping(learning_rate, server)

    def open_noise(self, sigma: float, context: RoundContext) -> Noise:
        """Gaussian noise of ``sigma`` times a bound that follows private data."""
        return Noise("gaussian", None)

    def counted(self, sigma: float) -> float:
        """The multiplier that noise of ``sigma`` times the bound is accounted for with."""
        return sigma

    @property
    def flaw(self) -> str | None:
        """Return the reason why no theorem covers noise that goes by it; None where one does."""
        return None

    @property
    def why(self) -> str:
        """Return the conditions of a guarantee, beside a clip of fixed bound; empty for none."""
        return ""

    def words(self) -> str:
        return self.said or f"clipped per {self.grouping} to {self.symbol}={self.bound:g}"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        protected = "client" if self.unit == "update" else "example"
        return states_nothing("clipping without noise gives no epsilon", protected)


@dataclass(frozen=True)
class ClipExamples(AnyClip):
    """Clips the gradient of each example."""

    unit = "example"
    points = (Point.EXAMPLES,)

    def on_step(self, state: StepState, context: RoundContext) -> None:
        state.clip(self.bound, self.grouping)

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return Clipping(self.bound, self.grouping, "example")


@dataclass(frozen=True)
class ClipUpdate(AnyClip):
    """Clips each client's update, before it leaves (``MESSAGE``) or at the server (``ARRIVAL``)."""

    unit = "update"
    points = (Point.MESSAGE, Point.ARRIVAL)

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return clip(rows, self.now(context.server), context.layout.groups(self.grouping))

    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return Clipping(self.now(server) / learning_rate, self.grouping, "update")


_STREAMS = {
    Point.MESSAGE: "client_message", Point.ARRIVAL: "server_receive", Point.AGGREGATE: "aggregate",
    **dict.fromkeys(OF_EXAMPLES, "client_step"),
}  # fmt: skip
_PLACES: dict[Point, Literal["aggregate", "receive", "client"]] = {
    Point.AGGREGATE: "aggregate", Point.ARRIVAL: "receive", Point.MESSAGE: "client",
}  # fmt: skip


@dataclass(frozen=True)
class GaussianNoise(Operation):
    """Adds Gaussian noise to every coordinate: its deviation is ``level``, or ``level`` times the bound of ``of``.

    At ``EXAMPLES`` it is added to each example's gradient; at ``STEP`` to the sum of the batch's gradients, or with
    ``on_mean`` to their mean; at ``AGGREGATE`` by the server to the sum of all clients' messages.

    Attributes:
        level: >= 0. of: the clip whose bound scales the noise.
        shared: whether each of K clients adds 1/sqrt(K) of it.
        on_mean: see above.
        stream: name of its random stream; noises at one point have different ones.
    """

    level: float
    _: KW_ONLY
    shared: bool = False
    on_mean: bool = False
    stream: str = ""

    points = tuple(_STREAMS)
    noises = True
    law: ClassVar[Literal["gaussian", "laplace"]] = "gaussian"
    steady: ClassVar[bool] = True
    """Whether its level is the same in every round and step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.level < math.inf:
            raise UsageError(f"{self.title} of level {self.level!r}: give it a finite number of at least 0")
        if self.level and isinstance(self.of, AnyClip) and self.of.fixed and math.isinf(self.of.bound):
            raise UsageError(f"an infinite clip leaves {self.title} without a scale; use a finite clip or a level of 0")
        if self.shared and self.at not in (Point.MESSAGE, Point.ARRIVAL):
            raise UsageError(f"clients share noise on their messages, not at {self.at!s}; leave shared out")
        if self.on_mean and self.at is not Point.STEP:
            raise UsageError(f"there is no mean of a batch at {self.at!s}; leave on_mean out")
        if isinstance(self.of, AnyClip) and (self.of.unit == "example") != (self.at in OF_EXAMPLES):
            raise UsageError(
                f"{self.title} at {self.at!s} goes by a clip of each {self.of.unit}; give it one of "
                f"{'examples' if self.at in OF_EXAMPLES else 'updates'}, or let it act where that clip does"
            )

    def _usual(self) -> Point:
        return Point.MESSAGE if self.of is None else Point.STEP if self.of.at in OF_EXAMPLES else self.of.at

    # How it runs.

    def on_step(self, state: StepState, context: RoundContext) -> None:
        width, batch = self._width(state, context), context.cohort.batch_size
        if self.at is Point.EXAMPLES:
            values = state.gradients()
            # A sampled batch has another number of examples, which is private: noise is for the expected one.
            places = values[:, :1].expand(-1, batch, -1)
            noise = self._drawn(width[..., None] if isinstance(width, Tensor) else width, places, context)
            state.total = values.sum(1) + noise.sum(1)
            state.sanitised = values + noise if values.shape == noise.shape else None
            state.louder(_per_client(width) / math.sqrt(batch))
            return
        mean = state.mean()
        scale = width if self.on_mean else width / batch
        state.direction = torch.add(mean, self._drawn(scale, mean, context))
        state.louder(_per_client(scale))

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return rows + self._drawn(self.deviation(context), rows, context)

    def on_total(self, total: Tensor, context: RoundContext) -> Tensor:
        return total + self.deviation(context) * context.server_gaussian(self.purpose, total)

    def sigma(self, context: RoundContext) -> float:
        """The level in a round and local step."""
        return self.level

    def deviation(self, context: RoundContext) -> float:
        """The standard deviation at a point where the bound is a number."""
        clip, sigma = self.of, self.sigma(context)
        full = noise_deviation(sigma, clip.now(context.server)) if isinstance(clip, AnyClip) else sigma
        return full / math.sqrt(context.cohort.clients_per_round) if self.shared else full

    def _width(self, state: StepState, context: RoundContext) -> Tensor | float:
        """The standard deviation in a local step: a number, or one for each client (N, 1)."""
        sigma, clip = self.sigma(context), self.of
        if not isinstance(clip, AnyClip) or not sigma:
            return sigma
        return noise_deviation(sigma, clip.bound) if clip.fixed else sigma * state.bounds

    def _drawn(self, width: Tensor | float, like: Tensor, context: RoundContext) -> Tensor:
        """Noise of a standard deviation."""
        return width * context.gaussian(self.purpose, like)

    @property
    def purpose(self) -> str:
        """Name of its random stream."""
        return self.stream or _STREAMS[self.at]

    # What is known of it.

    @property
    def only_adds(self) -> bool:
        return True

    def noise(self, context: RoundContext) -> Noise | None:
        batch = context.cohort.batch_size
        known = self._known(context)
        if known is None or known.deviation is None or self.at not in OF_EXAMPLES:
            return known
        if self.at is Point.EXAMPLES:
            law: Law = self.law if batch == 1 or self.law == "gaussian" else "unknown"
            return Noise(law, known.deviation / math.sqrt(batch))
        return known if self.on_mean else Noise(self.law, known.deviation / batch)

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        return self._known(context) if self.at is Point.EXAMPLES else None

    def _known(self, context: RoundContext) -> Noise | None:
        """The noise on what it is added to."""
        clip, sigma = self.of, self.sigma(context)
        if not self.level:
            return None
        if not isinstance(clip, AnyClip):
            return Noise(self.law, self.deviation(context))
        if self.at not in OF_EXAMPLES:
            return Noise(self.law, deviation) if (deviation := self.deviation(context)) else None
        bound = clip.known(context)
        if bound is None:
            return clip.open_noise(sigma, context)
        return Noise(self.law, deviation) if (deviation := noise_deviation(sigma, bound)) else None

    @property
    def subject(self) -> str:
        if self.of is not None:
            return super().subject
        each = {Point.EXAMPLES: "each per-example gradient", Point.STEP: "each local step's batch gradient"}
        return each.get(self.at, f"each update sent{UPDATES.removeprefix('updates')}")

    def words(self) -> str:
        if self.said or not isinstance(self.of, AnyClip):
            return self.said or f"{self.law} noise of std {self.level:.4g} per coordinate"
        scale = f"sigma*{self.of.symbol}"
        place = {
            Point.AGGREGATE: "the sum at the server", Point.ARRIVAL: "each update on arrival",
            Point.MESSAGE: "each update sent", Point.EXAMPLES: "each clipped per-example gradient",
            Point.STEP: f"the {'mean' if self.on_mean else 'sum'} of clipped per-example gradients",
        }.get(self.at, "the global model")  # fmt: skip
        return f"noise std {scale}{'/sqrt(K)' * self.shared} on {place} with sigma={self.level:g}"

    # Its theorem: that of noise whose bound is known, or follows nothing but noisy outputs.

    @property
    def convention(self) -> Literal["sum", "per_example", "mean"]:
        """Return where in a batch it is added."""
        return "per_example" if self.at is Point.EXAMPLES else "mean" if self.on_mean else "sum"

    def schedule(self) -> str:
        """Its level in words."""
        return f"sigma={self._stated:g}"

    @property
    def _stated(self) -> float:
        return self.of.counted(self.level) if isinstance(self.of, AnyClip) else self.level

    def claimed(self, facts: PrivacyFacts) -> Event | None:
        """Return the event that the papers account for; None where they do not, or nothing is added."""
        if not self._stated:
            return None
        if self.at in OF_EXAMPLES:
            return facts.claimed_for_examples([self._stated])
        return facts.claimed_for_clients(self._stated)

    def condition(self, facts: PrivacyFacts) -> str:
        """Return the condition of its guarantee, as the end of a sentence."""
        return ""

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        clip, unit = self.of, "example" if self.at in OF_EXAMPLES else "client"
        if not isinstance(clip, AnyClip):
            why = "noise without clipping: one record may change the result by any amount, so no epsilon exists"
            return states_nothing(why, unit)
        if self.law != "gaussian":
            return states_nothing(f"no theorem here covers noise of the law {self.law}", unit)
        if flaw := clip.flaw:
            return [
                make_statement(
                    "server", "none", flaw, claimed=self.claimed(facts), delta=facts.delta, unit=unit,
                    schedule=self.schedule(),
                )
            ]  # fmt: skip
        if not self._stated:
            return states_nothing("clipping without noise gives no epsilon", unit)
        return self._of_examples(clip, facts) if unit == "example" else self._of_clients(clip, facts)

    def _of_examples(self, clip: AnyClip, facts: PrivacyFacts) -> list[Statement]:
        """One for each view of the local steps."""
        multiplier = on_the_sum(self._stated, self.convention, facts.cohort.batch_size)
        claimed, why = self.claimed(facts), f"{clip.why}; " if clip.why else ""
        return [
            make_statement(
                view.name, "sample-DP local view" if view.name == "server" else "sample-DP",
                f"{why}{view.note}{self.condition(facts)}; clients as units are not covered", actual=view.event,
                claimed=claimed, delta=facts.delta, unit="example", schedule=self.schedule(),
            )
            for view in example_views(facts.examples(multiplier, clip.grouping), uneven=clip.uneven)
        ]  # fmt: skip

    def _of_clients(self, clip: AnyClip, facts: PrivacyFacts) -> list[Statement]:
        """One for each view of the updates; noise of the server protects nothing from it."""
        place, claimed = _PLACES[self.at], self.claimed(facts)
        split = "share" if self.shared else "full"
        stated = []
        for view in client_views(facts.clients(self._stated, clip.grouping), place, split):
            server, note = view.name == "server", f"{clip.why}; {view.note}" if clip.why else view.note
            if server and clip.why:
                note = "the server receives every update without noise"
            tag = "client-DP central" if not server else "client-LDP" if place == "client" else "none"
            stated.append(
                make_statement(
                    view.name, tag, note, actual=view.event, claimed=claimed, delta=facts.delta, unit="client",
                    schedule=self.schedule(),
                )
            )  # fmt: skip
        return stated


def _per_client(width: Tensor | float) -> Tensor | float:
    return width[:, 0] if isinstance(width, Tensor) else width


@dataclass(frozen=True)
class LaplaceNoise(GaussianNoise):
    """Adds Laplace noise to every coordinate; ``level`` is its standard deviation, b sqrt 2."""

    law = "laplace"
    points = (Point.MESSAGE, Point.ARRIVAL, *OF_EXAMPLES)

    def _drawn(self, width: Tensor | float, like: Tensor, context: RoundContext) -> Tensor:
        return width / math.sqrt(2) * context.laplace(self.purpose, like)


@dataclass(frozen=True)
class KeepLargest(Operation):
    """Zeroes the share ``lost`` of coordinates of smallest magnitude, and all that tie with them.

    ``grouping``: the share is taken of the ``whole`` vector, or of every tensor. With ``error_feedback`` the client
    keeps what it did not send and adds it to its next update (Lin et al. 2018, "Deep Gradient Compression").
    """

    lost: float
    grouping: Grouping = "whole"
    error_feedback: bool = False

    points = (Point.MESSAGE,)
    about = "updates"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lost <= 1:
            raise UsageError(f"{self.title} loses a share of {self.lost!r}; give a number from 0 to 1")
        require_one_of(self, "grouping", self.grouping, get_args(Grouping))

    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        if self.error_feedback:
            rows = rows + context.client.get("residual", 0.0)
        groups = context.layout.groups(self.grouping)
        sent = torch.cat([_without_smallest(part, self.lost) for part in rows.split(groups, dim=-1)], dim=-1)
        if self.error_feedback:
            context.client["residual"] = rows - sent
        return sent

    def clients_remember(self) -> Mapping[str, Remembered]:
        return {"residual": Remembered((None,))} if self.error_feedback else {}

    @property
    def sparse(self) -> bool:
        return self.lost > 0

    @property
    def only_adds(self) -> bool:
        return self.lost == 0

    def chosen(self, layout: Layout) -> Chosen | None:
        counts = tuple(size - _lost(size, self.lost) for size in layout.groups(self.grouping))
        # Of what was kept from earlier rounds nobody knows what it adds.
        return Chosen(counts, self.grouping, "unknown" if self.error_feedback else "largest")

    @property
    def coding(self) -> Coding | None:
        return Largest(grouping=self.grouping, feedback=self.error_feedback) if self.lost else None

    def words(self) -> str:
        of = "the whole vector" if self.grouping == "whole" else "each parameter tensor"
        kept = "kept for the next round" if self.error_feedback else "lost"
        return self.said or f"the {self.lost:.4g} share of {of} with the smallest magnitude is zeroed and {kept}"

    def statements(self, facts: PrivacyFacts) -> list[Statement] | None:
        why = "which coordinates are left out depends on private data and no noise is added, so no epsilon exists"
        return states_nothing(why, "client")


def _without_smallest(vectors: Tensor, share: float) -> Tensor:
    """Vectors (N, P) without the floor(share * P) coordinates of smallest magnitude and those equal to them.

    The released code of Zhu et al. zeroes one coordinate more, even at a share of 0.
    """
    count = _lost(vectors.shape[-1], share)
    if count == 0:
        return vectors
    magnitudes = vectors.abs()
    largest_lost = magnitudes.kthvalue(count, dim=-1, keepdim=True).values
    return vectors.where(magnitudes > largest_lost, torch.zeros_like(vectors))


def _lost(size: int, share: float) -> int:
    """Return how many coordinates of a group are left out at least."""
    return int(share * size + 1e-9)
