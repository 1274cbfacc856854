"""Attacks: one file each, joined to the registry by a decorator."""

from harness.attacks import (  # noqa: F401  (imported to register)
    analytic,
    blind,
    cpl,
    decode,
    dlg,
    gradinversion,
    identify,
    imprint,
    intervals,
    inverting_gradients,
    learned,
    levels,
    map,
    membership,
    patches,
    rows,
    scale_mia,
    slope,
    span,
    spear,
    token_rows,
    trap_weights,
)
from harness.attacks.attack import Attack, Dummy, reconstructing
from harness.attacks.attacker import ATTACKS, Attacker, Identifier, validated_attack
from harness.attacks.engine import Reconstruction, run_attack
from harness.attacks.reference import run_reference
from harness.attacks.suites import SUITES, expanded, members

__all__ = [
    "ATTACKS",
    "SUITES",
    "Attack",
    "Attacker",
    "Dummy",
    "Identifier",
    "Reconstruction",
    "expanded",
    "members",
    "reconstructing",
    "run_attack",
    "run_reference",
    "validated_attack",
]
