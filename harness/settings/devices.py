"""Where tensors are computed."""

import torch

from harness.errors import UsageError


def choose_device(name: str) -> str:
    """``cpu`` or ``cuda`` for ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: a GPU is asked for where there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"unknown device {name!r}; choose auto, cpu or cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("no CUDA device is available here; use --device cpu")
    return "cuda" if available and name != "cpu" else "cpu"
