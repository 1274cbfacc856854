"""One attacked image as a line of ``victims.jsonl``, and the stored form of a finished cell."""

from typing import Literal

from pydantic import ConfigDict, Field

from harness.results.record import Count, Facts, Number, Record
from harness.results.schema import CellResult

Outcome = Literal["success", "identified", "failure", "diverged", "hopeless", "not_applicable"]


class VictimRecord(Record):
    """The result of one image.

    ``cell`` is the cell's key. ``victim`` numbers the attacked clients of a seed and ``image`` the images of a
    client's batch; ``dataset_index`` is the image's place in the split. ``tau`` is the first outer iteration that
    meets the strict rule, or the cap; ``lineup_rank``, by nearness or by an attack's own probabilities, counts from 1
    and may lie between ranks where distances tie. Table rows have ``continuous_rmse`` (in standard deviations of the
    columns) and ``categorical_accuracy``; a metric that is registered in :mod:`harness.scoring.metric` and not named
    here comes last.
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
