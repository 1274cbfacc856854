"""The registry of defenses, and how a defense is declared."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as validated

from harness.defenses.hooks import Defense
from harness.defenses.stack import Stack
from harness.registry import Registry

DEFENSES: Registry[type[Defense]] = Registry("defense", "harness.defenses", combine=Stack.of)

validated_defense = validated(frozen=True, config=ConfigDict(extra="forbid"))
