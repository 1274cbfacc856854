"""A user's own module is found in the current folder, and disturbs neither the document nor the settings of torch."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.base.errors import UsageError
from harness.models import RowModel

NETWORK = """
import sys, torch
from torch import nn
{module}

def make(image_shape, classes):
    {factory}
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("network_here", None)


@pytest.mark.parametrize("place", ["module", "factory"])
def test_what_it_prints_and_sets_stays_with_it(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    sets = "print('hello'); torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False)"
    Path("network_here.py").write_text(NETWORK.format(**{"module": "", "factory": "", place: sets}))
    model = RowModel("network_here:make", (1, 8, 8), 4)
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
    assert model.initial_weights([(0,)]).dtype == torch.float32
    said = capsys.readouterr()
    assert said.out == "" and "hello" in said.err


@pytest.mark.parametrize("place", ["module", "factory"])
def test_nor_does_what_its_programs_print(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    says = "import subprocess; subprocess.run(['echo', 'hello'])"
    Path("network_here.py").write_text(NETWORK.format(**{"module": "", "factory": "", place: says}))
    RowModel("network_here:make", (1, 8, 8), 4)
    print("the document")
    said = capfd.readouterr()
    assert said.out == "the document\n" and "hello" in said.err


@pytest.mark.parametrize("place", ["module", "factory"])
def test_it_cannot_end_the_program(place: str) -> None:
    Path("network_here.py").write_text(NETWORK.format(**{"module": "", "factory": "", place: "sys.exit(0)"}))
    with pytest.raises(UsageError, match=r"calls sys.exit\(0\)"):
        RowModel("network_here:make", (1, 8, 8), 4)


def test_its_files_hide_no_installed_module() -> None:
    Path("network_here.py").write_text("import colorsys\n" + NETWORK.format(module="", factory=""))
    Path("colorsys.py").write_text("raise ValueError")
    sys.modules.pop("colorsys", None)
    assert RowModel("network_here:make", (1, 8, 8), 4)
