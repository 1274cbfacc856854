"""What an attack's own methods give, looked at before it is used: somebody else may have written them."""

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.observation import Observation


def require_labels(labels: object, starts: int, observation: Observation) -> None:
    """Labels (R, starts, n), -1 where a start is left out, or None.

    Raises:
        UsageError: they are something else.
    """
    if labels is None:
        return
    shape, classes = (observation.rows, starts, observation.examples), observation.model.classes
    if not isinstance(labels, Tensor) or labels.dtype != torch.long or tuple(labels.shape) != shape:
        raise UsageError(
            f"labels() gives {_described(labels)}; let it give whole numbers {shape[::2]}, a row per victim"
        )
    if labels.numel() and not -1 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UsageError(f"labels() gives {int(labels.max())}, where there are {classes} classes; count them from 0")


def require_start(position: object, rows: int) -> Tensor:
    """Positions (rows, D).

    Raises:
        UsageError: they are something else.
    """
    if not isinstance(position, Tensor) or position.dim() != 2 or len(position) != rows:
        raise UsageError(f"start() gives {_described(position)}; let it give a row of numbers for each of {rows} keys")
    return position


def _described(given: object) -> str:
    return (
        f"a tensor {tuple(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
    )
