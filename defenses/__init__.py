"""Defenses: one file each, joined to the registry by a decorator."""

from harness.defenses import (  # noqa: F401  (imported to register)
    adaclip,
    dp_local,
    dssgd,
    fed_acdp,
    fed_cdp,
    fed_sdp,
    global_dp,
    noise,
    none,
    pruning,
    quantile,
    secagg_ddp,
)
from harness.defenses.context import Cohort, RoundContext, State
from harness.defenses.hooks import Defense, LocalStep
from harness.defenses.per_example import ExampleGradients, PerExample
from harness.defenses.privacy_facts import PrivacyFacts
from harness.defenses.registry import DEFENSES, validated_defense

__all__ = [
    "DEFENSES",
    "Cohort",
    "Defense",
    "ExampleGradients",
    "LocalStep",
    "PerExample",
    "PrivacyFacts",
    "RoundContext",
    "State",
    "validated_defense",
]
