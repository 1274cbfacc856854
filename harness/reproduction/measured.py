"""What a training run came to, as a table's cell."""

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
