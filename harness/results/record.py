"""The records that a result is made of: rates, lineups, bounds, privacy statements, and where an attack stood."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass

VerdictWord = Literal["leaks", "resilient", "inconclusive"]
LabelsWord = Literal["inferred", "known"]
TierWord = Literal["plain", "informed", "tampering"]
BLIND = "blind"
"""The control that guesses the victims without a gradient, as an attack."""
UNDEFENDED = "none"
"""The name of a place without a defense."""
TIERS: tuple[TierWord, ...] = ("plain", "informed", "tampering")
"""From who knows least to who may do most."""


def without_non_finite(value: Any) -> Any:
    """Return the value with every NaN and infinity replaced by None; tuples become lists, as in JSON."""
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


# What scoring a cell comes to, number by number: made by the scorer, written as they are.


class Summary(Record):
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


class Rate(Record):
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
    """The lineup test of :mod:`harness.scoring.lineup`; all null, with the reason, where no truth has decoys.

    ``rate``: share of truths strictly nearest in their lineup;
    ``mean_rank``: mean of (rank - 1) / (size - 1): 0 when the truth is always nearest, 0.5 by chance;
    ``p_value``: one-sided towards leaking, min(1, 2 * min(p of mean_rank, p of rate)), in (0, 1];
    ``confirmed_p_value``: of as many truths that are nearest *and* accurately reconstructed; null in documents that
    are older than this test.
    """

    rate: Number = None
    mean_rank: Number = None
    p_value: Number = None
    confirmed_p_value: Number = None
    reason: str | None = None


class Identified(Record):
    """Success of an attack that identifies true images among look-alikes of their class.

    ``rate``: share of ``n`` truths that are strictly the most probable of their lineup, with its 95% interval;
    ``chance``: what guessing would reach, the mean of 1 / size of the lineups;
    ``beyond_chance``: upper 95% bound of the share of truths that stand out, (rate - chance) / (1 - chance);
    ``mean_rank``, ``p_value``: as in :class:`Lineup`, by probability instead of distance in pixels;
    ``identifies``: whether p is below 0.001.
    """

    rate: Number = None
    n: Count = 0
    ci95: Interval = None
    chance: Number = None
    beyond_chance: Number = None
    mean_rank: Number = None
    p_value: Number = None
    identifies: bool = False
    reason: str | None = None


class LabelInference(Record):
    """Accuracy of inferred labels in [0, 1], what guessing would reach, and the p-value against it.

    ``accuracy``: mean over victims;
    ``chance``: what guessing every label at random from the class frequencies would reach on average;
    ``p_value``: chance of an accuracy this high if inferred labels had nothing to do with the victim.
    """

    accuracy: Number = None
    chance: Number = None
    p_value: Number = None
    reason: str | None = None


#: How the detail begins of a control that is not run, since the cell has nothing that its control would leave out.
OWN_CONTROL = "this cell has no defense and is its own control"


class Control(Record):
    """A control that a cell depends on, and its outcome.

    Positive controls must leak: no defense (``positive``) and a clipping defense without noise (``positive_sigma0``).
    Negative controls must not: another victim's truth (``swap``), a hundredfold noise (``noise_x100``), and a guess
    that saw no gradient (``blind``), whose strict successes are ``by_luck``, None for other controls.
    ``detail`` is a half-sentence for people, such as "the attack does not leak even undefended"; ``cells`` are the
    keys of the control cells that were run for it.
    """

    name: str
    held: bool
    detail: str = ""
    cells: list[str] = Field(default_factory=list)
    by_luck: Rate | None = None

    @property
    def kind(self) -> Literal["positive", "negative"]:
        return "positive" if self.name.startswith("positive") else "negative"

    @property
    def is_own(self) -> bool:
        """Return whether the control is the cell itself, and nothing was run for it."""
        return self.detail.startswith(OWN_CONTROL)

    @property
    def is_untested(self) -> bool:
        """Return whether it is a negative control that could not fail, as there was no lineup to test: where no victim
        has look-alikes or, for ``swap``, none shares a class with another."""
        return self.held and self.detail.startswith("lineup p = none")


# The theorem beside a verdict: how often an event happened, how often it would blindly, and the most there can be.

Event = Literal["first in its lineup", "strict image"]


class Ceiling(Record):
    """One event of a cell.

    ``measured``: how often it happened;
    ``kappa``: its probability for the best blind guess, in [0, 1]; null, with the ``reason``, where nobody knows;
    ``ceiling``: its largest probability for any attacker; null where there is no kappa, or no theorem;
    ``p_value``: chance of as many as were measured, or more, if each were as probable as the ceiling allows;
    ``says_little``: whether the ceiling is above one half.
    """

    event: Event
    measured: Rate = Rate()
    kappa: Number = None
    ceiling: Number = None
    p_value: Number = None
    says_little: bool = False
    reason: str | None = None


class Bound(Record):
    """The limit of a theorem for a cell, for any attack; without a theorem, ``reason`` says why none exists.

    ``theorem``: in words, with its figures;
    ``mu``: of Gaussian noise, the largest distance from the centre in standard deviations; null for others.
    """

    theorem: str | None = None
    mu: Number = None
    reason: str | None = None
    events: list[Ceiling] = Field(default_factory=list)


# What a client who watches would see of a server that tampers.


class Detectable(Record):
    """Distance of a tampering server's round from an honest one, in what it sends and what comes back.

    ``module``: what was put before the network, in words; null where nothing was;
    ``weights``: the largest Kolmogorov-Smirnov distance, over the network's own tensors of 100 values or more, between
    weights that were sent and those an honest server would have sent, with the ``weights_tensor``; in [0, 1];
    ``gradients``, ``gradients_tensor``: the same of the gradients that clients compute, before any defense, beside
    those of other clients in an honest round; ``gradients_honest``: what that is between honest clients;
    ``dead_units``, ``dead_units_honest``: share of rectified linear units that no example of a client's batch
    activates, as it was sent and as it would be honestly; null where there are none.
    """

    module: str | None = None
    weights: Number = None
    weights_tensor: str | None = None
    gradients: Number = None
    gradients_tensor: str | None = None
    gradients_honest: Number = None
    dead_units: Number = None
    dead_units_honest: Number = None


# What privacy is promised against one view: a row of the result document, made by the accountants.


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Statement:
    """A privacy statement for one view (third party, server, client).

    Attributes:
        claimed_epsilon: by the paper's convention (moments accountant, Mironov conversion, the paper's orders, sigma
            as printed), whether or not it holds; None where no paper claims one.
        epsilon: what holds for what ran; None where nothing does.
        mu: of Gaussian privacy, exact; None where the noise is sampled or of another law.
        told_apart: the most that any attacker tells of present units at 1% false alarms; None without a guarantee.
        unit: ``client`` or ``example``.
        conversion: the convention behind ``epsilon``.
        schedule: the noise schedule in words.
        guarantee: the tag a theorem covers for what ran; ``none`` where none does.
        notes: one plain sentence why.
        covers: whether the guarantee is about what was read at the row's tap; None without a guarantee, or a tap.
    """

    view: str
    claimed_epsilon: Number = None
    epsilon: Number = None
    delta: Number = None
    mu: Number = None
    told_apart: Number = None
    unit: str | None = None
    adjacency: str | None = None
    sampler: str | None = None
    conversion: str | None = None
    schedule: str | None = None
    guarantee: str
    notes: str
    covers: bool | None = None


# What was evaluated where: the settings that a cell has in common with those that differ only in the attack.

#: Which and how many victims were drawn; they may change between runs that are compared.
WHOM = ("seeds", "victims")


class PublicData(Record):
    """The data of an informed attacker's prior: ``size`` examples."""

    name: str
    size: Count


class Place(Record):
    """``prior`` is None where nothing was public; where a half of the dataset was, the other is attacked.

    ``shared_weights``: victims of a seed share one network, where otherwise each has its own.
    ``batch_norm``: whether running statistics travel beside updates; None where the network trains no BatchNorm.
    ``surface`` is None where only a tap is named; ``observations``: how often the adversary saw the same record.
    ``options``: those that came later and are not at their defaults; a document leaves it out where there is none. A
    cell's own file has all, such as the learning rate."""

    dataset: str
    model: str
    defense: str
    defense_args: Facts = Field(default_factory=dict)
    surface: Literal[0, 1, 2] | None = None
    tap: str
    seeds: list[int]
    shared_weights: bool = False
    victims: Count
    prior: PublicData | None = None
    batch_size: Annotated[int, Field(ge=1)] = 1
    local_steps: Annotated[int, Field(ge=1)] = 1
    update_model: Literal["first", "avg", "path", "unroll"] = "first"
    round: Count = 0
    batch_norm: Literal["sent", "hidden"] | None = None
    observations: Annotated[int, Field(ge=1)] = 1
    cohort: Facts = Field(default_factory=dict)
    options: Facts = Field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything above by its name, and every other option by its own."""
        return dict(self) | self.options

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        if not values.get("options"):
            values.pop("options", None)
        return values
