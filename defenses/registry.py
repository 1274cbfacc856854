"""The registry of defenses, and how a defense is declared."""

from typing import TypeVar, cast, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated

from harness.base.registry import Registry
from harness.defenses.stack import Stack
from harness.federation.defense import Defense

T = TypeVar("T")

DEFENSES: Registry[type[Defense]] = Registry("defense", "harness.defenses", combine=Stack.of)


@dataclass_transform(frozen_default=True)
def validated_defense(kind: type[T]) -> type[T]:
    """The class as a frozen record whose settings are validated."""
    return cast(type[T], validated(frozen=True, config=ConfigDict(extra="forbid"))(kind))
