"""The same cell on a GPU and on the CPU: the same observation, and attacks that find the same."""

from pathlib import Path

import pytest
import torch

from harness.base.devices import compute_on
from harness.evaluation import Run
from harness.evaluation.observe import Stage
from harness.experiment import CellSettings, cell_settings
from harness.models import RowModel
from harness.results import RunFolder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


def settings(device: str, **values: object) -> CellSettings:
    return cell_settings(dataset="mnist-sample", victims=16, device=device, **values)


@pytest.mark.parametrize("defense", ["none", "fed_sdp", "fed_cdp", "fed_acdp"])
def test_devices_show_the_same_observation(tmp_path: Path, defense: str) -> None:
    on_cpu, on_gpu = (
        Stage(tmp_path, 64).set(settings(device, defense=defense, tap="T0.post")).observation.target.cpu()
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("attack", ["cpl", "idlg", "inverting_gradients"])
def test_attacks_succeed_on_the_gpu_as_on_the_cpu(tmp_path: Path, attack: str) -> None:
    rates = []
    for device in ("cpu", "cuda"):
        run = Run(tmp_path, RunFolder(tmp_path / device))
        rates.append(run.cell(settings(device, attack=attack)).cell.asr["strict"].rate)
    assert all(rate is not None and rate >= 0.8 for rate in rates), rates


def test_convolutions_on_the_gpu_keep_the_bits_of_float32() -> None:
    """torch's default for cuDNN rounds factors to 10 bits, which a deep network turns into errors of 4%."""
    gradients = []
    for device in ("cpu", "cuda"):
        model = RowModel("torchvision:resnet18+group_norm", (3, 32, 32), 10)
        model.to(compute_on(device), torch.float32)
        weights = model.initial_weights([(0, 0)]).to(device)
        images = torch.rand(1, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)
        gradients.append(model.gradient(weights, images, torch.tensor([[0, 1]], device=device)).cpu())
    on_cpu, on_gpu = gradients
    assert (on_gpu - on_cpu).norm() < 1e-4 * on_cpu.norm()
