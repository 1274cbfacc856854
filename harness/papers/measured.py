"""Result of training, as a table's cell; and whether a method stands where the paper has it among the others."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """Result of a training.

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
        """Return the mean of the runs as one number, for orders."""
        return Measured(self.mean, self.mean <= self.chance, {rounds: self.mean}, rounds)


NOT_AT_HAND, CHANCE, AGREES, DIFFERS = "not at hand", "chance", "agrees", "differs"


def orders(paper: Mapping[str, float], ours: Mapping[str, Measured | None]) -> dict[str, str]:
    """A verdict per method of one group (same data, same federation).

    ``agrees``: above or below every other measured method as printed; equal ones contradict nothing. ``chance``: the
    cell learned nothing, so its place among others that did not either says nothing.
    """
    return {method: _order(method, paper, ours) for method in ours}


def _order(method: str, paper: Mapping[str, float], ours: Mapping[str, Measured | None]) -> str:
    mine = ours[method]
    if mine is None:
        return NOT_AT_HAND
    if mine.chance:
        return CHANCE
    others = [(name, other) for name, other in ours.items() if other is not None]
    fits = all((paper[method] - paper[name]) * (mine.accuracy - other.accuracy) >= 0 for name, other in others)
    return AGREES if fits else DIFFERS


def below_non_private(title: str, ours: Mapping[str, Measured | None]) -> str:
    """One line that says whether the non-private run is above all others of its group."""
    known = {name: made for name, made in ours.items() if made is not None}
    undefended = known.pop("non-private", None)
    if undefended is None or not known:
        return f"{title}: not at hand"
    above = [name for name, made in known.items() if made.accuracy >= undefended.accuracy]
    return f"{title}: non-private ({undefended}) is " + (
        f"not above {', '.join(above)}" if above else "above every row with a defense"
    )
