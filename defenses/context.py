"""What hooks are handed, under the name that defenses outside of this package import it by."""

from harness.federation.context import Cohort, RoundContext, State

__all__ = ["Cohort", "RoundContext", "State"]
