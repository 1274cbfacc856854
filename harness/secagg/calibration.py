"""How much noise each client adds so that the sum has enough, whoever colludes or drops out."""

import math

from harness.base.errors import UsageError


def local_noise(total: float, clients: int, colluders: int = 0, dropouts: int = 0) -> float:
    """The noise multiplier of each client: total / sqrt(N - colluders - dropouts).

    Colluders can subtract their own noise from the sum, and who drops out never adds any; the noise of the others
    alone must reach the total (docs/defenses.md). The more survive, the more noise there is.

    Args:
        total: noise multiplier of the sum: its standard deviation in units of the clipping bound.

    Raises:
        UsageError: nobody's noise can be relied on.
    """
    reliable = clients - colluders - dropouts
    if min(colluders, dropouts) < 0 or reliable < 1:
        raise UsageError(
            f"with {colluders} colluders and {dropouts} dropouts among {clients} clients nobody's noise is left; "
            "expect fewer of them or take more clients"
        )
    return total / math.sqrt(reliable)
