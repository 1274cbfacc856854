"""Which processor computes: libraries choose their kernels by its maker and model, and so the last bits."""

import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

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
    """What ``/proc/cpuinfo`` says of the first core; nothing where it says it in other words."""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    facts: Mapping[str, str] = {name.strip(): value.strip() for name, _, value in lines}
    return next((" ".join(facts[name] for name in names) for names in _NAMES if facts.keys() >= {*names}), "")
