"""Taps and observations, under the name that attacks and defenses outside of this package import them by."""

from harness.federation.taps import SURFACES, TAPS_AFTER_STEP, Tap, check_tap
from harness.observation import Clipping, Observation, UpdateModel

__all__ = ["SURFACES", "TAPS_AFTER_STEP", "Clipping", "Observation", "Tap", "UpdateModel", "check_tap"]
