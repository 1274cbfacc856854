"""For how many iterations rows of an attack go on, learnt from those that have ended."""

import math


class Endurance:
    """Takes it that a row is as likely to end in one iteration as in any other, until all end at the cap.

    Its likeliest mean is then iterations done by all rows, those still going too, for each that ended (exponential
    times under censoring): who looked only at rows that ended would see the quickest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.spent, self._ended = 0, 0

    @property
    def known(self) -> bool:
        """Whether any row has ended before the cap; else all are expected to go on to it."""
        return self._ended > 0

    def note(self, spent: int, ended: int) -> None:
        """So many iterations were done, and so many rows ended before the cap."""
        self.spent, self._ended = self.spent + spent, self._ended + ended

    def ahead(self, done: int = 0) -> float:
        """Iterations that a row has ahead after so many, on average."""
        cap = self._most - done
        if not self._ended:
            return float(cap)
        mean = self.spent / self._ended
        return -mean * math.expm1(-cap / mean)
