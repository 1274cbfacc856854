"""Shared parts of tests of attacks and defenses, here and in packages that add their own."""

from harness.testing.attacks import assert_attack_contract, digits, digits_prior, undefended
from harness.testing.defenses import assert_defense_contract, play_taps

__all__ = ["assert_attack_contract", "assert_defense_contract", "digits", "digits_prior", "play_taps", "undefended"]
