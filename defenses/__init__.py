"""Defenses: one file each, joined to the registry by a decorator."""

from harness.defenses import (  # noqa: F401  (imported to register)
    adaclip,
    ats,
    censor,
    central,
    compression,
    correlated,
    dp_local,
    dssgd,
    fed_acdp,
    fed_cdp,
    fed_sdp,
    flower,
    global_dp,
    lora,
    noise,
    none,
    nvflare,
    opacus,
    outpost,
    precode,
    pruning,
    quantile,
    secagg_ddp,
    soteria,
)
from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.clip_and_noise import ClipExamples, ClipUpdate, GaussianNoise, KeepLargest, LaplaceNoise
from harness.federation.coding import ErrorFeedback, Quantise, RoundByChance, Sign
from harness.federation.context import Cohort, RoundContext, State
from harness.federation.defense import Defense
from harness.federation.examples import ExampleGradients, LocalStep
from harness.federation.memory import Remembered
from harness.federation.operations import Custom, Operation
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Point
from harness.models.example_gradients import MaterialisedGradients

__all__ = [
    "DEFENSES",
    "ClipExamples",
    "ClipUpdate",
    "Cohort",
    "Custom",
    "Defense",
    "ErrorFeedback",
    "ExampleGradients",
    "GaussianNoise",
    "KeepLargest",
    "LaplaceNoise",
    "LocalStep",
    "MaterialisedGradients",
    "Operation",
    "Point",
    "PrivacyFacts",
    "Quantise",
    "Remembered",
    "RoundByChance",
    "RoundContext",
    "Sign",
    "State",
    "validated_defense",
]
