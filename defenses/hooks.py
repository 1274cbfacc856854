"""The base of every defense, under the name that defenses outside of this package import it by."""

from harness.federation.defense import Defense, FixedNoise, LocalStep

__all__ = ["Defense", "FixedNoise", "LocalStep"]
