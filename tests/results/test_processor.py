"""Processors that may round differently have different names, and the name is no machine's own."""

from pathlib import Path

import pytest
import torch

from harness.results import environment as module
from harness.results.environment import processor

X86 = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\n\nvendor_id\t: no\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
TOLD = {"x86": (X86, "GenuineIntel 6 143"), "arm": (ARM, "0x41 0xd4f"), "other words": ("cpu : POWER9\n", "given")}


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "given")
    processor.cache_clear()


@pytest.mark.parametrize(("text", "name"), TOLD.values(), ids=TOLD)
def test_maker_and_model(text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(module, "_CPUINFO", file)
    assert processor() == f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def test_without_such_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "absent")
    assert processor().startswith("given, ")
