"""Whether clients of somebody's own defense are left alone by each other, as every number here takes for granted."""

from collections.abc import Callable

from torch import Tensor

from harness.base.errors import UsageError
from harness.defenses import DEFENSES
from harness.experiment import CellSettings

# Of a message's length: rounding may turn a coordinate over, for which another client is not needed.
_MIXED = 0.1


def require_rows_apart(read: Callable[[slice], Tensor], victims: int, settings: CellSettings) -> None:
    """Plays the second victim's round beside the first one's and alone.

    Args:
        read: what is read of a slice of the victims, one of whom is a client.
        victims: how many there are; of one nothing is known.

    Raises:
        UsageError: it is not the same, and so a result would depend on who is attacked together.
    """
    if victims < 2 or settings.together > 1 or not DEFENSES.outside(settings.defense):
        return
    beside, alone, again = read(slice(0, 2))[1], read(slice(1, 2))[0], read(slice(1, 2))[0]
    if (alone - again).norm() > _MIXED * alone.norm():
        raise UsageError(
            f"defense {settings.defense!r} does not repeat what it did ({settings.tap}); draw noise from the context"
        )
    if (beside - alone).norm() > _MIXED * beside.norm():
        raise UsageError(
            f"defense {settings.defense!r} lets clients change each other's rows ({settings.tap}); rows of what its "
            "operations are given are clients, and each has to come out as if it were alone"
        )
