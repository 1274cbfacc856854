"""Several defenses at once, chained in order at every hook: ``pruning+noise`` prunes, then adds noise."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from harness.defenses.stack_statements import combined_statements, facts_of
from harness.errors import UsageError
from harness.federation.context import RoundContext, ScopedState, State
from harness.federation.defense import Defense, LocalStep
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.remembered import Remembered
from harness.federation.taps import Hook, Tap
from harness.observation import Chosen, Clipping
from harness.privacy import Statement
from harness.vectors.layout import Layout


@dataclass(frozen=True)
class Stack(Defense):
    """Defenses by name, in order; each sees its own part of the memory and has its own noise streams.

    Raises:
        UsageError: more than one changes the local step, which hands out one step and not another set of gradients.
    """

    parts: tuple[tuple[str, Defense], ...]

    @classmethod
    def of(cls, parts: Mapping[str, Defense]) -> "Stack":
        """The stack of some defenses."""
        return cls(tuple(parts.items()))

    def __post_init__(self) -> None:
        steps = [name for name, part in self.parts if part.acts_at(Hook.CLIENT_STEP)]
        if len(steps) > 1:
            raise UsageError(f"{' and '.join(steps)} would both change the local step; stack only one of them")
        secure = next((name for name, part in self.parts if part.sums_securely), None)
        if secure and len(self.parts) > 1:
            raise UsageError(
                f"{secure} sums what its own clients encoded, which no other defense may change; use it alone"
            )

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        for name, part in self.parts:
            if part.acts_at(Hook.CLIENT_STEP):
                return part.client_step(per_example, context.part(name))
        return super().client_step(per_example, context)

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        for name, part in self.parts:
            update = part.client_message(update, context.part(name))
        return update

    def server_receive(self, message: Tensor, context: RoundContext) -> Tensor:
        for name, part in self.parts:
            message = part.server_receive(message, context.part(name))
        return message

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        count = context.cohort.clients_per_round
        for name, part in self.parts:
            if part.acts_at(Hook.AGGREGATE):
                # Each part gives a mean; the next one expects the sum behind it.
                total = part.aggregate(total, context.part(name)) * count
        return total / count

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        """The tightest of the parts' clips; scale by scale of the finest groups, unbounded, where their groups differ.

        Clips of the same groups one after another are the tightest of them alone. Of different groups no single one is
        what was done, and an attacker who took it for that would fail for no merit of the defense.
        """
        shared = {} if server is None else server
        found = [part.clipping_at(tap, learning_rate, ScopedState(shared, f"{name}.")) for name, part in self.parts]
        known = [clipping for clipping in found if clipping is not None]
        if not known:
            return None
        bounds = [clipping.bound for clipping in known if clipping.bound is not None]
        if len(bounds) < len(known) or len({clipping.grouping for clipping in known}) > 1:
            finest = max(known, key=lambda clipping: clipping.grouping == "layer")
            return replace(finest, bound=None)
        return known[bounds.index(min(bounds))]

    def chain(self) -> tuple[tuple[str, Defense], ...]:
        return self.parts

    def sparse_at(self, tap: Tap) -> bool:
        return any(part.sparse_at(tap) for _, part in self.parts)

    def chosen_at(self, tap: Tap, layout: Layout) -> Chosen | None:
        """That of the last part that leaves something out, unless one after it may fill it again.

        What it chooses by is not the update where a part before it has changed that.
        """
        chosen: Chosen | None = None
        changed = False
        for _, part in self.parts:
            if part.sparse_at(tap):
                chosen = part.chosen_at(tap, layout)
                if chosen and changed and chosen.choice == "largest":
                    chosen = replace(chosen, choice="unknown")
            elif part.acts_at(Hook.CLIENT_MESSAGE):
                chosen = None
            changed = changed or part.acts_at(Hook.CLIENT_MESSAGE)
        return chosen

    def cut_at(self, tap: Tap) -> float | None:
        return min((bound for _, part in self.parts if (bound := part.cut_at(tap)) is not None), default=None)

    def refuses_module(self, module: str) -> bool:
        return any(part.refuses_module(module) for _, part in self.parts)

    def acts_at(self, hook: Hook) -> bool:
        return any(part.acts_at(hook) for _, part in self.parts)

    def units(self) -> str:
        return "; then ".join(f"{name} {part.units()}" for name, part in self.parts)

    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        return combined_statements(self.parts, facts)

    def server_remembers(self) -> Mapping[str, Remembered]:
        return {f"{name}.{key}": one for name, part in self.parts for key, one in part.server_remembers().items()}

    def clients_remember(self) -> Mapping[str, Remembered]:
        return {f"{name}.{key}": one for name, part in self.parts for key, one in part.clients_remember().items()}

    def needs_planned_rounds(self) -> str | None:
        reasons = ((name, part.needs_planned_rounds()) for name, part in self.parts)
        return next((f"{reason} of {name}" for name, reason in reasons if reason), None)

    def finished(self, facts: PrivacyFacts) -> str | None:
        # By the same facts as its statements: what an earlier part keeps takes a later one's sampling away.
        reasons = (
            (name, part.finished(facts_of(self.parts, position, facts)))
            for position, (name, part) in enumerate(self.parts)
        )
        return next((f"{name}: {reason}" for name, reason in reasons if reason), None)

    def parameters(self) -> dict[str, Any]:
        return {f"{name}.{key}": value for name, part in self.parts for key, value in part.parameters().items()}
