"""The device that a run computes on, and how much of its memory a chunk of victims may take."""

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.base.errors import UsageError
from harness.base.limits import free_memory, own_share_of_device

_MOST_THREADS = 1024


def choose_device(name: str) -> str:
    """``cpu``, ``cuda`` or ``cuda:N`` (the N-th GPU, from 0) for ``auto`` or one of these.

    Raises:
        UsageError: a GPU is asked for where there is none, or not that many.
    """
    kind, _, number = name.partition(":")
    if name not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isascii() and number.isdecimal()):
        raise UsageError(f"unknown device {name!r}; choose auto, cpu, cuda or cuda:N, where N counts GPUs from 0")
    available = torch.cuda.is_available()
    if kind == "cuda" and not available:
        raise UsageError("no CUDA device is available here; use --device cpu")
    if number and int(number) >= (count := torch.cuda.device_count()):
        raise UsageError(f"--device {name}: the GPUs here are {', '.join(f'cuda:{one}' for one in range(count))}")
    return name if kind == "cuda" else "cuda" if available and name != "cpu" else "cpu"


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
    """Return how many threads compute on this device, which may change a number's last bits; None where it is no
    CPU."""
    return torch.get_num_threads() if device == "cpu" else None


# How many rows are computed at once: as many as were asked for, and fit into the memory that is free.

log = logging.getLogger(__name__)

#: Of what is free: kernels take space of their own beside tensors, and freed space is not always whole.
_SHARE = 0.6
#: What is surely small is not measured: values that one parameter, or one pixel, can become on the way.
_PER_PARAMETER, _PER_PIXEL, _SMALL = 32, 512, 0.03
_told: set[str] = set()


class _Meter(TorchDispatchMode):
    """Adds up what tensors hold while operators run."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.peak = 0, 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, Tensor):
                self._note(given, made_here=False)
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, Tensor):
                self._note(one, made_here=True)
        return made

    def _note(self, tensor: Tensor, made_here: bool) -> None:
        """Count the memory of a tensor. Memory that was there before counts nothing, however much of it a view
        shows."""
        storage = tensor.untyped_storage()
        place = storage._cdata  # two views of one storage are one
        if place not in self._sizes:
            self._sizes[place] = storage.nbytes() if made_here else 0
            self.held += self._sizes[place]
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self._forget, place)

    def _forget(self, place: int) -> None:
        self.held -= self._sizes.pop(place, 0)


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes that tensors made by ``work`` hold at any time. It is run for that, once."""
    with _Meter() as meter:
        kept = work()
    del kept
    return meter.peak


def is_small(rows: int, parameters: int, pixels: int, device: str) -> bool:
    """Return whether so many networks and images are so small a part of what is free that nothing needs to be
    measured."""
    free = _free(device)
    return free is None or 8.0 * rows * (_PER_PARAMETER * parameters + _PER_PIXEL * pixels) < _SMALL * free


def fitting(asked: int, each: float, what: str, device: str, reserved: float = 0.0) -> int:
    """Return how many rows to compute at once.

    Args:
        asked: at most.
        each: bytes of a row.
        what: is computed, in words.
        reserved: bytes for what is made of all rows.

    Returns:
        At least two where as many were asked for: a single row is computed twice.

    Raises:
        MemoryError: not even that fits. It is no mistake in the settings, which may fit at another time.
    """
    free, least = _free(device), min(asked, 2)
    if free is None:
        return asked
    require_room(reserved + least * each / _SHARE, what, device)
    fits = max(least, min(asked, int(_SHARE * (free - reserved) / max(each, 1.0))))
    if fits < asked and what not in _told:
        _told.add(what)
        log.warning(
            "harness: %s: %d at once instead of %d, each takes about %.2g GB of memory, and %.3g GB are free",
            what, fits, asked, each / 1e9, free / 1e9,
        )  # fmt: skip
    return fits


def has_room(needed: float, device: str) -> bool:
    """Return whether as many bytes are free, as far as is known."""
    free = _free(device)
    return free is None or needed <= free


def require_room(needed: float, what: str, device: str) -> None:
    """Raises MemoryError: fewer bytes than ``needed`` are free."""
    free = _free(device)
    if free is not None and needed > free:
        raise MemoryError(
            f"{what} take about {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free; fewer --victims, a "
            "smaller --model or a smaller --batch-size take less"
        )


def _free(device: str) -> float | None:
    if not device.startswith("cuda"):
        return free_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return own_share_of_device(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
