"""SCAFFOLD's control variates: what clients add to every local step, and how they and the server learn it.

Source: Karimireddy et al. 2020 (SCAFFOLD), option II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1 and its warm start.
With plain local steps a client's new variate is exactly the mean of its (noised) steps, so it is post-processing of
what the defense released.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.federation.memory import Memory, Remembered
from harness.results.atomic import write_atomic
from harness.results.files import Absent
from harness.results.stored import FiniteTensor, Stored, parse_tensors, read_stored

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
        """The same for some clients, by number modulo N."""
        rows = torch.tensor([client % len(self.clients) for client in clients])
        return RoundVariates(self.server, self.clients[rows], self.moving)

    def to(self, like: Tensor) -> "RoundVariates":
        """The same on the device and in the precision of ``like``."""
        return RoundVariates(self.server.to(like), self.clients.to(like), self.moving)

    @property
    def correction(self) -> Tensor:
        """c - c_i (N, P), what every local step adds to the gradient."""
        return self.server - self.clients

    def followed(self, directions: Tensor, steps: int) -> Tensor:
        """Where clients went (N, P) in ``steps`` steps, per learning rate, whose own directions add up to this."""
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
        """What some clients begin a round with."""
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

_MEND = "train with --algorithm scaffold and --keep-rounds"


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
        saved = read_stored(path, _Variates, parse_tensors, _MEND)
    except Absent as error:
        raise UsageError(f"no control variates {str(path)!r}; {_MEND}") from error
    server, clients = saved.server, saved.clients
    if saved.model != model or server.numel() != parameters:
        raise UsageError(
            f"control variates {str(path)!r} are of model {saved.model[:80]!r} with {server.numel()} parameters, not "
            f"of {model!r} with {parameters}; name those of this model's own run"
        )
    fits = server.dim() == 1 and clients.dim() == 2 and clients.shape[1] == parameters and len(clients)
    if not (fits and server.is_floating_point() and clients.is_floating_point()):
        raise UsageError(f"control variates {str(path)!r} do not fit together; {_MEND}")
    return RoundVariates(server, clients, saved.moving)
