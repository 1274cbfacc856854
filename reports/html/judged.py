"""What ``harness judge`` found out of captured updates: checks of the declared defense, and estimates without a truth.

The file may come from anywhere: what does not look as ``harness judge`` writes it is named and left out.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.reports import text
from harness.reports.html import wording
from harness.results.record import Number

_KINDS = {"holds": "resilient", "violated": "leaks", "cannot tell": "inconclusive"}
# An estimate that something did not come back is no resilience.
_ESTIMATES = {"plausibly reconstructed": "leaks", "could not tell": "inconclusive", "no": "untried"}
_WORDS = {"no": "not reconstructed"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Check(_Part):
    """One named check of what was sent against what is declared."""

    name: str
    outcome: Literal["holds", "violated", "cannot tell"]
    detail: str = ""

    @property
    def kind(self) -> str:
        """The style of its outcome."""
        return _KINDS[self.outcome]


class Estimate(_Part):
    """What one attack makes of captures whose truth nobody knows, an estimate for each."""

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
        """How many captures were estimated how."""
        count = len(self.estimates)
        return ", ".join(
            f"{_WORDS.get(said, said)} {self.estimates.count(said)} of {count}"
            for said in _ESTIMATES
            if said in self.estimates
        )


class Judged(_Part):
    """The document; ``results`` are those of ``harness evaluate``, None where no truth was known."""

    valid: bool
    captures: Annotated[int, Field(ge=1)]
    images_each: Annotated[int, Field(ge=1)]
    checks: Annotated[list[Check], Field(max_length=100)]
    estimates: Annotated[list[Estimate], Field(max_length=100)]
    results: dict[str, Any] | None = None

    @property
    def violated(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "violated"]

    @property
    def fault(self) -> str:
        """Why no verdict stands, empty where it may."""
        if self.valid:
            return ""
        # The truth is held against what was sent last of all.
        reasons = [f"{check.name}? No: {check.detail}" for check in self.violated]
        return text.safe(reasons[-1] if reasons else "harness judge says so", 300)

    @property
    def headline(self) -> list[tuple[str, str]]:
        """(kind, sentence) for what the checks and the estimates say, and no more than that."""
        lines = []
        if self.violated:
            names = wording.join([text.safe(check.name, 80) for check in self.violated])
            lines.append(("leaks", f"What was sent is not what was declared; violated: {names}."))
        elif self.checks and all(check.outcome == "holds" for check in self.checks):
            checks = wording.plural(len(self.checks), "check")
            lines.append(("resilient", f"What was sent looks as declared: {checks} held."))
        for one in self.estimates:
            lines.append((one.kind, f"{text.safe(one.attack, 40)}, by an estimate without the truth: {one.said}."))
        return lines
