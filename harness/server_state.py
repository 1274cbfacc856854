"""What the server remembered after a round, such as an adaptive clipping bound: a small JSON file beside the model."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.results.atomic import write_atomic

_TYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64, torch.int64)}


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


def read_state(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file.

    Raises:
        UsageError: the file is missing or damaged, or holds something else than finite numbers.
    """
    try:
        content = json.loads(path.read_bytes())
        state = {name: torch.tensor(one["values"], dtype=_TYPES[one["type"]]) for name, one in content.items()}
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r} ({error.strerror}); train again with --keep-rounds") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is no state of a server; train again with --keep-rounds") from error
    if not all(value.isfinite().all() for value in state.values()):
        raise UsageError(f"{str(path)!r} holds NaN or infinity; train again with --keep-rounds")
    return state
