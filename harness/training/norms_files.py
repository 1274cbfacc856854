"""The files of a run's norms: one per round, so that a stopped run goes on where it was."""

import hashlib
import io
import json
from pathlib import Path
from typing import get_args

import numpy as np

from harness.base.errors import UsageError
from harness.federation.defense import FixedNoise, NoisePlace
from harness.results.atomic import write_atomic
from harness.results.files import Absent, read_bytes
from harness.results.stored import Damaged, parse_arrays
from harness.training.norms_watch import RoundNorms
from harness.training.settings import TrainSettings

_DIMENSIONS = {"messages": 1, "apart": 1, "updates": 1, "examples": 3, "steps": 2}
_NO_PART_OF_THE_ROUND = ("device", "rounds")


class NormsFolder:
    """The norms of one run, ``norms/round_00001.npz`` and so on, each with the noise they were hidden by."""

    def __init__(self, path: Path, settings: TrainSettings) -> None:
        self._path = path / "norms"
        shared = settings.model_dump(mode="json", exclude=set(_NO_PART_OF_THE_ROUND))
        self._run = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()

    def write(self, number: int, norms: RoundNorms, noise: FixedNoise) -> None:
        """Writes one round, counted from 1, whole or not at all."""
        content = {name: getattr(norms, name) for name in _DIMENSIONS}
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
        path = self._file(number)
        try:
            saved = parse_arrays(read_bytes(path), (*_DIMENSIONS, "noise", "names"))
            if problem := _problem(saved):
                raise Damaged(f"is damaged: {problem}")
        except Absent as error:
            raise UsageError(f"round {number} was trained without --bayesian; {mend}") from error
        except Damaged as problem:
            raise UsageError(f"{str(path)!r} {problem}; {mend}") from problem
        place, run = saved["names"].tolist()
        if run != self._run:
            raise UsageError(f"the norms of round {number} are of other settings; {mend}")
        return RoundNorms(*(saved[name] for name in _DIMENSIONS)), FixedNoise(place, *saved["noise"].tolist())

    def _file(self, number: int) -> Path:
        return self._path / f"round_{number:05d}.npz"


def _problem(saved: dict[str, np.ndarray]) -> str | None:
    """What in a round's arrays no run wrote; None where nothing is wrong."""
    noise, names = saved["noise"], saved["names"]
    if noise.shape != (2,) or noise.dtype.kind != "f" or not (np.isfinite(noise) & (noise > 0)).all():
        return "'noise' is no deviation and bound above 0"
    if names.shape != (2,) or names.dtype.kind != "U" or names[0] not in get_args(NoisePlace):
        return "'names' are not those of a place and a run"
    clients = saved["messages"].shape[:1]
    for name, dimensions in _DIMENSIONS.items():
        norms = saved[name]
        if norms.ndim != dimensions or norms.dtype not in (np.float32, np.float64):
            return f"{name!r} are no norms"
        if norms.shape[:1] != clients and (len(norms) or name == "updates"):
            return f"{name!r} are not those of the clients of 'messages'"
        # An example that a batch lacks has NaN for a norm.
        if not (((norms >= 0) & (norms < np.inf)) | (np.isnan(norms) & (name == "examples"))).all():
            return f"{name!r} are no norms"
    return None
