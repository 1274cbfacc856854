"""A defense: a frozen record of settings, and the list of operations that they stand for.

Whatever is asked of a defense follows from that list, here and nowhere else: how a round runs, what attackers know,
the sentence under the table, the privacy statements, and the most that can be reconstructed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from harness.base.coding import ByChance, Coding, Largest
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.federation.clip_and_noise import AnyClip, GaussianNoise
from harness.federation.context import Cohort, RoundContext, ScopedState, State
from harness.federation.examples import ExampleGradients, LocalStep, NetworkBatch
from harness.federation.memory import Remembered
from harness.federation.operations import Custom, Operation, StepState, require_alike
from harness.federation.ordering import (
    FixedNoise,
    NoisePlace,
    arranged,
    finished_of,
    fixed_noise_of,
    sentence,
    statements_of,
    why_unbounded,
)
from harness.federation.privacy_facts import LEFT_OUT, PrivacyFacts, height, limit_of
from harness.federation.taps import Hook, Point, Tap
from harness.observation import Chosen, Clipping, Noise
from harness.privacy import Limit, NoLimit, Statement

Flow = list[tuple[str, Operation]]
"""Operations in their order, each with the name of the defense of a stack that it is of; empty for a defense alone."""

# Where what a stage gives out is read, and what it has to clip itself for its noise to limit anything.
_CLIPPED_BY = {
    Hook.CLIENT_STEP: (Tap.STEP, "example"), Hook.CLIENT_MESSAGE: (Tap.SENT, "update"),
    Hook.SERVER_RECEIVE: (Tap.RECEIVED, "update"),
}  # fmt: skip
_BEFORE_MESSAGES = (Point.BROADCAST, Point.NETWORK, Point.INPUTS, Point.EXAMPLES, Point.STEP)
GUIDE = "docs/adding-a-defense.md"
__all__ = ["GUIDE", "Defense", "FixedNoise", "LocalStep", "NoisePlace"]


@validated(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Defense:
    """Base of every defense: settings, and ``operations``. All else follows from these.

    Raises:
        UsageError: a subclass overrides what follows from them, as defenses of earlier versions did.
    """

    name: ClassVar[str] = "abstract"

    def operations(self, cohort: Cohort) -> list[Operation]:
        """Return the operations of a round, in order; facts about the federation come from ``cohort``."""
        return []

    def __init_subclass__(cls, combines: bool = False) -> None:
        super().__init_subclass__()
        derived = {name for name, value in vars(Defense).items() if callable(value) or isinstance(value, property)}
        for name in vars(cls):
            if name in derived and not name.startswith("_") and name != "operations" and not combines:
                raise UsageError(
                    f"{cls.__name__}.{name}() is no method of a defense any more; let operations() return what happens "
                    f"at which point of a round, see {GUIDE}"
                )

    def flow(self, cohort: Cohort | None = None) -> Flow:
        """The operations, each with the name of its part."""
        return [("", one) for one in arranged(self.operations(cohort or Cohort()))]

    @property
    def part_names(self) -> list[str]:
        """Names of the defenses of a stack, in their order; an empty one of a defense alone."""
        return [""]

    # Running a round.

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        """Turns per-example gradients into what local SGD consumes (taps T2.clip, T2.examples, T2.step)."""
        state = StepState(per_example, context.cohort.batch_size)
        for one, own in self._at(context, Point.EXAMPLES, Point.STEP):
            one.on_step(state, own)
        return state.made()

    def received(self, weights: Tensor, context: RoundContext) -> Tensor:
        """Return the weights (N, P) that N clients train from, of those that they received."""
        return self._rows(Point.NETWORK, weights, context)

    def inputs(self, batch: NetworkBatch, context: RoundContext) -> NetworkBatch:
        """The local batches that gradients are computed of."""
        for one, own in self._at(context, Point.INPUTS):
            batch = replace(batch, inputs=one.on_rows(batch.inputs, replace(own, batch=batch)))
        return batch

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        """Transforms the client's update (N, P) before it leaves the client (tap T1.out)."""
        return self._rows(Point.MESSAGE, update, context)

    def sum_securely(self, messages: Tensor, context: RoundContext) -> Tensor:
        """The sum (P,) of one round's messages (N, P)."""
        for one, own in self._at(context, Point.SUM):
            return one.on_messages(messages, own)
        return messages.sum(0)

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        """Transforms each client's message (N, P) at the server (tap T0.post)."""
        return self._rows(Point.ARRIVAL, message, context)

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        """Return the vector (P,) that the server applies, from the sum (P,) of one round's messages."""
        return self._total(Point.AGGREGATE, total, context) / context.cohort.clients_per_round

    def applied(self, weights: Tensor, context: RoundContext) -> Tensor:
        """The global weights (P,) after the server's optimizer."""
        return self._total(Point.APPLIED, weights, context)

    def broadcast(self, weights: Tensor, context: RoundContext) -> Tensor:
        """The weights (P,) that clients get of the global ones."""
        return self._total(Point.BROADCAST, weights, context)

    def _rows(self, point: Point, rows: Tensor, context: RoundContext) -> Tensor:
        for one, own in self._at(context, point):
            made = one.on_rows(rows, own)
            rows = made if _ours(one) else require_alike(one, made, rows)
        return rows

    def _total(self, point: Point, total: Tensor, context: RoundContext) -> Tensor:
        for one, own in self._at(context, point):
            made = one.on_total(total, own)
            total = made if _ours(one) else require_alike(one, made, total)
        return total

    def _at(self, context: RoundContext, *points: Point) -> Iterator[tuple[Operation, RoundContext]]:
        """The operations at some points, in the order of the round, each with its own part of memory and streams."""
        planned, flow = context.plans.get(context.cohort, (None, []))
        if planned is not self:
            flow = self.flow(context.cohort)
            context.plans[context.cohort] = self, flow
        for point in points:
            for name, one in flow:
                if one.at is point and one.acts:
                    yield one, context.part(name) if name else context

    # What attackers know.

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        """The clipping an adversary at ``tap`` knows to have been applied, in gradient units; None without.

        The tightest of several of the same groups. Of different groups no single one is what was done, and an attacker
        who took it for that would fail for no merit of the defense: then it is that of the finest groups, unbounded.
        ``server`` is what the server remembers, known to all clients (None, or empty, in round 0).
        """
        shared = {} if server is None else server
        found = [
            one.clipping(learning_rate, ScopedState(shared, f"{name}.") if name else shared)
            for name, one in self.flow()
            if _passed(tap, one)
        ]
        known = [clipping for clipping in found if clipping is not None]
        if not known:
            return None
        bounds = [clipping.bound for clipping in known if clipping.bound is not None]
        if len(bounds) < len(known) or len({clipping.grouping for clipping in known}) > 1:
            finest = max(known, key=lambda clipping: clipping.grouping == "layer")
            return replace(finest, bound=None)
        return known[bounds.index(min(bounds))]

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        """The noise that who knows these settings knows a stage to add; None without.

        Its deviation is that on a coordinate of what the stage gives out, ``context.noise_scale`` left aside: of the
        direction of ``context.local_step`` for ``client_step``, else of one client's update. Where clients' deviations
        differ it is None, or of ``context.clients``, if given, the root mean square.
        """
        total: Noise | None = None
        for one in self._of(hook, context.cohort):
            if total is not None and not one.only_adds:
                total = total.changed(one.clipping(context.learning_rate, context.server))
            own = one.noise(context)
            total = total if own is None else own.plus(total)
        return total

    def noise_of_examples(self, context: RoundContext) -> Noise | None:
        """Return the noise on a sanitised per-example gradient (tap T2.examples); None where there is none."""
        own = (one.noise_of_examples(context) for one in self._of(Hook.CLIENT_STEP, context.cohort))
        return next((noise for noise in own if noise is not None), None)

    def only_adds(self, hook: Hook) -> bool:
        """Return whether what it does at that stage keeps the noise of those before it as it was."""
        return all(one.only_adds for one in self._of(hook))

    def keeps_rank_at(self, tap: Tap) -> bool:
        """Return whether nothing but clips of norms and noise has changed gradients on their way to a tap: what rounds
        or cuts number by number leaves any rank."""
        return all(
            not one.acts or one.at in (Point.INPUTS, Point.NETWORK)
            or ((one.clips or one.noises) and one.coding is None and one.cut is None)
            for _, one in self.flow() if _passed(tap, one)
        )  # fmt: skip

    def sparse_at(self, tap: Tap) -> bool:
        """Return whether an adversary at ``tap`` knows that coordinates were left out, with zeros in their place."""
        return any(one.sparse for _, one in self.flow() if _passed(tap, one))

    def chosen_at(self, tap: Tap, layout: Layout) -> Chosen | None:
        """Return which coordinates may differ from zero at a tap that is sparse; None where nothing bounds how many.

        That of the last operation that leaves something out, unless one after it may fill it again. What it chooses by
        is not the update where one before it has changed that.
        """
        chosen: Chosen | None = None
        changed = False
        for one in (one for _, one in self.flow() if one.acts):
            if one.sparse and _passed(tap, one):
                chosen = one.chosen(layout)
                if chosen and changed and chosen.choice == "largest":
                    chosen = replace(chosen, choice="unknown")
            elif one.at is Point.MESSAGE:
                chosen = None
            changed = changed or one.at is Point.MESSAGE
        return chosen

    def cut_at(self, tap: Tap) -> float | None:
        """The magnitude at which coordinates of an update are cut before ``tap``, in its units; None without."""
        cuts = (one.cut for _, one in self.flow() if _passed(tap, one))
        return min((bound for bound in cuts if bound is not None), default=None)

    def coding_at(self, tap: Tap) -> Coding | None:
        """Return the coarser form of an update's numbers at ``tap``, in its units; None without, or before a change."""
        passed = [one for _, one in self.flow() if one.acts and _passed(tap, one)]
        written = [one.coding for one in passed]
        coded = [place for place, one in enumerate(written) if one is not None and not isinstance(one, Largest)]
        if not coded:  # of several choices of coordinates, none is of the largest of all
            coded = [place for place, one in enumerate(written) if one is not None]
        if len(coded) != 1 or not all(one.only_adds for one in passed[coded[0] + 1 :]):
            return None
        coding = written[coded[0]]
        # Noise beside what chance rounds moves the steps too, which no attacker has a model of.
        alone = not any(one.noises for place, one in enumerate(passed) if place != coded[0])
        return coding if alone or not isinstance(coding, ByChance) else None

    def codes(self, tap: Tap) -> bool:
        """Return whether numbers of an update are made coarser before ``tap``."""
        written = (one.coding for _, one in self.flow() if _passed(tap, one))
        return any(one is not None and not isinstance(one, Largest) for one in written)

    @property
    def disguises(self) -> tuple[Callable[[Tensor], Tensor], ...]:
        """Return the changes that it may make of images before gradients, where one operation alone makes any."""
        made = [tuple(one.disguises()) for _, one in self.flow() if one.acts and one.at is Point.INPUTS]
        return made[0] if len(made) == 1 else ()

    def trained(self, weights: Tensor, gradients: Tensor, layout: Layout) -> Tensor | None:
        """Return what can be told of weights (R, P) that clients trained in place of those sent; None for nothing."""
        changed = weights
        for _, one in self.flow():
            changed = one.trained(changed, gradients, layout)
        return None if changed is weights else changed

    @property
    def changes_before_gradients(self) -> bool:
        """Return whether clients compute gradients of something else than what they hold and were sent."""
        return any(one.acts and one.at in (Point.NETWORK, Point.INPUTS) for _, one in self.flow())

    def grid_of(self, tap: Tap, context: RoundContext, steps: int) -> float | None:
        """The step of the grid that all values at a tap lie on, in units of the gradient that is matched there.

        None where there is none, or where it takes what clients share in secret to see it. ``steps``: L, local ones
        behind an update.
        """
        grids = (one.grid(context, steps) for _, one in self.flow(context.cohort) if _passed(tap, one))
        return next((step for step in grids if step is not None), None)

    def most_values_at(self, tap: Tap) -> int | None:
        """Return how many different numbers a tensor holds at most at a tap; None where something acts behind that."""
        passed = [one.most_values for _, one in self.flow() if one.acts and _passed(tap, one)]
        return passed[-1] if passed else None

    def refuses_module(self, module: str) -> bool:
        """Return whether clients train no network that a server has put such a module before, named in words."""
        return any(one.refuses(module) for _, one in self.flow())

    @property
    def measured(self) -> bool:
        """Return whether runs measure its declared noise: research code, and operations from elsewhere, may err."""
        return any(isinstance(one, Custom) or not _ours(one) for _, one in self.flow())

    # Theorems and statements.

    def reconstruction_limit(self, hook: Hook, context: RoundContext) -> Limit | NoLimit:
        """Return the limit of reconstruction from the stage's output; ``context.noise_scale``, above 0, counts.

        Of one example in one local step (``context.local_step``) where examples are clipped, of all that a client
        holds where its update is; all else may be known.
        """
        operations, (tap, unit) = self._of(hook, context.cohort), _CLIPPED_BY.get(hook, (None, None))
        every = [one for _, one in self.flow(context.cohort)]
        if why := why_unbounded(every, hook):
            return NoLimit(why)
        moved = 1 / context.cohort.batch_size if unit == "example" else context.learning_rate
        if limits := _of_mechanisms(operations, moved, context):
            return min(limits, key=height)
        inputs = [one for one in every if one.at is Point.INPUTS] if hook is Hook.CLIENT_STEP else []
        research = next((one for one in [*inputs, *operations] if isinstance(one, Custom) or not _ours(one)), None)
        if research is not None:
            return NoLimit(f"no theorem here covers {research.title}")
        for own in (one.limit(context) for one in operations):
            if own is not None:
                return own
        if any(one.sparse for one in operations):
            return NoLimit(LEFT_OUT)
        clipping = None if tap is None else self.clipping_at(tap, context.learning_rate, context.server)
        if clipping is not None and clipping.unit != unit:
            clipping = None
        return limit_of(self.noise_of(hook, context), clipping, moved, context)

    def reconstruction_limit_of_examples(self, context: RoundContext) -> Limit | NoLimit:
        """Return the limit for a sanitised per-example gradient (tap T2.examples)."""
        if why := why_unbounded([one for _, one in self.flow(context.cohort)], Hook.CLIENT_STEP):
            return NoLimit(why)
        own = [one for one in self._of(Hook.CLIENT_STEP, context.cohort) if one.at is Point.EXAMPLES]
        limits = _of_mechanisms(own, 1.0, context, of_examples=True)
        return min(limits, key=height) if limits else limit_of(self.noise_of_examples(context), None, 1.0, context)

    def units(self) -> str:
        """One sentence naming what clipping and noise apply to, in which units and by which convention."""
        return sentence([one for _, one in self.flow()])

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        """One privacy statement per view (docs/defenses.md)."""
        return statements_of(self.flow(facts.cohort), self.part_names, facts)

    def fixed_noise(self, facts: PrivacyFacts) -> FixedNoise | None:
        """The noise on clipped vectors; None where there is none, or where it follows the data or the round."""
        return fixed_noise_of(self.flow(facts.cohort), self.part_names, facts)

    def finished(self, facts: PrivacyFacts) -> str | None:
        """Return the reason to stop before the round that ``facts.cohort.rounds`` would include; None to continue."""
        return finished_of(self.flow(facts.cohort), self.part_names, facts)

    # What it remembers, and where it acts.

    def server_remembers(self) -> Mapping[str, Remembered]:
        """Return all that the server remembers after a round (``context.server``) and uses in later ones, by name."""
        return {_named(name, key): one for name, own in self.flow() for key, one in own.server_remembers().items()}

    def clients_remember(self, tap: Tap | None = None) -> Mapping[str, Remembered]:
        """Return the tensors that each client may keep over its rounds (``context.client``), by name.

        With ``tap`` only those that may change what is read there.
        """
        flow = ((name, one) for name, one in self.flow() if tap is None or _passed(tap, one))
        return {_named(name, key): one for name, own in flow for key, one in own.clients_remember().items()}

    @property
    def replays(self) -> bool:
        """Return whether all that the server remembers follows from random streams, and nobody else knows it."""
        keeping = [one for _, one in self.flow() if one.server_remembers()]
        return bool(keeping) and all(one.replays for one in keeping)

    def adapts(self) -> bool:
        """Return whether what the server remembers from earlier rounds changes later ones."""
        return bool(self.server_remembers())

    def sends_beside(self) -> list[str]:
        """Names of what clients send in clear beside their updates."""
        return [_named(name, key) for name, one in self.flow() for key in one.sends]

    def needs_planned_rounds(self) -> str | None:
        """Return the part of a round that depends on the planned rounds, such as a decaying sigma; None for nothing."""
        reasons = (f"{one.planned}{f' of {name}' * bool(name)}" for name, one in self.flow() if one.planned)
        return next(reasons, None)

    def acts_at(self, hook: Hook) -> bool:
        """Return whether that stage may change anything under these settings."""
        return bool(self._of(hook))

    def changes_messages(self) -> bool:
        """Return whether updates are changed after the local steps, so that values beside an update are not."""
        return any(one.acts and one.at not in _BEFORE_MESSAGES for _, one in self.flow())

    @property
    def sums_securely(self) -> bool:
        """Return whether the server gets nothing but the sum of a round's messages."""
        return self.acts_at(Hook.SUM_SECURELY)

    @property
    def needs_network(self) -> bool:
        """Return whether it reads the network, its weights and the examples of a local step."""
        return any(one.needs_network for _, one in self.flow())

    def chain(self) -> "tuple[tuple[str, Defense], ...]":
        """The defenses that act one after the other at every point, by name; a defense alone has no name."""
        return (("", self),)

    def parameters(self) -> dict[str, Any]:
        """Every hyper-parameter by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _of(self, hook: Hook, cohort: Cohort | None = None) -> list[Operation]:
        """The operations of a stage, in the order of the round."""
        flow = self.flow(cohort)
        return [one for point in Point if point.hook == hook for _, one in flow if one.at is point and one.acts]


def _of_mechanisms(
    operations: Sequence[Operation], moved: float, context: RoundContext, of_examples: bool = False
) -> list[Limit | NoLimit]:
    """The limit of each noise that goes by a clip, or that the clip has of its own."""
    found: list[Limit | NoLimit] = []
    for one in operations:
        if isinstance(one, GaussianNoise) and isinstance(one.of, AnyClip):
            own = None if of_examples else one.of.limit(context)
            noise = one.noise_of_examples(context) if of_examples else one.noise(context)
            bound = one.of.bounds(context.learning_rate, context.server)
            found.append(limit_of(noise, bound, moved, context) if own is None else own)
    return found


def _passed(tap: Tap, one: Operation) -> bool:
    """Return whether what is read at a tap has passed an operation."""
    return one.at.hook in Tap(tap).clipped_by


def _named(part: str, key: str) -> str:
    return f"{part}.{key}" if part else key


def _ours(one: Operation) -> bool:
    return type(one).__module__.partition(".")[0] == "harness"
