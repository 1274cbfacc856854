"""The result document: everything a run claims, as it is written to disk and printed by ``--json``.

Numbers that cannot be had are null, with a reason beside them. A value that is not finite is such a number, so a
document is always plain JSON.
"""

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from harness.base.kinds import Kind, kind_of
from harness.base.version import SCHEMA_VERSION
from harness.results.record import (
    Bound,
    Control,
    Count,
    Detectable,
    Facts,
    Identified,
    LabelInference,
    LabelsWord,
    Lineup,
    Number,
    Place,
    Rate,
    Record,
    Statement,
    Summary,
    TierWord,
    VerdictWord,
)

#: How the reason of a member of a suite begins that did not run, since its place leaks to the member named behind it.
SETTLED = "skipped: settled by "

# Which attacks a defense may be said to have withstood.


def was_withstood(verdict: VerdictWord, works: bool, identifies: bool | None, flagged: bool) -> bool:
    """Return whether an attack that works and was fit to find something found nothing.

    Args:
        verdict: of its cell.
        works: whether its positive controls held.
        identifies: None for an attack that reconstructs. One that does not has to show that it identifies nobody: the
            verdict over all attacks rests on those that reconstruct, and leaves open what it could not tell.
        flagged: whether it was unfit there.
    """
    if not works or flagged or identifies:
        return False
    return verdict == "resilient" if identifies is not None else verdict != "leaks"


# The part of the result document that says what holds against the strongest of several attacks.


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
        """See :func:`was_withstood`."""
        return was_withstood(self.verdict, self.informative, self.identifies, bool(self.flags))

    @property
    def skipped(self) -> bool:
        """Return whether it did not run, since its place was settled before."""
        return (self.reason or "").startswith(SETTLED)


class SummaryRow(Place):
    """The verdict on a defense at one place over all ``attacks``; ``strongest`` is None where none works.

    ``headline`` says in a few words who was withstood, empty in older documents; ``tier`` is the highest of the attacks
    that were possible; ``suite`` names the suite that was tried, with its version, None where attacks were named
    themselves; ``identifies`` says whether an attack that reconstructs nothing tells the truth among look-alikes, None
    where none was tried. ``rounds_tried`` are the numbers of rounds seen (``--rounds-seen``) of all rows that differ in
    nothing else, empty where that is one alone; ``leaks_after`` is the least of them whose row leaks, None for none.
    The rule stands in :mod:`harness.scoring.strongest`.
    """

    verdict: VerdictWord
    verdict_reason: str
    headline: str = ""
    strongest: str | None = None
    tier: TierWord = "plain"
    suite: str | None = None
    identifies: bool | None = None
    rounds_tried: list[int] = Field(default_factory=list)
    leaks_after: int | None = None
    attacks: list[AttackStanding]

    @property
    def shown(self) -> VerdictWord:
        """The verdict that a page shows: older rows were called resilient where an attack identifies, or where none
        that was fit was withstood."""
        fit = not self.identifies and any(one.was_withstood for one in self.attacks)
        return "inconclusive" if self.verdict == "resilient" and not fit else self.verdict


SuccessRule = Literal["strict", "ssim", "table3"]


class Outcomes(Record):
    """Numbers of victims by how their attack ended; together they are all victims.

    ``identified`` counts those whose image was the most probable of its lineup, by an attack that reconstructs nothing.
    """

    success: Count = 0
    identified: Count = 0
    failure: Count = 0
    diverged: Count = 0
    hopeless: Count = 0
    not_applicable: Count = 0


# A cell's name comes before its place, and the attack in the midst of it.
_FIRST = (
    "key", "role", "control", "dataset", "model", "defense", "defense_args", "attack", "attack_args", "tier", "suite",
    "surface", "tap", "observation_id",
)  # fmt: skip


class CellResult(Place):
    """One combination of dataset, model, defense, attack and surface, or one of its controls.

    ``key`` names the cell's files; ``control`` names the control (``positive``, ``positive_sigma0``, ``noise_x100``,
    ``blind``) and is None for a cell; ``tier`` says what the attacker knows of the defense; ``suite`` names
    the suite that it was tried for, with its version, None where it was named itself; ``labels``: whether the attacker
    infers them or is told; ``several``: whether it is fit where several examples lie behind one observation;
    ``examples``: how many lie there, None in older documents; ``told``: the key of the same cell with labels known,
    which a suite runs where inferred ones are at chance; ``noise`` is the law of the
    noise that the defense declares on what is read there, None where there is none; ``confirmed`` counts images that
    are strict successes and first in their lineup; ``identified`` is of attacks that reconstruct nothing, None for
    others; ``warnings`` are sentences on what contradicts what was declared, ``flags``
    sentences on why the attack was not fit to find anything there; ``bound`` is the theorem beside all that,
    None in documents that are older than it; ``detectable``: what clients could see of a server that tampers, None for
    others; ``seconds`` is wall-clock time. A cell that is impossible has ``not_applicable_reason``, no metrics, and all
    its victims counted as not applicable; so has a member of a suite that was skipped, whose reason begins with
    :data:`SETTLED`.
    """

    key: str | None = None
    role: Literal["cell", "control"] = "cell"
    control: str | None = None
    attack: str
    attack_args: Facts = Field(default_factory=dict)
    tier: TierWord = "plain"
    suite: str | None = None
    labels: LabelsWord = "inferred"
    several: bool = False
    examples: Count | None = None
    noise: str | None = None
    observation_id: str | None = None
    metrics: dict[str, Summary] = Field(default_factory=dict)
    asr: dict[SuccessRule, Rate] = Field(default_factory=dict)
    confirmed: Count = 0
    lineup: Lineup = Lineup()
    identified: Identified | None = None
    label: LabelInference = LabelInference()
    verdict: VerdictWord = "inconclusive"
    verdict_reason: str = ""
    warnings: list[str] = Field(default_factory=list)
    flags: list[str] = Field(default_factory=list)
    controls: list[Control] = Field(default_factory=list)
    outcomes: Outcomes = Outcomes()
    bound: Bound | None = None
    detectable: Detectable | None = None
    told: str | None = None
    units: str = ""
    privacy: list[Statement] = Field(default_factory=list)
    seconds: Number = None
    not_applicable_reason: str | None = None

    @model_validator(mode="after")
    def _controls_are_named(self) -> Self:
        if (self.role == "control") != (self.control is not None):
            raise ValueError("a control names itself in 'control', and only a control does")
        return self

    @property
    def succeeds(self) -> bool:
        """Return whether the attack shows what it is after: that it leaks, or that it identifies."""
        return self.verdict == "leaks" if self.identified is None else self.identified.identifies

    @property
    def settled_by(self) -> str | None:
        """Return the member of the suite that settled the place before this one; None of a cell that was tried."""
        reason = self.not_applicable_reason or ""
        return reason.removeprefix(SETTLED) if reason.startswith(SETTLED) else None

    @property
    def hidden(self) -> int:
        """Examples behind one observation; of an older document, as many as its settings name."""
        return self.examples or self.batch_size * self.local_steps

    @property
    def verdict_alone(self) -> VerdictWord:
        """Return the claim of this cell by itself: no resilience if the attack was unfit or an observation has several
        examples, of which the verdict over all attacks speaks."""
        return "inconclusive" if self.verdict == "resilient" and (self.flags or self.hidden > 1) else self.verdict

    @property
    def needed(self) -> list[str]:
        """Keys of the cells that this one rests on: with labels known, and its controls."""
        return [*([self.told] if self.told else []), *(key for check in self.controls for key in check.cells)]

    @property
    def tested_p(self) -> float | None:
        """The p-value of truths against look-alikes, by reconstructions or by the attack's own probabilities."""
        return self.lineup.p_value if self.identified is None else self.identified.p_value

    @property
    def kind(self) -> Kind:
        """Return the words for its examples."""
        return kind_of(self.metrics)

    @property
    def kappa(self) -> Rate | None:
        """Return the strict success rate of a guess without a gradient on the same victims; None without one."""
        return next((check.by_luck for check in self.controls if check.by_luck), None)

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values = dump(self)
        if not values.get("options"):
            values.pop("options", None)
        return {name: values[name] for name in _FIRST if name in values} | values


class ResultDocument(Record):
    """All cells of a run, and ``summary``: the verdict over all attacks for each defense at each place.

    A run is not ``valid`` when a negative control failed, a theorem was contradicted or it is not ``complete``;
    ``valid_reason`` says which. ``planned`` is the number of cells that it consists of once it is complete, None in
    older documents.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    environment: Facts
    valid: bool = True
    valid_reason: str | None = None
    complete: bool = True
    planned: Count | None = None
    cells: list[CellResult]
    summary: list[SummaryRow] = Field(default_factory=list)

    @model_validator(mode="after")
    def _is_whole_if_valid(self) -> Self:
        if self.valid and not self.complete:
            raise ValueError("a run cannot be valid before it is complete")
        return self


# One attacked image as a line of `victims.jsonl`, and the stored form of a finished cell.

Outcome = Literal["success", "identified", "failure", "diverged", "hopeless", "not_applicable"]


class VictimRecord(Record):
    """The result of one image.

    ``cell`` is the cell's key. ``victim`` numbers the attacked clients of a seed and ``image`` the images of a client's
    batch; ``dataset_index`` is the image's place among those that victims are drawn from, the private half of the
    split. ``tau`` is the first outer iteration that meets the strict rule, or the cap; ``lineup_rank``, by nearness or
    by an attack's own probabilities, counts from 1 and may lie between ranks where distances tie. Table rows have
    ``continuous_rmse`` (in standard deviations of the columns) and ``categorical_accuracy``; a metric that is
    registered in :mod:`harness.scoring.metrics` and not named here comes last.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number] = Field(init=False)

    cell: str
    role: Literal["cell", "control"] = "cell"
    dataset: str
    defense: str
    attack: str
    tap: str
    seed: int
    victim: Count
    image: Count = 0
    dataset_index: int | None = None
    label: int | None = None
    inferred_label: int | None = None
    outcome: Outcome
    rmse: Number = None
    rmse_raw: Number = None
    psnr: Number = None
    ssim: Number = None
    lpips: Number = None
    continuous_rmse: Number = None
    categorical_accuracy: Number = None
    lineup_rank: Number = None
    lineup_size: int | None = None
    tau: Number = None
    steps_taken: Number = None
    gradient_evaluations: Number = None
    loss: Number = None
    initial_loss: Number = None


class StoredCell(Record):
    """A finished cell as ``--resume`` finds it: the settings that made it, its result and its victims."""

    schema_version: int
    settings: Facts
    cell: CellResult
    victims: list[VictimRecord]

    @property
    def is_impossible(self) -> bool:
        """Return whether its settings do not go together, or lack something."""
        return self.cell.not_applicable_reason is not None
