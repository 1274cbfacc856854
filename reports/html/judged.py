"""Findings of ``harness judge`` about captured updates: checks of the declared defense, and estimates without a truth.

The file may come from anywhere: what does not look as ``harness judge`` writes it is named and left out.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.base.progress import in_words
from harness.reports import text
from harness.reports.html import wording
from harness.results.record import Number, Statement
from harness.scoring.verdict import LEAK_P

# As ``harness judge`` names what it judges beside what was asked for.
ALONE, WHO = "one step on one example", "who took part"

_KINDS = {
    "holds": "resilient", "violated": "leaks", "more than declared": "inconclusive", "cannot tell": "inconclusive",
}  # fmt: skip
# An estimate that something came back is no leak, and one that it did not no resilience.
_ESTIMATES = {"plausibly reconstructed": "plausible", "could not tell": "inconclusive", "no": "untried"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Check(_Part):
    """One named check of what was sent against what is declared."""

    name: str
    outcome: Literal["holds", "violated", "more than declared", "cannot tell"]
    detail: str = ""

    @property
    def kind(self) -> str:
        """The style of its outcome."""
        return _KINDS[self.outcome]


class Estimate(_Part):
    """Estimates of one attack on captures whose truth nobody knows, one for each."""

    attack: str
    estimates: Annotated[
        list[Literal["plausibly reconstructed", "no", "could not tell"]], Field(min_length=1, max_length=10_000)
    ]
    reason: str = ""
    left: Annotated[list[Number], Field(max_length=10_000)] | None = None
    left_shuffled: Annotated[list[Number], Field(max_length=10_000)] | None = None
    left_usually: Number = None
    labels: Annotated[list[list[int]], Field(max_length=10_000)] | None = None

    @property
    def kind(self) -> str:
        """The style of the gravest estimate."""
        return next(kind for said, kind in _ESTIMATES.items() if said in self.estimates)

    @property
    def said(self) -> str:
        """Return what it comes to over all captures, in a sentence."""
        who, captures = text.safe(self.attack, 40), wording.plural(len(self.estimates), "capture")
        if self.kind == "plausible":
            plausible = self.estimates.count("plausibly reconstructed")
            said = f"{who} plausibly reconstructed {plausible} of {captures}"
        elif self.kind == "inconclusive":
            said = f"We could not tell whether {who} reconstructs {captures}: {text.safe(self.reason, 200)}"
        else:
            said = f"{who} plausibly reconstructed none of {captures}"
        return f"{said} (an estimate, as no truth is known)."


class Declared(_Part):
    """The defense that clients are said to train under."""

    name: str


class Record(_Part):
    """Facts that the captures say of themselves."""

    model: str
    framework: str | None = None
    defense: Declared | None = None
    clients: Annotated[int, Field(ge=1)] | None = None
    clients_per_round: Annotated[int, Field(ge=1)] | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None


class Measured(_Part):
    """One line of what was measured beside the attacks that were asked for."""

    what: str
    by: str = ""
    said: str
    found: Number = None
    count: Annotated[int, Field(ge=0)] = 0
    chance: Number = None
    p_value: Number = None
    held: bool | None = None

    @property
    def kind(self) -> str:
        """The style of its sentence: that labels or members are told is no leak of images."""
        told = self.p_value is not None and self.p_value < LEAK_P
        return "inconclusive" if self.held is False or not told else "identifies"


class Examples(_Part):
    """Distinct examples that one attack brought back, with clients as the draws, in a sentence."""

    back: Annotated[int, Field(ge=0)]
    said: str


class Planned(_Part):
    """Outcome of one attack under a budget: on how many captures it ran, and what was left out."""

    attack: str
    group: str = ""
    captures: Annotated[int, Field(ge=0)]
    of: Annotated[int, Field(ge=0)] = 0
    said: str
    reason: str | None = None


class Budget(_Part):
    """The time that judging was given, and what was done with it."""

    seconds: Annotated[float, Field(gt=0)]
    attacks: Annotated[list[Planned], Field(max_length=200)]

    @property
    def asked(self) -> list[str]:
        """The attacks that were asked for; what fits of each depends on all of them."""
        return list(dict.fromkeys(one.attack for one in self.attacks if one.group not in (ALONE, WHO)))

    @property
    def said(self) -> str:
        """Return what ran of all that was asked for, and what was left out."""
        less = [text.safe(one.said, 300) for one in self.attacks if one.reason]
        running = [one for one in self.attacks if one.captures]
        part = sum(bool(one.reason) for one in running)
        whole = len(running) - part
        counts = [f"{whole} of {wording.plural(len(self.attacks), 'attack')} ran whole"]
        counts += [f"{part} with fewer iterations or captures"] if part else []
        counts += [f"{left} did not run"] if (left := len(self.attacks) - len(running)) else []
        said = f"Within a budget of {in_words(self.seconds)}, {', '.join(counts)}"
        return f"{said}: {'; '.join(less)}." if less else f"{said}."


class Judged(_Part):
    """The document; ``results`` are those of ``harness evaluate``, None where no truth was known.

    ``prior`` and ``update_model`` are as asked for, in the words of the options.
    """

    valid: bool
    captures: Annotated[int, Field(ge=1)]
    images_each: Annotated[int, Field(ge=1)]
    clients: Annotated[int, Field(ge=1)] | None = None
    examples_each: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=10_000)] = Field(default_factory=list)
    record: Record
    checks: Annotated[list[Check], Field(max_length=100)]
    estimates: Annotated[list[Estimate], Field(max_length=100)]
    results: dict[str, Any] | None = None
    prior: str = "none"
    update_model: str = "first"
    budget: Budget | None = None
    examples: Annotated[list[Examples], Field(max_length=200)] = Field(default_factory=list)
    measured: Annotated[list[Measured], Field(max_length=20)] = Field(default_factory=list)
    privacy: Annotated[list[Statement], Field(max_length=20)] = Field(default_factory=list)

    @property
    def claims(self) -> list[str]:
        """Claimed, proven and why, where a framework's filter is declared; rows of attacks say it themselves."""
        return text.claimed_and_proven(self.privacy) if self.results is None else []

    @property
    def captured(self) -> str:
        """Return what was captured, in words."""
        record = self.record
        clients, each = self.clients or self.captures, self.examples_each or [self.images_each]
        sent = f" in {self.captures} captures" if self.captures != clients else ""
        low = f"{each[0]} to " if len(each) > 1 else ""
        clients = f"{wording.plural(clients, 'client')}{sent}, {low}{wording.plural(each[-1], 'example')} each"
        named = record.defense is not None and record.defense.name != "none"
        defense = text.safe(record.defense.name, 60) if named and record.defense else "no defense"
        where = f", captured in {text.safe(record.framework, 40)}" if record.framework else ""
        return f"{clients}, training {text.safe(record.model, 60)}{where}; {defense} is declared"

    @property
    def violated(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "violated"]

    @property
    def fault(self) -> str:
        """Reason why no verdict stands; empty where it may."""
        if self.valid:
            return ""
        # The truth is held against what was sent last of all.
        reasons = [f"{check.name}? No: {check.detail}" for check in self.violated]
        return text.safe(reasons[-1] if reasons else "harness judge says so", 300)

    @property
    def works_alone(self) -> str | None:
        """The attack that brings images of clients of one step on one example back; None where none is known to."""
        return next((one.by for one in self.measured if one.what == ALONE and one.held), None)

    @property
    def headline(self) -> list[tuple[str, str]]:
        """(kind, sentence) for what the checks and the estimates say, and no more than that."""
        lines = []
        if self.violated:
            names = wording.join([text.safe(check.name, 80) for check in self.violated])
            lines.append(("leaks", f"What was sent is not what was declared; violated: {names}."))
        elif more := [check for check in self.checks if check.outcome == "more than declared"]:
            lines.append(("inconclusive", f"What was sent is noisier than declared: {text.safe(more[0].detail, 300)}."))
        elif self.checks:
            lines.append(self._looks)
        for one in self.estimates:
            lines.append((one.kind, one.said))
        lines += [(one.kind, f"{text.safe(one.said, 400)}.") for one in self.measured]
        if self.examples:
            most = max(self.examples, key=lambda one: one.back)
            lines.append(("plausible" if most.back else "inconclusive", f"{text.safe(most.said, 400)}."))
        if self.budget:
            lines.append(("untried", self.budget.said))
        return lines

    @property
    def _looks(self) -> tuple[str, str]:
        """Return what is said where no check is against what is declared: how many of them say anything."""
        checks, held = len(self.checks), sum(check.outcome == "holds" for check in self.checks)
        if held == checks:
            return "resilient", f"What was sent looks as declared: {wording.plural(checks, 'check')} held."
        if held == 0:
            return "inconclusive", "We could not tell whether what was sent is what was declared: no check applies."
        return (
            "inconclusive",
            f"No check is against what was declared; {held} of {checks} held, the others cannot tell.",
        )
