"""What a defense remembers between rounds: one store for the server, one with a row per client."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.federation.context import State
from harness.results.atomic import write_atomic
from harness.results.files import MOST_OF_A_DOCUMENT, Absent
from harness.results.stored import Stored, parse_json, read_stored

# What a defense may find in its memory, by which a memory that comes back from a file is checked.


@dataclass(frozen=True)
class Remembered:
    """A tensor of finite floating-point numbers.

    Attributes:
        shape: of the server's tensor, or of each client's row; None stands for as many values as the model has weights.
        least, most: every value's range.
    """

    shape: tuple[int | None, ...] = ()
    least: float = -math.inf
    most: float = math.inf

    def problem(self, value: Tensor, parameters: int | None = None, rows: int | None = None) -> str | None:
        """Return the reason why a tensor is none of these, in half a sentence; ``parameters`` None allows any."""
        leading = () if rows is None else (rows,)
        expected = (*leading, *(parameters if size is None else size for size in self.shape))
        found = tuple(value.shape)
        if len(found) != len(expected) or any(w not in (None, f) for w, f in zip(expected, found, strict=True)):
            return f"has shape {found} instead of {expected}"
        if not value.is_floating_point() or not value.isfinite().all():
            return "holds other things than finite floating-point numbers"
        within = bool(((value >= self.least) & (value <= self.most)).all())
        return None if within else f"must lie between {self.least:g} and {self.most:g}"


def memory_problem(
    memory: Mapping[str, Tensor], known: Mapping[str, Remembered], parameters: int | None = None
) -> str | None:
    """Return the reason why a server's memory is not exactly what is ``known`` by name; None where it is."""
    for name in (*memory, *known):
        if name not in known:
            return f"holds {name[:40]!r}, which is no part of it"
        if name not in memory:
            return f"lacks {name!r}"
        if problem := known[name].problem(memory[name], parameters):
            return f"is damaged: {name!r} {problem}"
    return None


class Memory:
    """State of the server, and of every client; a client's tensors are zero until it writes some."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.server: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}

    def read(self, clients: Sequence[int]) -> State:
        """The state (N, ...) of some clients; empty where no client has written any."""
        ids = torch.as_tensor(clients)
        return {name: rows[ids] for name, rows in self._rows.items()}

    def write(self, clients: Sequence[int], state: State) -> None:
        """Keeps the state (N, ...) of some clients."""
        for name, values in state.items():
            if name not in self._rows:
                self._rows[name] = values.new_zeros(self.clients, *values.shape[1:])
            self._rows[name][torch.as_tensor(clients)] = values

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything, for a checkpoint."""
        return {"server": dict(self.server), "clients": dict(self._rows)}

    def restore(self, saved: dict[str, dict[str, Tensor]], like: Tensor) -> None:
        """Takes over what :meth:`tensors` gave, on the device of ``like``."""
        self.server, self._rows = (
            {name: value.to(like.device) for name, value in saved[part].items()} for part in ("server", "clients")
        )

    def problem(
        self, saved: dict[str, dict[str, Tensor]], server: Mapping[str, Remembered],
        clients: Mapping[str, Remembered], parameters: int,
    ) -> str | None:  # fmt: skip
        """Why what :meth:`tensors` once gave is no memory of a run after its first round; None where it is."""
        if problem := memory_problem(saved["server"], server, parameters):
            return f"{problem} (of the server)"
        for name, rows in saved["clients"].items():
            if name in clients and (problem := clients[name].problem(rows, parameters, self.clients)):
                return f"is damaged: {name!r} of the clients {problem}"
            if rows.shape[:1] != (self.clients,):
                return f"is damaged: {name!r} has no row for each of {self.clients} clients"
        return None


# What the server remembered after a round, such as an adaptive clipping bound: a small JSON file beside the model.

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
