"""The part of the result document that says what holds against the strongest of several attacks."""

from harness.results.place import Place
from harness.results.record import Record, VerdictWord


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
