"""The models that a server gave out, round by round, as its clients' captures have them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from harness.base.errors import UsageError
from harness.base.ranges import CountOrNone
from harness.judging.capture import BEFORE, FACTS, file_of
from harness.results.arrays import MEND, StoredArrays
from harness.results.files import MOST_OF_A_DOCUMENT, Absent, parse_json, read_stored


class _Numbered(BaseModel):
    """The round of a capture. Its other facts do not matter here, nor whether they suffice to judge it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    round: CountOrNone = 0


def released_models(folders: Sequence[Path]) -> dict[int, dict[str, NDArray[np.float64]]]:
    """What clients were sent at the beginning of each captured round, by its number, in order.

    Canary clients do not send what they trained, so that their captures cannot be judged: the models are read from
    those too.

    Raises:
        UsageError: a folder is no capture or its round did not end, or clients of one round were sent different models,
            so that no single one was given out.
    """
    of_round = dict[int, tuple[Path, StoredArrays]]()
    for folder in folders:
        number, model = _begun(folder)
        first, given = of_round.setdefault(number, (folder, model))
        if first is not folder and not _alike(given, model):
            raise UsageError(
                f"captures {str(first)!r} and {str(folder)!r} of round {number} begin with different models; name "
                "captures of one job"
            )
    return {number: _model(of_round[number][1]) for number in sorted(of_round)}


def _begun(folder: Path) -> tuple[int, StoredArrays]:
    """The round of a capture, and the model that its client was sent."""
    try:
        number = read_stored(folder / FACTS, _Numbered, parse_json, "correct it there", MOST_OF_A_DOCUMENT).round
    except Absent as problem:
        raise UsageError(f"{str(folder)!r} is no capture (it has no {FACTS}); {MEND}") from problem
    model = file_of(folder, BEFORE)
    if not model.exists():
        raise UsageError(f"capture {str(folder)!r} has no {model.name}: its round did not end; leave it out")
    return number, StoredArrays(model)


def _alike(one: StoredArrays, other: StoredArrays) -> bool:
    return set(one) == set(other) and all(
        np.array_equal(np.asarray(one[name]), np.asarray(other[name])) for name in one
    )


def _model(arrays: StoredArrays) -> dict[str, NDArray[np.float64]]:
    return {name: np.asarray(arrays[name], dtype=np.float64) for name in arrays}
