"""The result document: everything a run claims, as it is written to disk and printed by ``--json``.

Numbers that cannot be had are null, with a reason beside them. A value that is not finite is such a number, so a
document is always plain JSON.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from harness import SCHEMA_VERSION

SuccessRule = Literal["strict", "ssim", "table3"]
VerdictWord = Literal["leaks", "resilient", "inconclusive"]


def without_non_finite(value: Any) -> Any:
    """The same value with every NaN and infinity replaced by None; tuples become lists, as in JSON."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: without_non_finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_non_finite(entry) for entry in value]
    return value


def _whole(interval: tuple[float | None, float | None] | None) -> tuple[float | None, float | None] | None:
    """None unless both ends are there: half an interval says nothing."""
    return None if interval is None or None in interval else interval


# After conversion, so that every kind of number (a numpy float32, say) is a float by then.
Number = Annotated[float | None, AfterValidator(without_non_finite)]
Interval = Annotated[tuple[Number, Number] | None, AfterValidator(_whole)]
Facts = Annotated[dict[str, JsonValue], BeforeValidator(without_non_finite)]
Count = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A part of the document: fixed once made, and nothing in it that the schema does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class MetricSummary(Record):
    """One metric over all victims: mean, sample standard deviation, median, 95% interval of the mean."""

    mean: Number = None
    std: Number = None
    median: Number = None
    ci95: Interval = None
    reason: str | None = Field(default=None, validate_default=True)

    @field_validator("reason")
    @classmethod
    def _explain_absence(cls, reason: str | None, info: ValidationInfo) -> str | None:
        return "not a finite number" if reason is None and info.data.get("mean") is None else reason


class RateSummary(Record):
    """A share of n trials in [0, 1] with its 95% interval; ``reason`` says why a rate is null."""

    rate: Number = None
    successes: Count = 0
    n: Count = 0
    ci95: Interval = None
    reason: str | None = None

    @model_validator(mode="after")
    def _successes_are_trials(self) -> Self:
        if self.successes > self.n:
            raise ValueError(f"{self.successes} successes out of {self.n} is impossible")
        return self


class Lineup(Record):
    """The lineup test: share of truths ranked first, their mean rank, and the p-value of leaking."""

    rate: Number = None
    mean_rank: Number = None
    p_value: Number = None
    reason: str | None = None


class LabelInference(Record):
    """Accuracy of inferred labels in [0, 1], what guessing would reach, and the p-value against it."""

    accuracy: Number = None
    chance: Number = None
    p_value: Number = None
    reason: str | None = None


class ControlCheck(Record):
    """Whether a control this cell depends on behaved as it must.

    ``detail`` is a half-sentence for people; ``cells`` are the keys of the control cells that were run for it.
    """

    name: str
    held: bool
    detail: str = ""
    cells: list[str] = []


class Outcomes(Record):
    """How many victims ended in which way; together they are all victims."""

    success: Count = 0
    failure: Count = 0
    diverged: Count = 0
    hopeless: Count = 0
    not_applicable: Count = 0


class PrivacyStatement(Record):
    """What privacy is promised against one view (third party, server, client), and whether the promise is valid."""

    view: str
    claimed_epsilon: Number = None
    epsilon: Number = None
    delta: Number = None
    unit: str | None = None
    adjacency: str | None = None
    sampler: str | None = None
    conversion: str | None = None
    schedule: str | None = None
    guarantee: str
    notes: str


class CellResult(Record):
    """One combination of dataset, model, defense, attack and surface, or one of its controls.

    ``key`` names the cell's files; ``control`` names the control (``positive``, ``positive_sigma0``, ``noise_x100``)
    and is None for a cell; ``surface`` is None where only a tap is named; ``observations`` is how often the adversary
    saw the same record; ``seconds`` is wall-clock time. A cell that is impossible has ``not_applicable_reason``, no
    metrics, and all its victims counted as not applicable.
    """

    key: str | None = None
    role: Literal["cell", "control"] = "cell"
    control: str | None = None
    dataset: str
    model: str
    defense: str
    defense_args: Facts = {}
    attack: str
    attack_args: Facts = {}
    surface: Literal[0, 1, 2] | None = None
    tap: str
    observation_id: str | None = None
    seeds: list[int]
    victims: Count
    batch_size: Annotated[int, Field(ge=1)] = 1
    local_steps: Annotated[int, Field(ge=1)] = 1
    update_model: Literal["first", "avg", "unroll"] = "first"
    round: Count = 0
    observations: Annotated[int, Field(ge=1)] = 1
    cohort: Facts = {}
    metrics: dict[str, MetricSummary] = {}
    asr: dict[SuccessRule, RateSummary] = {}
    lineup: Lineup = Lineup()
    label: LabelInference = LabelInference()
    verdict: VerdictWord = "inconclusive"
    verdict_reason: str = ""
    controls: list[ControlCheck] = []
    outcomes: Outcomes = Outcomes()
    units: str = ""
    privacy: list[PrivacyStatement] = []
    seconds: Number = None
    not_applicable_reason: str | None = None

    @model_validator(mode="after")
    def _controls_are_named(self) -> Self:
        if (self.role == "control") != (self.control is not None):
            raise ValueError("a control names itself in 'control', and only a control does")
        return self


class ResultDocument(Record):
    """All cells of a run. A run is not ``valid`` when a negative control failed; ``valid_reason`` says which."""

    schema_version: Literal[1] = SCHEMA_VERSION
    environment: Facts
    valid: bool = True
    valid_reason: str | None = None
    cells: list[CellResult]
