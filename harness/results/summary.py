"""The part of the result document that says what holds against the strongest of several attacks."""

from typing import Annotated, Literal

from pydantic import Field

from harness.results.record import Count, Facts, Record, VerdictWord


class Place(Record):
    """All that cells have in common which differ only in the attack; the fields are those of a cell."""

    dataset: str
    model: str
    defense: str
    defense_args: Facts = Field(default_factory=dict)
    surface: Literal[0, 1, 2] | None = None
    tap: str
    seeds: list[int]
    victims: Count
    batch_size: Annotated[int, Field(ge=1)] = 1
    local_steps: Annotated[int, Field(ge=1)] = 1
    update_model: Literal["first", "avg", "unroll"] = "first"
    round: Count = 0
    observations: Annotated[int, Field(ge=1)] = 1
    cohort: Facts = Field(default_factory=dict)


class AttackStanding(Record):
    """One attack's part in a summary row.

    ``cell`` is the key of its cell; ``informative`` says whether the attack works there (its positive controls held),
    ``reason`` why it does not, None where it does.
    """

    attack: str
    cell: str | None = None
    verdict: VerdictWord
    informative: bool
    reason: str | None = None


class SummaryRow(Place):
    """The verdict on a defense at one place over all ``attacks``; ``strongest`` is None where none works.

    The rule stands in :mod:`harness.scoring.strongest`.
    """

    verdict: VerdictWord
    verdict_reason: str
    strongest: str | None = None
    attacks: list[AttackStanding]
