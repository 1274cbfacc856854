"""What a run has spent, and how many rounds a budget pays for."""

from harness.defenses import Defense
from harness.errors import UsageError
from harness.layout import Layout
from harness.privacy import Statement, make_statement, without_guarantee
from harness.training.settings import TrainSettings


def statements_after(
    settings: TrainSettings,
    defense: Defense,
    layout: Layout,
    rounds: int,
    overlap: float,
    copies: int = 1,
    uncovered: str | None = None,
) -> list[Statement]:
    """The defense's statements after a number of rounds of this run.

    An example that several clients hold enters several of a round's messages; the sums a third party or another client
    sees are then not covered by a statement about one client's example. One that a client holds in several ``copies``
    enters its own steps as often, and no statement about an example covers that. ``uncovered`` says what of the model
    was computed from the private data without noise, in words; then nothing is covered.
    """
    if rounds == 0:
        return []
    made = defense.statements(settings.facts(layout, rounds))
    if uncovered:
        return [one if one.guarantee == "none" else without_guarantee(one, uncovered) for one in made]
    if copies > 1:
        why = f"a client holds an example up to {copies} times, and the noise is made for one; lower --examples"
        return [
            without_guarantee(one, why) if one.unit == "example" and one.guarantee != "none" else one for one in made
        ]
    return [
        make_statement(
            one.view, "none", f"clients share examples ({overlap:.1f} hold each one), so the sums are not covered",
            unit=one.unit, schedule=one.schedule,
        )
        if overlap > 1 and one.unit == "example" and one.view != "server" and one.guarantee != "none"
        else one
        for one in made
    ]  # fmt: skip


def claimed_after(settings: TrainSettings, defense: Defense, layout: Layout, rounds: int) -> float | None:
    """Epsilon by the paper's convention after a number of rounds; None where none is claimed."""
    claims = [one.claimed_epsilon for one in defense.statements(settings.facts(layout, rounds))]
    return next((claim for claim in claims if claim is not None), None)


def affordable_rounds(
    settings: TrainSettings, defense: Defense, layout: Layout, copies: int = 1, uncovered: str | None = None
) -> int:
    """The most rounds whose epsilon does not exceed the target; all of them without a target.

    ``valid`` counts the largest valid epsilon over the views that have one; ``copies`` and
    ``uncovered`` as above, and then none has.

    Raises:
        UsageError: the defense has no such epsilon, or the first round already exceeds the target.
    """
    target = settings.target_epsilon
    if target is None:
        return settings.rounds
    if uncovered and settings.budget == "valid":
        raise UsageError(f"there is no valid epsilon to stop at: {uncovered}; use --budget claimed, or no target")

    def spent(rounds: int) -> float:
        made = statements_after(settings, defense, layout, rounds, 1.0, copies)
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
