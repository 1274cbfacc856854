"""Memory of a defense and of SCAFFOLD between rounds: one store for the server, one with a row per client.

SCAFFOLD's control variates are what clients add to every local step. Source: Karimireddy et al. 2020 (SCAFFOLD), option
II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1 and its warm start. With plain local steps a client's new variate is
exactly the mean of its (noised) steps, so it is post-processing of what the defense released.
"""

import io
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
from harness.results.files import (
    MOST_OF_A_DOCUMENT,
    Absent,
    FiniteTensor,
    Stored,
    parse_json,
    parse_tensors,
    read_stored,
)

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
        """Return why what :meth:`tensors` once gave is no memory of a run after its first round; None where it is."""
        if problem := memory_problem(saved["server"], server, parameters):
            return f"{problem} (of the server)"
        for name, rows in saved["clients"].items():
            if name in clients and (problem := clients[name].problem(rows, parameters, self.clients)):
                return f"is damaged: {name!r} of the clients {problem}"
            if rows.shape[:1] != (self.clients,):
                return f"is damaged: {name!r} has no row for each of {self.clients} clients"
        return None


# What the server remembered after a round, such as an adaptive clipping bound: a small JSON file beside the model.

_TRAIN_AGAIN = "train again with --keep-rounds"


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
        stored = read_stored(path, dict[str, _Values], parse_json, _TRAIN_AGAIN, MOST_OF_A_DOCUMENT)
    except Absent as error:
        raise UsageError(f"cannot read {str(path)!r} (no such file); {_TRAIN_AGAIN}") from error
    try:
        state = {name: one.tensor() for name, one in stored.items()}
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} holds other things than numbers; {_TRAIN_AGAIN}") from error
    if problem := memory_problem(state, known):
        raise UsageError(
            f"{str(path)!r} is no state of a server under this defense: it {problem}; name that of its own run, or "
            + _TRAIN_AGAIN
        )
    return state


_NAME = "scaffold variate"
REMEMBERED = {_NAME: Remembered((None,))}


@dataclass(frozen=True)
class RoundVariates:
    """The variates that N clients begin a round with.

    Attributes:
        server: c (P,). clients: c_i (N, P).
        moving: whether the round takes steps; False while it only collects variates (warm start).
    """

    server: Tensor
    clients: Tensor
    moving: bool = True

    def of(self, clients: Sequence[int]) -> "RoundVariates":
        """Return the variates for some clients, by number modulo N."""
        rows = torch.tensor([client % len(self.clients) for client in clients])
        return RoundVariates(self.server, self.clients[rows], self.moving)

    def to(self, like: Tensor) -> "RoundVariates":
        """Return the variates on the device and in the precision of ``like``."""
        return RoundVariates(self.server.to(like), self.clients.to(like), self.moving)

    @property
    def correction(self) -> Tensor:
        """c - c_i (N, P), what every local step adds to the gradient."""
        return self.server - self.clients

    def followed(self, directions: Tensor, steps: int) -> Tensor:
        """Return where clients went (N, P) in ``steps`` steps, per learning rate, whose own directions add up to
        ``directions``."""
        return directions + steps * self.correction if self.moving else torch.zeros_like(directions)

    def change(self, mean_step: Tensor) -> Tensor:
        """Delta c (N, P): the mean of the steps' directions, less the variate before."""
        return mean_step - self.clients


class ControlVariates:
    """The variates c of the server (P,) and c_i of the clients (N, P), all zero at the start.

    The server's is the mean of all clients' at all times.
    """

    def __init__(self, memory: Memory, parameters: Tensor) -> None:
        self.memory, self.like = memory, parameters
        self._sent = torch.zeros_like(parameters, dtype=torch.float64)

    @property
    def server(self) -> Tensor:
        """c (P,)."""
        return self.memory.server.get(_NAME, torch.zeros_like(self.like))

    def of(self, clients: Sequence[int]) -> Tensor:
        """c_i (K, P) of some clients."""
        return self.memory.read(clients).get(_NAME, torch.zeros_like(self.like).expand(len(clients), -1))

    def beginning(self, clients: list[int], moving: bool) -> RoundVariates:
        """Return what some clients begin a round with."""
        return RoundVariates(self.server, self.of(clients), moving)

    def learn(self, clients: Sequence[int], mean_step: Tensor) -> None:
        """Clients replace their variate by the mean of their steps (K, P) and send the change."""
        # One client after the other, so that the sum does not depend on the chunks.
        for change in (mean_step - self.of(clients)).double():
            self._sent += change
        self.memory.write(clients, {_NAME: mean_step})

    def finish_round(self) -> None:
        """The server adds the mean, over all clients, of what was sent."""
        self.memory.server[_NAME] = self.server + (self._sent / self.memory.clients).to(self.like.dtype)
        self._sent = torch.zeros_like(self._sent)


# SCAFFOLD's control variates after a round, as a file beside the model.
#
# Source: Karimireddy et al. 2020, option II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1. A client moves by every
# step's gradient plus c - c_i and sends two things: how far its model moved (delta y), and how its variate changed
# (delta c).

_HOW_TO_KEEP = "train with --algorithm scaffold and --keep-rounds"


def variates_file(round_index: int) -> str:
    """Name of the file after a number of rounds, relative to the run's folder."""
    return f"models/round_{round_index:05d}.variates.pt"


def write_variates(path: Path, variates: RoundVariates, model: str) -> None:
    """Writes the variates of a model's training, whole or not at all."""
    buffer = io.BytesIO()
    content = {"server": variates.server.cpu(), "clients": variates.clients.cpu(), "moving": variates.moving}
    torch.save(content | {"model": model}, buffer)
    write_atomic(path, buffer.getvalue())


class _Variates(Stored):
    server: FiniteTensor
    clients: FiniteTensor
    moving: bool
    model: str


def read_variates(path: Path, model: str, parameters: int) -> RoundVariates:
    """The variates of a file.

    Raises:
        UsageError: the file is missing or damaged, is of another model, or holds NaN or infinity.
    """
    try:
        saved = read_stored(path, _Variates, parse_tensors, _HOW_TO_KEEP)
    except Absent as error:
        raise UsageError(f"no control variates {str(path)!r}; {_HOW_TO_KEEP}") from error
    server, clients = saved.server, saved.clients
    if saved.model != model or server.numel() != parameters:
        raise UsageError(
            f"control variates {str(path)!r} are of model {saved.model[:80]!r} with {server.numel()} parameters, not "
            f"of {model!r} with {parameters}; name those of this model's own run"
        )
    fits = server.dim() == 1 and clients.dim() == 2 and clients.shape[1] == parameters and len(clients)
    if not (fits and server.is_floating_point() and clients.is_floating_point()):
        raise UsageError(f"control variates {str(path)!r} do not fit together; {_HOW_TO_KEEP}")
    return RoundVariates(server, clients, saved.moving)
