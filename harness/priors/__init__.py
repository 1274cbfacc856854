"""What an attacker knows of data of the same kind, from public examples that no victim holds."""

from harness.priors.fit import fit_prior
from harness.priors.gaussian import Prior

__all__ = ["Prior", "fit_prior"]
