"""What a defense remembers between rounds: one store for the server, one with a row per client."""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.defenses import State


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

    def restore(self, saved: dict[str, dict[str, Tensor]]) -> None:
        """Takes over what :meth:`tensors` gave."""
        self.server, self._rows = saved["server"], saved["clients"]
