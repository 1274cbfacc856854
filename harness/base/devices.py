"""Where tensors are computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from harness.base.errors import UsageError

_MOST_THREADS = 1024


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


def compute_on(name: str) -> torch.device:
    """The device of this name. Products and convolutions on a GPU take all 24 bits of float32.

    torch lets cuDNN round the factors of a convolution to TF32, 10 bits of fraction. Gradients of deep networks are
    then off by 1% to 27%, far more than attacks and checks of what was sent allow for.
    """
    device = torch.device(name)
    if device.type == "cuda":
        torch.backends.cudnn.conv.fp32_precision = "ieee"  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    return device


def use_threads(count: int | None) -> None:
    """Computes with this many threads per process; None leaves it to torch, which takes one per core.

    Raises:
        UsageError: ``count`` is below 1, or more than any machine has.
    """
    if count is None:
        return
    if not 1 <= count <= _MOST_THREADS:
        raise UsageError(f"--threads must be 1 to {_MOST_THREADS}, not {count}")
    torch.set_num_threads(count)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Computes with this many threads for a while."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def threads_of(device: str) -> int | None:
    """How many threads compute on this device, which may change a number's last bits; None where it is no CPU."""
    return torch.get_num_threads() if device == "cpu" else None
