"""SCAFFOLD's control variates after a round, and their part in one client's next round.

Source: Karimireddy et al. 2020, option II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1. A client moves by every step's
gradient plus c - c_i and sends two things: how far its model moved (delta y), and how its variate changed (delta c).
"""

import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.results.atomic import write_atomic

_MEND = "train with --algorithm scaffold and --keep-rounds"


def variates_file(round_index: int) -> str:
    """Name of the file after a number of rounds, relative to the run's folder."""
    return f"models/round_{round_index:05d}.variates.pt"


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

    def of(self, clients: list[int]) -> "RoundVariates":
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

    def moved(self, update: Tensor, steps: int, learning_rate: float) -> Tensor:
        """Delta y (N, P) after ``steps`` steps whose directions alone come to ``update``."""
        return update - learning_rate * steps * self.correction if self.moving else torch.zeros_like(update)

    def change(self, update: Tensor, steps: int, learning_rate: float) -> Tensor:
        """Delta c (N, P): the mean of the steps' directions, less the variate before."""
        return update / (-learning_rate * steps) - self.clients


def write_variates(path: Path, variates: RoundVariates, model: str) -> None:
    """Writes the variates of a model's training, whole or not at all."""
    buffer = io.BytesIO()
    content = {"server": variates.server.cpu(), "clients": variates.clients.cpu(), "moving": variates.moving}
    torch.save(content | {"model": model}, buffer)
    write_atomic(path, buffer.getvalue())


def read_variates(path: Path, model: str, parameters: int) -> RoundVariates:
    """The variates of a file.

    Raises:
        UsageError: the file is missing or damaged, is of another model, or holds NaN or infinity.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        made = RoundVariates(saved["server"], saved["clients"], bool(saved["moving"]))
        whose, size = str(saved["model"]), made.server.numel()
        fits = made.server.dim() == 1 and made.clients.dim() == 2 and made.clients.shape[1] == size
        finite = bool(made.server.isfinite().all() and made.clients.isfinite().all())
    except FileNotFoundError as error:
        raise UsageError(f"no control variates {str(path)!r}; {_MEND}") from error
    except Exception as error:  # torch.load raises a dozen types for a damaged file
        raise UsageError(f"{str(path)!r} holds no control variates, or is cut off; {_MEND}") from error
    if whose != model or size != parameters:
        raise UsageError(
            f"control variates {str(path)!r} are of model {whose!r} with {size} parameters, not of {model!r} with "
            f"{parameters}; name those of this model's own run"
        )
    if not (fits and finite and len(made.clients)):
        raise UsageError(f"control variates {str(path)!r} do not fit together, or hold NaN; {_MEND}")
    return made
