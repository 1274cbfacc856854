"""What the server remembered after a round, such as an adaptive clipping bound: a small JSON file beside the model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.federation.remembered import Remembered, memory_problem
from harness.results.atomic import write_atomic
from harness.results.files import MOST_OF_A_DOCUMENT, Absent
from harness.results.stored import Stored, parse_json, read_stored

_MEND = "train again with --keep-rounds"


class _Values(Stored):
    type: Literal["float32", "float64", "int64"]
    values: Any

    def tensor(self) -> Tensor:
        if isinstance(self.values, bool):
            raise TypeError("a Boolean is no number")
        return torch.tensor(self.values, dtype=getattr(torch, self.type))


def state_file(round_index: int) -> str:
    """Name of the file after a number of rounds, relative to the run's folder."""
    return f"models/round_{round_index:05d}.state.json"


def write_state(path: Path, state: Mapping[str, Tensor]) -> None:
    """Writes named tensors of numbers, whole or not at all. JSON gives floating-point numbers back to the bit."""
    content = {
        name: {"type": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
        for name, value in state.items()
    }
    write_atomic(path, json.dumps(content).encode())


def read_state(path: Path, known: Mapping[str, Remembered]) -> dict[str, Tensor]:
    """The named tensors of a file.

    Args:
        path: the file.
        known: what the server remembers under the defense that is to go on from it.

    Raises:
        UsageError: the file is missing or damaged, or holds another memory than the ``known`` one.
    """
    try:
        stored = read_stored(path, dict[str, _Values], parse_json, _MEND, MOST_OF_A_DOCUMENT)
    except Absent as error:
        raise UsageError(f"cannot read {str(path)!r} (no such file); {_MEND}") from error
    try:
        state = {name: one.tensor() for name, one in stored.items()}
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} holds other things than numbers; {_MEND}") from error
    if problem := memory_problem(state, known):
        raise UsageError(
            f"{str(path)!r} is no state of a server under this defense: it {problem}; name that of its own run, or "
            + _MEND
        )
    return state
