"""How tensors travel between processes of one machine: torch's own pickles copy them several times, and all that they
are views of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _as_array(values: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    return _tensor, (values.detach().cpu().numpy(), str(values.device))


def _tensor(values: Any, device: str) -> Tensor:
    return torch.from_numpy(values).to(device)


#: For :func:`harness.parallel.processes.begin_workers`.
TENSORS: dict[type, Any] = {Tensor: _as_array}
