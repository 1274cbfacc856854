"""What a training run came to, as a table's cell."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """What training came to.

    Attributes:
        accuracy: on the test part, at the end or after the share of rounds asked for; 0 where training diverged.
        chance: whether it needs no training. curve: accuracy by round, where measured. rounds: planned.
    """

    accuracy: float
    chance: bool
    curve: dict[int, float]
    rounds: int

    def __str__(self) -> str:
        if not self.curve:
            return "diverged"
        return f"{self.accuracy:.3f}" + (" chance" if self.chance else "")


@dataclass(frozen=True)
class SeededRuns:
    """Accuracies of runs that differ in their seed only; None for one that diverged."""

    values: tuple[float | None, ...]
    chance: float

    @property
    def mean(self) -> float:
        """Mean over the runs, one that diverged counting as 0."""
        return statistics.fmean(value or 0.0 for value in self.values)

    def __str__(self) -> str:
        spread = f" ± {statistics.stdev(value or 0.0 for value in self.values):.3f}" if len(self.values) > 1 else ""
        diverged = sum(value is None for value in self.values)
        note = f" ({diverged} diverged)" if diverged else (" chance" if self.mean <= self.chance else "")
        return f"{self.mean:.3f}{spread}{note}"

    def measured(self, rounds: int) -> Measured:
        """As one number, for orders."""
        return Measured(self.mean, self.mean <= self.chance, {rounds: self.mean}, rounds)
