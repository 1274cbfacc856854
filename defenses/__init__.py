"""Defenses: one file each, joined to the registry by a decorator."""

from harness.defenses import fed_acdp, fed_cdp, fed_sdp, none  # noqa: F401  (imported to register)
from harness.defenses.hooks import Cohort, Defense, Guarantee, LocalStep, PerExample, RoundContext
from harness.defenses.registry import DEFENSES, validated_defense

__all__ = [
    "DEFENSES",
    "Cohort",
    "Defense",
    "Guarantee",
    "LocalStep",
    "PerExample",
    "RoundContext",
    "validated_defense",
]
