"""SCAFFOLD's control variates after a round, as a file beside the model.

Source: Karimireddy et al. 2020, option II; Noble et al. 2022 (DP-SCAFFOLD), algorithm 1. A client moves by every step's
gradient plus c - c_i and sends two things: how far its model moved (delta y), and how its variate changed (delta c).
"""

import io
from pathlib import Path

import torch

from harness.base.errors import UsageError
from harness.federation.variates import RoundVariates
from harness.results.atomic import write_atomic
from harness.results.files import Absent
from harness.results.stored import FiniteTensor, Stored, parse_tensors, read_stored

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
