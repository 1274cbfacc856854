"""No defense: plain FedAvg."""

from harness.defenses.registry import DEFENSES, validated_defense
from harness.federation.defense import Defense


@DEFENSES.register("none", "non-private")
@validated_defense
class NoDefense(Defense):
    """Nothing happens; what a client computes is what everybody reads."""
