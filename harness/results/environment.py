"""Environment that a run was computed in, without anything that identifies the person or the machine's place."""

import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from pydantic import JsonValue

from harness.base.version import __version__

# Which processor computes: libraries choose their kernels by its maker and model, and so the last bits.

_CPUINFO = Path("/proc/cpuinfo")
# What Linux calls maker, family and model on x86, and maker and part on ARM.
_NAMES = (("vendor_id", "cpu family", "model"), ("CPU implementer", "CPU part"))


@cache
def processor() -> str:
    """Maker, family and model, as far as the system tells them, and the vector instructions that torch uses."""
    try:
        told = _told(_CPUINFO.read_text())
    except (OSError, UnicodeDecodeError):
        told = ""
    known = told or platform.processor() or platform.machine()
    return f"{known}, {torch.backends.cpu.get_cpu_capability()}"


def _told(text: str) -> str:
    """Return what ``/proc/cpuinfo`` says of the first core; nothing where it says it in other words."""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    facts: Mapping[str, str] = {name.strip(): value.strip() for name, _, value in lines}
    return next((" ".join(facts[name] for name in names) for names in _NAMES if facts.keys() >= {*names}), "")


_LIBRARIES = ("torch", "torchvision", "numpy", "scipy", "scikit-image", "scikit-learn", "dp-accounting", "lpips")


def environment(device: str) -> dict[str, JsonValue]:
    """Versions, device, commit and threads of this process.

    Args:
        device: a torch device such as ``cpu`` or ``cuda``.

    Returns:
        ``versions`` by library (null where it is not installed), ``device`` (the name of the accelerator, or
        ``cpu``), ``machine`` (the processor's architecture), ``processor`` (its maker and model, and its vector
        instructions), ``threads``, and ``git``: the commit of the checkout this package is part of, ending in
        ``-dirty`` where tracked files were changed, else null.
    """
    return {
        "versions": {
            "harness": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _LIBRARIES},
        },
        "device": _device_name(torch.device(device)),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "git": _own_commit(),
    }


def git_commit(source: Path) -> str | None:
    """The commit of the checkout that tracks the file ``source``; None where none does or git is not there."""
    # A package installed inside somebody else's checkout is untracked there: that commit says nothing about it.
    if _git(source.parent, "ls-files", "--error-unmatch", "--", source.name) is None:
        return None
    return _git(source.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


@cache
def _own_commit() -> str | None:
    """Asked for once: a document is written many times, and a process keeps the code that it began with."""
    return git_commit(Path(__file__))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _device_name(device: torch.device) -> str:
    # The driver of a cluster may have none of its GPUs.
    here = device.type == "cuda" and torch.cuda.is_available()
    return torch.cuda.get_device_name(device) if here else device.type
