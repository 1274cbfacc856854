"""What packages from the index really do, where the filters here say that it was run; each in its own environment."""

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from harness.claims.filters import FILTERS

pytestmark = pytest.mark.slow

FLOWER = """
import importlib, json
from types import SimpleNamespace
import numpy as np
try:
    dp = importlib.import_module("flwr.supercore.differential_privacy")
except ImportError:
    dp = importlib.import_module("flwr.common.differential_privacy")
try:
    from flwr.clientapp.mod import LocalDpMod
except ImportError:
    from flwr.client.mod import LocalDpMod
from flwr.common import ArrayRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

def message(arrays):
    content = RecordDict({"arrays": ArrayRecord(arrays)})
    return SimpleNamespace(content=content, has_error=lambda: False)

zeros = [np.zeros(200_000, np.float32), np.array(0.0, np.float32)]
moved = [np.zeros(200_000, np.float32), np.array(7.0, np.float32)]
mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=8.0, delta=1e-5)
sent = mod(message(zeros), None, lambda *_: message(moved)).content["arrays"].to_numpy_ndarrays()
long, other = [np.array([3.0, 4.0])], [np.zeros(2)]
dp.compute_clip_model_update(long, other, 1.0)
strategy = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), noise_multiplier=1.0, num_sampled_clients=100)
before = strategy.clipping_norm
bit = dp.compute_adaptive_clip_model_update([np.array([3.0, 4.0])], [np.zeros(2)], 1.0)
getattr(strategy, "_geometric_update", None) and strategy._geometric_update(1.0)
print(json.dumps({
    "deviation": float(sent[0].std()), "scalar": float(sent[1]), "norm": float(np.linalg.norm(long[0])),
    "central": dp.compute_stdv(0.2, 10.0, 20), "clipped is counted": bool(bit),
    "bound if all are clipped": strategy.clipping_norm / before,
}))
"""
NVFLARE = """
import json
import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

def filtered(one, **arrays):
    dxo = DXO(DataKind.WEIGHT_DIFF, data=arrays, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
    return one.process_dxo(dxo, Shareable(), FLContext()).data

values = np.linspace(-1, 1, 1001)
cut, again = (filtered(PercentilePrivacy(10, 0.01), w=values.copy(), s=np.array(7.0)) for _ in range(2))
svt = filtered(SVTPrivacy(gamma=1.0), w=np.zeros(100_000))["w"]
print(json.dumps({
    "largest": float(np.abs(cut["w"]).max()), "zeroed": float((cut["w"] == 0).mean()), "scalar": float(cut["s"]),
    "repeats": bool(np.array_equal(cut["w"], again["w"])), "sent": int((svt != 0).sum()),
    "mean size": float(np.abs(svt[svt != 0]).mean()), "cut at": float(np.abs(svt).max()),
}))
"""
OPACUS = """
import json, warnings
warnings.simplefilter("ignore")
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant

torch.manual_seed(0)
model = torch.nn.Linear(400, 500, bias=False)
data = torch.utils.data.TensorDataset(torch.zeros(64, 400), torch.zeros(64))
loader = torch.utils.data.DataLoader(data, batch_size=16)
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=loader, noise_multiplier=1.5,
    max_grad_norm=2.0)
images = torch.zeros(16, 400)
(model(images) * 0).sum().backward()
before = [one.detach().clone() for one in model.parameters()]
optimizer.step()
moved = before[0] - next(model.parameters()).detach()
rdp = create_accountant("rdp")
rdp.history = [(1.0, 0.0625, 48)]
print(json.dumps({"deviation": float(moved.std()) * 16, "rdp": rdp.get_epsilon(1e-5)}))
"""
DOES: dict[str, tuple[str, dict[str, Any], float]] = {
    "flwr": (FLOWER, {
        "deviation": 2 * 4.84480 / 8, "scalar": 7.0, "norm": 1.0, "central": 0.1, "clipped is counted": True,
        "bound if all are clipped": 0.904837,
    }, 0.01),
    # 10,000 draws with replacement from about 50,000 values that are accepted.
    "nvflare": (NVFLARE, {
        "largest": 0.01, "zeroed": 0.1, "scalar": 7.0, "repeats": True, "sent": 9063, "mean size": 20.0,
    }, 0.04),
    "opacus": (OPACUS, {"deviation": 3.0, "rdp": 3.79812}, 0.01),
}  # fmt: skip
# Before 2.8.0 NVFlare cuts values after their noise. Flower 1.12 runs with no numpy 2.
OLDER: dict[str, dict[str, Any]] = {
    "flwr==1.29.0": {}, "nvflare==2.7.2": {"mean size": 0.97, "cut at": 1.0}, "opacus==1.5.4": {},
}  # fmt: skip
NEWEST = {one.source.partition(",")[0].replace(" ", "==") for one in FILTERS.values() if one.ran}


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.mark.parametrize("package", [*sorted(NEWEST), *OLDER])
def test_a_package_does_what_its_filter_says(package: str, environments: Path) -> None:
    script, expected, tolerance = DOES[package.partition("==")[0]]
    expected = expected | OLDER.get(package, {})
    venv.create(environments / package, with_pip=True)
    python = environments / package / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True, timeout=1800)
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    print(package, found, file=sys.stderr)
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=tolerance)
