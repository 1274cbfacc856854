"""What one of several processes attacks of an observation, and what becomes of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.attacks import ATTACKS, Attack, Reconstruction, run_attack
from harness.evaluation.recorder import AttackRecorder
from harness.experiment import CellSettings
from harness.observation import Observation
from harness.own_sources import own_sources
from harness.settings.limits import peak_memory


class Made(NamedTuple):
    """What became of a share, and what that took of another process: its processor's seconds, and bytes at the peak."""

    reconstruction: Reconstruction
    recorder: AttackRecorder | None
    seconds: float = 0.0
    peak: int = 0


@dataclass(frozen=True)
class Code:
    """What attacks on a network load of a user's own files: digests, by attack."""

    model: str
    sources: dict[str, dict[str, str]]

    @classmethod
    def of(cls, cells: Sequence[CellSettings]) -> "Code":
        """As this process has loaded it for cells of one network."""
        model = cells[0].model
        return cls(model, {cell.attack: _sources(model, cell.attack) for cell in cells})

    @property
    def is_here(self) -> bool:
        """Whether this process has loaded the same."""
        return all(_sources(self.model, attack) == known for attack, known in self.sources.items())


def _sources(model: str, attack: str) -> dict[str, str]:
    return own_sources(model, "", (ATTACKS, attack))


@dataclass(frozen=True)
class Share:
    """What one process attacks of an observation, so many rows at a time, and which code is to do it."""

    attack: Attack
    observation: Observation
    chunk: int
    recorder: AttackRecorder | None
    code: Code | None

    def made_elsewhere(self) -> Made | None:
        """None where that process has loaded other code, since somebody changed it."""
        return self.made() if self.code is None or self.code.is_here else None

    def made(self) -> Made:
        began = time.process_time()
        reconstruction = run_attack(self.attack, self.observation, self.chunk, self.recorder)
        return Made(reconstruction, self.recorder, time.process_time() - began, peak_memory())
