"""What a defense remembers between rounds: one store for the server, one with a row per client."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from harness.federation.context import State
from harness.federation.remembered import Remembered, memory_problem


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
