"""How long an attack will take, from its own first iterations."""

import time
from collections.abc import Callable

from torch import Tensor

from harness.settings.limits import forecast

Observer = Callable[[Tensor, Tensor, int, Tensor], None]
#: Iterations that are timed; the one before them also pays for what is only done once.
TIMED = 5
_MEND = "here at most; --device cuda, fewer victims or --attack analytic take less"


class Foresight:
    """Stands before an attack's observer, and tells once of an attack that will take minutes.

    Args:
        observer: gets all that comes.
        what: is attacked, in words.
        starts: of all victims together.
        iterations: of each start, at most; many stop earlier.
    """

    def __init__(self, observer: Observer, what: str, starts: int, iterations: int) -> None:
        self._observer, self._what = observer, what
        self._starts, self._iterations = starts, iterations
        self._since: float | None = None
        self._together, self._told = 0, False

    def __call__(self, victims: Tensor, restarts: Tensor, iteration: int, images: Tensor) -> None:
        self._observer(victims, restarts, iteration, images)
        if self._told:
            return
        if self._since is None:
            self._since, self._together = time.monotonic(), len(victims)
        elif iteration > TIMED:
            self._told = True
            each = (time.monotonic() - self._since) / TIMED
            forecast(each * self._iterations * self._starts / self._together, self._what, _MEND)
