"""What one of several processes attacks of an observation, and what becomes of it."""

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.attacks import ATTACKS, Attack, Reconstruction, run_attack
from harness.base.limits import peak_memory
from harness.evaluation.recorder import AttackRecorder
from harness.experiment import CellSettings
from harness.observation import Observation
from harness.own_sources import digest_of_file, own_files


class Made(NamedTuple):
    """What became of a share, and what that took of another process: its processor's seconds, and bytes at the peak."""

    reconstruction: Reconstruction
    recorder: AttackRecorder | None
    seconds: float = 0.0
    peak: int = 0


@dataclass(frozen=True)
class Code:
    """The user's own files that attacks on a network were loaded from, with the digests they had."""

    files: dict[Path, str | None]

    @classmethod
    def of(cls, cells: Sequence[CellSettings]) -> "Code":
        """As this process has loaded it for cells of one network."""
        return cls(own_files(cells[0].model, *((ATTACKS, cell.attack) for cell in cells)) if cells else {})

    @property
    def is_unchanged(self) -> bool:
        """Whether who loads it now loads the same."""
        return all(digest_of_file(file) == known for file, known in self.files.items())


@dataclass(frozen=True)
class Share:
    """What one process attacks of an observation, so many rows at a time, and which code is to do it."""

    attack: Attack
    observation: Observation
    chunk: int
    recorder: AttackRecorder | None
    code: Code

    def made(self) -> Made:
        began = time.process_time()
        reconstruction = run_attack(self.attack, self.observation, self.chunk, self.recorder)
        return Made(reconstruction, self.recorder, time.process_time() - began, peak_memory())


def made_elsewhere(sent: bytes) -> Made | None:
    """What becomes of a share that another process of this run has pickled; None where this one may have loaded other
    code for it, since somebody changed it."""
    share: Share = pickle.loads(sent)
    return share.made() if share.code.is_unchanged else None
