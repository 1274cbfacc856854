"""One evaluated cell on its way to becoming a result."""

from dataclasses import dataclass

from harness.evaluation.attacking import AttackRecord
from harness.evaluation.identifying import IdentityScores
from harness.evaluation.observe import Scene
from harness.evaluation.scores import Scores
from harness.experiment import CellSettings


@dataclass(frozen=True)
class Scored:
    """Settings, the truth, what the attack made, and the numbers. ``seconds`` is wall-clock time.

    ``record`` is None where the attack reconstructs nothing.
    """

    settings: CellSettings
    scene: Scene
    record: AttackRecord | None
    scores: Scores | IdentityScores
    seconds: float
