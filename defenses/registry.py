"""The registry of defenses, and how a defense is declared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from harness.base.building import validated_record
from harness.base.errors import UsageError
from harness.base.registry import Registry
from harness.federation.context import Cohort, RoundContext
from harness.federation.defense import Defense, Flow
from harness.federation.operations import Operation
from harness.federation.taps import Hook

# Several defenses at once: `pruning+noise` prunes, then adds noise. A stack is its parts' lists in turn.


@dataclass(frozen=True)
class Stack(Defense, combines=True):
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

    def operations(self, cohort: Cohort) -> list[Operation]:
        return [one for _, one in self.flow(cohort)]

    def flow(self, cohort: Cohort | None = None) -> Flow:
        return [(name, one) for name, part in self.parts for _, one in part.flow(cohort)]

    @property
    def part_names(self) -> list[str]:
        return [name for name, _ in self.parts]

    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        count = context.cohort.clients_per_round
        for name, part in self.parts:
            if part.acts_at(Hook.AGGREGATE):
                # Each part gives a mean; the next one expects the sum behind it.
                total = part.aggregate(total, context.part(name)) * count
        return total / count

    def chain(self) -> tuple[tuple[str, Defense], ...]:
        return self.parts

    def units(self) -> str:
        return "; then ".join(f"{name} {part.units()}" for name, part in self.parts)

    def parameters(self) -> dict[str, Any]:
        return {f"{name}.{key}": value for name, part in self.parts for key, value in part.parameters().items()}


DEFENSES: Registry[type[Defense]] = Registry("defense", "harness.defenses", combine=Stack.of)

#: Decorator of a defense: a frozen record whose settings are validated.
validated_defense = validated_record
