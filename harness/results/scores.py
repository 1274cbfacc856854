"""What scoring a cell comes to, number by number: made by the scorer, written as they are."""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from harness.results.record import Count, Interval, Number, Record


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
