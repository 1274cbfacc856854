"""The result document: everything a run claims, as it is written to disk and printed by ``--json``.

Numbers that cannot be had are null, with a reason beside them. A value that is not finite is such a number, so a
document is always plain JSON.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness import SCHEMA_VERSION
from harness.results.record import Count, Facts, Interval, Number, Record, VerdictWord
from harness.results.summary import SummaryRow

SuccessRule = Literal["strict", "ssim", "table3"]


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
    cells: list[str] = Field(default_factory=list)


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
    saw the same record; ``confirmed`` counts images that are strict successes and first in their lineup; ``seconds``
    is wall-clock time. A cell that is impossible has ``not_applicable_reason``, no metrics, and all its victims
    counted as not applicable.
    """

    key: str | None = None
    role: Literal["cell", "control"] = "cell"
    control: str | None = None
    dataset: str
    model: str
    defense: str
    defense_args: Facts = Field(default_factory=dict)
    attack: str
    attack_args: Facts = Field(default_factory=dict)
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
    cohort: Facts = Field(default_factory=dict)
    metrics: dict[str, MetricSummary] = Field(default_factory=dict)
    asr: dict[SuccessRule, RateSummary] = Field(default_factory=dict)
    confirmed: Count = 0
    lineup: Lineup = Lineup()
    label: LabelInference = LabelInference()
    verdict: VerdictWord = "inconclusive"
    verdict_reason: str = ""
    controls: list[ControlCheck] = Field(default_factory=list)
    outcomes: Outcomes = Outcomes()
    units: str = ""
    privacy: list[PrivacyStatement] = Field(default_factory=list)
    seconds: Number = None
    not_applicable_reason: str | None = None

    @model_validator(mode="after")
    def _controls_are_named(self) -> Self:
        if (self.role == "control") != (self.control is not None):
            raise ValueError("a control names itself in 'control', and only a control does")
        return self


class ResultDocument(Record):
    """All cells of a run, and ``summary``: the verdict over all attacks for each defense at each place.

    A run is not ``valid`` when a negative control failed; ``valid_reason`` says which.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    environment: Facts
    valid: bool = True
    valid_reason: str | None = None
    cells: list[CellResult]
    summary: list[SummaryRow] = Field(default_factory=list)
