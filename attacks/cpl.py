"""CPL: patterned initialisation, label inference, L2 matching with L-BFGS.

Source: Wei et al., "A Framework for Evaluating Gradient Leakage Attacks in Federated Learning" (ESORICS 2020) and the
released notebooks.
"""

from harness.attacks.attack import ATTACKS, Attack, validated_attack


@ATTACKS.register("cpl")
@validated_attack
class CPL(Attack):
    """A quarter-size random patch tiled over the image is the start; no box constraint."""

    init: str = "pattern-1/4"
