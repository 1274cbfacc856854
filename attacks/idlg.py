"""iDLG: label inference first, then L2 matching with L-BFGS from Gaussian noise.

Source: Zhao et al., "iDLG: Improved Deep Leakage from Gradients" (2020).
"""

from harness.attacks.attack import ATTACKS, Attack, validated_attack


@ATTACKS.register("idlg")
@validated_attack
class IDLG(Attack):
    """Every default of the common schema: labels inferred, images from N(0, 1), L-BFGS."""

    init: str = "gauss"
