"""A row of a public board as a file of its own, with everything that makes it again."""

import hashlib
import json
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.base.version import SCHEMA_VERSION
from harness.results.record import Count, Facts, Number, Record, Statement
from harness.results.schema import CellResult, SummaryRow

Share = Annotated[float, Field(ge=0, le=1)]
#: What a card is told by; a changed one is another kind of file.
KIND = "harness card"


class Reported(Record):
    """Statement that a paper prints of such a place: whether the defense ``resists``, on which ``data``."""

    source: str
    data: str
    resists: Literal["Y", "N"]


class MeasuredVictims(Record):
    """Victims by their names, with what they are compared by (:class:`harness.gate.Victim`)."""

    names: list[str] = Field(default_factory=list)
    ranks: list[Share | None] = Field(default_factory=list)
    rmses: list[Number] = Field(default_factory=list)
    successes: list[Share] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len({len(self.names), len(self.ranks), len(self.rmses), len(self.successes)}) > 1:
            raise ValueError("names, ranks, rmses and successes differ in number")
        if None in self.rmses:
            raise ValueError("an RMSE is no number")
        return self


class CardCell(Record):
    """One attack: the settings that make its cell, its result (no seconds, no LPIPS), and its victims' numbers."""

    settings: Facts
    result: CellResult
    victims: MeasuredVictims


class CardTraining(Record):
    """A training of the very federation: its settings, and what they came to."""

    settings: Facts
    accuracy: Share | None = None
    rounds: Count
    test_examples: Count
    privacy: list[Statement]


class Card(Record):
    """One defense at one place.

    ``status``: ``evaluated`` here, or ``unreliable``, with the ``reason``: a run that must not be used. ``reported``:
    what its paper prints, null where no figure is held. ``environment``: versions, machine, processor, device and
    threads of the run. ``training``: null where no run of that very federation was given. ``statement``: of the
    smallest epsilon that covers what is read there, by the training where there is one; null where none does.
    ``hash``: of all the rest.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["harness card"] = KIND
    status: Literal["evaluated", "unreliable"] = "evaluated"
    reason: str | None = None
    reported: Reported | None = None
    environment: Facts
    command: str
    row: SummaryRow
    cells: list[CardCell] = Field(min_length=1)
    training: CardTraining | None = None
    statement: Statement | None = None
    hash: str = ""

    @field_validator("environment")
    @classmethod
    def _names_a_machine(cls, said: Facts) -> Facts:
        """Versions and machines are words, where they are known."""
        versions = said.get("versions")
        words = [said.get(name) for name in ("machine", "processor", "device")]
        if not isinstance(versions, dict) or not all(
            isinstance(one, str | None) for one in [*words, *versions.values()]
        ):
            raise ValueError("environment names versions, a machine, a processor and a device in words")
        return said

    def digest(self) -> str:
        """SHA-256 of everything else, whatever the order of its fields."""
        plain = self.model_dump(mode="json", exclude={"hash"})
        content = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(content.encode()).hexdigest()

    def sealed(self) -> Self:
        """Return the card with its hash."""
        return self.model_copy(update={"hash": self.digest()})

    @property
    def name(self) -> str:
        """Return what its files are called: the beginning of its hash."""
        return self.digest()[:20]

    def content(self) -> bytes:
        """The file."""
        return self.model_dump_json(indent=1).encode() + b"\n"
