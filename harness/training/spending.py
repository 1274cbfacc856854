"""What a run has spent, and how many rounds a budget pays for."""

from dataclasses import dataclass

from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import Defense
from harness.privacy import Statement, what_holds
from harness.training.settings import TrainSettings


@dataclass(frozen=True)
class Holdings:
    """What the clients' data mean for a statement about one example.

    Attributes:
        holders: the most clients that hold one example; it enters as many of a round's messages.
        copies: how often at most one client holds one example.
        uncovered: what of the model, or of the data it sees, was computed from private data without noise, in words.
    """

    holders: int = 1
    copies: int = 1
    uncovered: str | None = None


def statements_after(
    settings: TrainSettings, defense: Defense, layout: Layout, rounds: int, holdings: Holdings
) -> list[Statement]:
    """The defense's statements after a number of rounds of this run."""
    if rounds == 0:
        return []
    made = defense.statements(settings.facts(layout, rounds, holdings.holders))
    return what_holds(made, holdings.copies, holdings.uncovered)


def claimed_after(settings: TrainSettings, defense: Defense, layout: Layout, rounds: int) -> float | None:
    """Epsilon by the paper's convention after a number of rounds; None where none is claimed."""
    claims = [one.claimed_epsilon for one in defense.statements(settings.facts(layout, rounds))]
    return next((claim for claim in claims if claim is not None), None)


def affordable_rounds(settings: TrainSettings, defense: Defense, layout: Layout, holdings: Holdings) -> int:
    """The most rounds whose epsilon does not exceed the target; all of them without a target.

    ``valid`` counts the largest valid epsilon over the views that have one.

    Raises:
        UsageError: the defense has no such epsilon, or the first round already exceeds the target.
    """
    target = settings.target_epsilon
    if target is None:
        return settings.rounds
    if holdings.uncovered and settings.budget == "valid":
        raise UsageError(
            f"there is no valid epsilon to stop at: {holdings.uncovered}; use --budget claimed, or no target"
        )

    def spent(rounds: int) -> float:
        made = statements_after(settings, defense, layout, rounds, holdings)
        values = [one.claimed_epsilon if settings.budget == "claimed" else one.epsilon for one in made]
        known = [value for value in values if value is not None]
        if not known:
            other = "claimed" if settings.budget == "valid" else "valid"
            raise UsageError(
                f"{settings.defense} has no {settings.budget} epsilon to stop at; use --budget {other}, or no target"
            )
        return max(known)

    if spent(1) > target:
        raise UsageError(f"the first round alone costs epsilon {spent(1):.3g}, above {target:g}; raise sigma or target")
    low, high = 1, settings.rounds
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if spent(middle) <= target else (low, middle - 1)
    return low
