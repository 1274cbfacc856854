"""SCAFFOLD's control variates: what clients add to every local step, and how they and the server learn it.

Source: Karimireddy et al. 2020 (SCAFFOLD), option II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1 and its warm start.
With plain local steps a client's new variate is exactly the mean of its (noised) steps, so it is post-processing of
what the defense released.
"""

import torch
from torch import Tensor

from harness.training.memory import Memory

_NAME = "scaffold variate"


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

    def of(self, clients: list[int]) -> Tensor:
        """c_i (K, P) of some clients."""
        return self.memory.read(clients).get(_NAME, torch.zeros_like(self.like).expand(len(clients), -1))

    def correction(self, clients: list[int]) -> Tensor:
        """c - c_i (K, P), added to every local step of these clients."""
        return self.server - self.of(clients)

    def learn(self, clients: list[int], mean_step: Tensor) -> None:
        """Clients replace their variate by the mean of their steps (K, P) and send the change."""
        # One client after the other, so that the sum does not depend on the chunks.
        for change in (mean_step - self.of(clients)).double():
            self._sent += change
        self.memory.write(clients, {_NAME: mean_step})

    def finish_round(self) -> None:
        """The server adds the mean, over all clients, of what was sent."""
        self.memory.server[_NAME] = self.server + (self._sent / self.memory.clients).to(self.like.dtype)
        self._sent = torch.zeros_like(self._sent)
