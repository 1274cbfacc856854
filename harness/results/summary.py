"""The part of the result document that says what holds against the strongest of several attacks."""

from pydantic import Field

from harness.results.place import Place
from harness.results.record import Record, TierWord, VerdictWord
from harness.results.withstood import was_withstood


class AttackStanding(Record):
    """One attack's part in a summary row.

    ``cell`` is the key of its cell; ``informative`` says whether the attack works there (its positive controls held),
    ``reason`` why it does not, None where it does; ``identifies`` is None for an attack that reconstructs;
    ``flags`` are those of its cell; ``told``: whether it is the second run of an attack, with labels known.
    """

    attack: str
    tier: TierWord = "plain"
    cell: str | None = None
    verdict: VerdictWord
    informative: bool
    reason: str | None = None
    identifies: bool | None = None
    flags: list[str] = Field(default_factory=list)
    told: bool = False

    @property
    def was_withstood(self) -> bool:
        """See :func:`harness.results.withstood.was_withstood`."""
        return was_withstood(self.verdict, self.informative, self.identifies, bool(self.flags))


class SummaryRow(Place):
    """The verdict on a defense at one place over all ``attacks``; ``strongest`` is None where none works.

    ``headline`` says in a few words who was withstood, empty in older documents; ``tier`` is the highest of the attacks
    that were possible; ``suite`` names the suite that was tried, with its version, None where attacks were named
    themselves; ``identifies`` says whether an attack that reconstructs nothing tells the truth among look-alikes, None
    where none was tried. The rule stands in :mod:`harness.scoring.strongest`.
    """

    verdict: VerdictWord
    verdict_reason: str
    headline: str = ""
    strongest: str | None = None
    tier: TierWord = "plain"
    suite: str | None = None
    identifies: bool | None = None
    attacks: list[AttackStanding]

    @property
    def shown(self) -> VerdictWord:
        """The verdict that a page shows: older rows were called resilient where an attack identifies, or where none
        that was fit was withstood."""
        fit = not self.identifies and any(one.was_withstood for one in self.attacks)
        return "inconclusive" if self.verdict == "resilient" and not fit else self.verdict
