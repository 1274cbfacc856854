"""What an attack's own methods give, looked at before it is used: somebody else may have written them."""

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.observation import Observation


def require_labels(labels: object, observation: Observation) -> None:
    """Labels (R, n), or None where the attack optimises them.

    Raises:
        UsageError: they are something else.
    """
    if labels is None:
        return
    shape, classes = (observation.rows, observation.examples), observation.model.classes
    if not isinstance(labels, Tensor) or labels.dtype != torch.long or tuple(labels.shape) != shape:
        raise UsageError(f"labels() gives {_described(labels)}; let it give {shape} of torch.long, a row per victim")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UsageError(f"labels() gives {int(wrong[0])}, where there are {classes} classes; count them from 0")


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
