"""Results of a frontier: what each level of noise costs in accuracy, what it proves, and what still leaks."""

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.base.version import SCHEMA_VERSION
from harness.results.record import Count, Facts, Number, Rate, Record, Statement, VerdictWord


class FrontierPoint(Record):
    """A defense at one level of noise, trained once and attacked at one place.

    ``setting`` and ``level``: what the noise is set by and how much it is; both None without a defense.
    ``accuracy``: of the trained run on ``test_examples``; null where it diverged.
    ``epsilon``: the smallest that is proven for this very run and covers what is read at ``tap``, whose ``unit`` it
    protects, and ``told_apart`` the most of present units that any attacker tells at 1% false alarms; null, with the
    ``epsilon_reason``, where none does. ``claimed_epsilon``: what the defense claims there.
    ``stated``: of a framework's filter, the whole statement about what is read at ``tap``.
    ``verdict``, ``headline``: over all attacks; ``success``: of the attack that brings most back, null where none was
    possible. ``ceiling``: the most that any attacker can bring back; null, with the ``ceiling_reason``, without one.
    """

    dataset: str
    model: str
    defense: str
    defense_args: Facts = Field(default_factory=dict)
    setting: str | None = None
    level: Number = None
    tap: str
    surface: Literal[0, 1, 2] | None = None
    attacked: Literal["initial", "trained"] = "initial"
    accuracy: Number = None
    test_examples: Count = 0
    training: str | None = None
    epsilon: Number = None
    told_apart: Number = None
    epsilon_reason: str = ""
    claimed_epsilon: Number = None
    delta: Number = None
    unit: str | None = None
    guarantee: str = "none"
    stated: Statement | None = None
    verdict: VerdictWord
    verdict_reason: str = ""
    headline: str = ""
    strongest: str | None = None
    identifies: bool | None = None
    success: Rate = Rate()
    ceiling: Number = None
    ceiling_reason: str = ""

    @property
    def shown(self) -> VerdictWord:
        """The verdict that is shown: older points were called resilient where an attack identifies."""
        return "inconclusive" if self.verdict == "resilient" and self.identifies else self.verdict

    @model_validator(mode="after")
    def _noise_is_named(self) -> Self:
        if (self.setting is None) != (self.level is None):
            raise ValueError("a level of noise names its setting, and only a level does")
        return self


class FrontierDocument(Record):
    """All points, and for each dataset and place what the best one is, of each unit of epsilon, in ``answers``.

    ``best`` holds the places of the best points in ``points``, one per answer; null where none was found.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["frontier"] = "frontier"
    environment: Facts
    settings: Facts
    valid: bool = True
    valid_reason: str | None = None
    points: list[FrontierPoint]
    answers: list[str]
    best: list[Count | None]
    seconds: Number = None
