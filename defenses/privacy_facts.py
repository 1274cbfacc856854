"""What statements depend on, under the name that defenses outside of this package import it by."""

from harness.federation.privacy_facts import PrivacyFacts

__all__ = ["PrivacyFacts"]
