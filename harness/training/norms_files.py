"""The files of a run's norms: one per round, so that a stopped run goes on where it was."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np

from harness.defenses.fixed_noise import FixedNoise
from harness.errors import UsageError
from harness.results.atomic import write_atomic
from harness.training.settings import TrainSettings
from harness.training.watch import RoundNorms

_ARRAYS = ("messages", "apart", "updates", "examples", "steps")
_NO_PART_OF_THE_ROUND = ("device", "rounds")


class NormsFolder:
    """The norms of one run, ``norms/round_00001.npz`` and so on, each with the noise they were hidden by."""

    def __init__(self, path: Path, settings: TrainSettings) -> None:
        self._path = path / "norms"
        shared = settings.model_dump(mode="json", exclude=set(_NO_PART_OF_THE_ROUND))
        self._run = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    def write(self, number: int, norms: RoundNorms, noise: FixedNoise) -> None:
        """Writes one round, counted from 1, whole or not at all."""
        content = {name: getattr(norms, name) for name in _ARRAYS}
        content |= {"noise": np.array([noise.deviation, noise.bound]), "names": np.array([noise.place, self._run])}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **content)
        write_atomic(self._file(number), buffer.getvalue())

    def read(self, rounds: int) -> tuple[list[RoundNorms], FixedNoise]:
        """The norms of so many rounds.

        Raises:
            UsageError: one of the rounds was trained without taking notes, or with other settings.
        """
        read = [self._read(number) for number in range(1, rounds + 1)]
        if not read:
            raise UsageError("no round has been trained, so there is nothing to account for; train with --bayesian")
        return [norms for norms, _ in read], read[0][1]

    def _read(self, number: int) -> tuple[RoundNorms, FixedNoise]:
        mend = "train from the start with --bayesian and without --resume"
        try:
            with np.load(self._file(number), allow_pickle=False) as saved:
                place, run = saved["names"].tolist()
                deviation, bound = saved["noise"].tolist()
                norms = RoundNorms(*(saved[name] for name in _ARRAYS))
        except FileNotFoundError as error:
            raise UsageError(f"round {number} was trained without --bayesian; {mend}") from error
        except Exception as error:  # a damaged file fails in many ways
            raise UsageError(f"{str(self._file(number))!r} is damaged; {mend}") from error
        if run != self._run:
            raise UsageError(f"the norms of round {number} are of other settings; {mend}")
        return norms, FixedNoise(place, deviation, bound)

    def _file(self, number: int) -> Path:
        return self._path / f"round_{number:05d}.npz"
