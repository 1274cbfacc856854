"""SCAFFOLD's control variates: what clients add to every local step, and how they and the server learn it.

Source: Karimireddy et al. 2020 (SCAFFOLD), option II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1 and its warm start.
With plain local steps a client's new variate is exactly the mean of its (noised) steps, so it is post-processing of
what the defense released.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.federation.memory import Memory
from harness.federation.remembered import Remembered

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
