"""Defenses by the frameworks' names against the packages: the same input gives the same output, and noise of its law.

Each package runs in an environment of its own, which is made from the index, or lies under its name (``flwr==1.42.0``,
or several with spaces between) in the folder that HARNESS_PACKAGES names. Inputs go to it as JSON on standard input.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, Defense, MaterialisedGradients, RoundContext
from harness.defenses.correlated import CorrelatedNoise, best_bands

pytestmark = pytest.mark.slow
Python = Callable[[str], Path]

FLOWER = """
import importlib, json, sys
from types import SimpleNamespace
import numpy as np
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.mod import centraldp_mods as mods
from flwr.common import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as kinds

given = json.load(sys.stdin)
shapes = [tuple(one) for one in given["shapes"]]

def arrays(flat):
    flat, parts, start = np.asarray(flat), [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=int))
        parts.append(flat[start:start + size].reshape(shape).copy())
        start += size
    return parts

def message(flat):
    content = RecordDict({"arrays": ArrayRecord(arrays(flat)), "metrics": MetricRecord({"num-examples": 1})})
    return SimpleNamespace(content=content, has_error=lambda: False)

def sent(reply):
    return np.concatenate([one.ravel() for one in reply.to_numpy_ndarrays()]).tolist()

def clipped(row, kind, bound):  # by a client, as the server asks it to
    mod = mods.adaptiveclipping_mod if "Adaptive" in kind else mods.fixedclipping_mod
    asked = message(nothing)
    asked.content["config"] = ConfigRecord({mods.KEY_CLIPPING_NORM: bound})
    return mod(asked, None, lambda *_: message(row))

nothing = np.zeros(len(given["rows"][0]))
if "local" in given:
    mod = LocalDpMod(**given["local"])
    out = [sent(mod(message(nothing), None, lambda *_: message(row)).content["arrays"]) for row in given["rows"]]
else:
    kind = getattr(kinds, "DifferentialPrivacy" + given["kind"])
    inner = kinds.FedAvg()
    inner.current_arrays = ArrayRecord(arrays(nothing))  # as newer versions note it before they train
    strategy, out = kind(inner, **given["settings"]), []
    for _ in range(given["rounds"]):
        strategy.current_arrays = ArrayRecord(arrays(nothing))
        replies = [message(row) for row in given["rows"]]
        if given["kind"].startswith("Client"):
            replies = [clipped(row, given["kind"], strategy.clipping_norm) for row in given["rows"]]
        made, _ = strategy.aggregate_train(1, replies)
        out.append(sent(made) + [strategy.clipping_norm])
print(json.dumps(out))
"""
NVFLARE = """
import json, sys
import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

given, out = json.load(sys.stdin), []
coarser = given["kind"] == "ModelQuantizer"
if coarser:
    import torch
    torch.Tensor.cuda = lambda self, *_: self  # bitsandbytes rounds on a processor too
    from bitsandbytes.functional import QuantState
    read = QuantState.from_dict.__func__
    QuantState.from_dict = classmethod(lambda kind, state, device: read(kind, state, torch.device("cpu")))
    from nvflare.app_opt.pt.quantization.dequantizer import ModelDequantizer
    from nvflare.app_opt.pt.quantization.quantizer import ModelQuantizer
for row in given["rows"]:
    flat, data, start = np.asarray(row, np.float32 if coarser else None), {}, 0
    for name, shape in zip(given["names"], given["shapes"]):
        size = int(np.prod(shape, dtype=int))
        data[name] = flat[start:start + size].reshape(shape).copy()
        start += size
    dxo = DXO(DataKind.WEIGHT_DIFF, data=data, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: given["steps"]})
    one = globals()[given["kind"]](**given["settings"])
    made = one.process_dxo(dxo, Shareable(), FLContext()) or dxo
    made = ModelDequantizer().process_dxo(made, Shareable(), FLContext()) if coarser else made
    zeros = {name: np.zeros(shape) for name, shape in zip(given["names"], given["shapes"])}
    out.append(np.concatenate([np.ravel({**zeros, **made.data}[name]) for name in given["names"]]).tolist())
print(json.dumps(out))
"""
OPACUS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from opacus import PrivacyEngine

given = json.load(sys.stdin)
inputs, outputs = torch.tensor(given["inputs"]), torch.tensor(given["outputs"])
model = torch.nn.Linear(inputs.shape[1], outputs.shape[1])
data = torch.utils.data.TensorDataset(torch.zeros(4 * len(inputs), 1))
loader = torch.utils.data.DataLoader(data, batch_size=len(inputs))
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), data_loader=loader, **given["settings"])
before = [one.detach().clone() for one in model.parameters()]
(model(inputs) * outputs).sum(1).mean().backward()
optimizer.step()
moved = [old - new.detach() for old, new in zip(before, model.parameters())]
print(json.dumps([torch.cat([one.flatten() for one in moved]).tolist()]))
"""
PFL = """
import json, os, sys, tempfile
os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
from types import SimpleNamespace
import numpy as np, torch
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
set_framework_module(pytorch_ops)
from pfl.internal.platform.selector import get_platform
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

given = json.load(sys.stdin)
if "rounds" not in given:
    os.chdir(tempfile.mkdtemp())
    made = BandedMatrixFactorizationMechanism(
        1.0, given["iterations"], given["apart"], lambda times: SimpleNamespace(cohort_noise_parameter=1.0))
    print(json.dumps(made.query_matrix.tolist()))
    sys.exit()
if given["settings"]:
    one = AdaptiveClippingGaussianMechanism(lambda bound: GaussianMechanism(bound, given["noise"]), **given["settings"])
else:
    one = CentrallyAppliedPrivacyMechanism(GaussianMechanism(2.0, given["noise"]))
out = []
for now in range(given["rounds"]):
    total = None
    for number, row in enumerate(given["rows"]):
        stats = MappedVectorStatistics({"w": torch.tensor(row)}, weight=1)
        stats, _ = one.postprocess_one_user(stats=stats, user_context=SimpleNamespace(seed=number))
        total = stats if total is None else total + stats
    central = SimpleNamespace(cohort_size=len(given["rows"]), seed=now)
    total, _ = one.postprocess_server(stats=total, central_context=central, aggregate_metrics=None)
    bound = one.mutable_clipping_bound.value() if given["settings"] else 2.0
    out.append((total["w"] / total.weight).tolist() + [bound])
print(json.dumps(out))
"""
TFF = """
import atexit, json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

# Its workers would keep the output open.
atexit.register(lambda: [one.kill() for one in psutil.Process().children(recursive=True)])
given, out = json.load(sys.stdin), []
rows = [np.asarray(row, np.float32) for row in given["rows"]]
if given["kind"] == "tree_aggregation":
    given["settings"]["record_specs"] = tf.TensorSpec(rows[0].shape)
kind = getattr(tff.aggregators.DifferentiallyPrivateFactory, given["kind"])
factory = kind(clients_per_round=float(len(rows)), **given["settings"])
process = factory.create(tff.TensorType(np.float32, rows[0].shape))
state = process.initialize()
for _ in range(given["rounds"]):
    made = process.next(state, rows)
    state, bound = made.state, 2.0
    if given["kind"] == "gaussian_adaptive":
        bound = float(state.query_state.numerator_state.sum_state.l2_norm_clip)
    out.append(np.array(made.result, float).tolist() + [bound])
print(json.dumps(out))
"""
JAX = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

given, out = json.load(sys.stdin), []
if "bands" in given:
    column = toeplitz.optimal_max_error_strategy_coefs(given["bands"])
    one = toeplitz.inverse_as_streaming_matrix(column / jax.numpy.linalg.norm(column))
else:
    one = buffered_toeplitz.BufferedToeplitz.build(**given["buffers"]).inverse_as_streaming_matrix()
fresh = jax.numpy.array(given["rows"])
state = one.init_multiply(fresh[0])
for row in fresh:
    made, state = one.multiply_next(row, state)
    out.append(made.tolist())
print(json.dumps(out))
"""
PFLS = "pfl==0.6.0 torch"
SCRIPTS = {
    "pfl": PFL, "flwr": FLOWER, "nvflare": NVFLARE, "opacus": OPACUS, "tensorflow-federated": TFF, "jax_privacy": JAX,
}  # fmt: skip
BITS = "nvflare==2.9.0 bitsandbytes==0.50.2"
LAYOUT = Layout(("a", "b", "count"), ((6, 5), (7,), ()))
LARGE = Layout(("a", "b"), ((150, 100), (5000,)))
FLWR, NVFLARES, OPACUSES = ("flwr==1.42.0", "flwr==1.29.0"), ("nvflare==2.9.0", "nvflare==2.7.2"), (
    "opacus==1.6.0", "opacus==1.5.4",
)  # fmt: skip


def package_says(package: str, python_with: Python, given: dict[str, Any]) -> Tensor:
    script = SCRIPTS[package.partition("==")[0]]
    done = subprocess.run(
        [python_with(package), "-c", script], input=json.dumps(given), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.tensor(json.loads(done.stdout.splitlines()[-1]), dtype=torch.float64)


def updates(layout: Layout = LAYOUT, rows: int = 3) -> Tensor:
    made = torch.randn(rows, layout.total, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return made * torch.tensor([0.1, 1.0, 3.0])[:rows, None]


def context(layout: Layout, rows: int, scale: float) -> RoundContext:
    cohort = Cohort(clients_per_round=rows)
    return RoundContext(0, 0, 0.1, cohort, layout, tuple((0, row) for row in range(rows)), scale)


def ours(name: str, settings: dict[str, Any], rows: Tensor, layout: Layout, scale: float) -> Tensor:
    return build(DEFENSES, name, settings).client_message(rows, context(layout, len(rows), scale))


def of_layout(layout: Layout, rows: Tensor, **given: Any) -> dict[str, Any]:
    return {"names": layout.names, "shapes": layout.shapes, "rows": rows.tolist(), **given}


def same_law(one: Tensor, other: Tensor) -> bool:
    """Whether numbers are of one law, and of one level but for what chance makes."""
    left, right = one.flatten().numpy(), other.flatten().numpy()
    left, right = left[left != 0], right[right != 0]
    level = np.mean(np.abs(left)) / np.mean(np.abs(right))
    by_chance = (1 / len(left) + 1 / len(right)) ** 0.5
    return bool(ks_2samp(left, right).pvalue > 1e-4 and abs(level - 1) < 5 * by_chance)


@pytest.mark.parametrize("package", FLWR)
def test_local_mod_of_flower(package: str, python_with: Python) -> None:
    settings = {"clipping_norm": 2.0, "sensitivity": 0.0, "epsilon": 8.0, "delta": 1e-5}
    found = package_says(package, python_with, of_layout(LAYOUT, updates(), local=settings))
    torch.testing.assert_close(found, ours("flower:LocalDpMod", settings, updates(), LAYOUT, 1.0))
    settings |= {"sensitivity": 4.0}
    noisy = package_says(package, python_with, of_layout(LARGE, updates(LARGE), local=settings))
    assert same_law(noisy, ours("flower:LocalDpMod", settings, updates(LARGE), LARGE, 1.0))
    counted = package_says(package, python_with, of_layout(LAYOUT, updates(), local=settings))
    torch.testing.assert_close(counted[:, -1], updates()[:, -1])


def played(own: Defense, rows: Tensor, layout: Layout, rounds: int) -> list[Tensor]:
    """What is applied in some rounds, and the bound after each."""
    server: dict[str, Tensor] = {}
    made = []
    for now in range(rounds):
        here = replace(context(layout, 3, 1.0), round=now, server=server, sent={})
        total = own.server_receive(own.client_message(rows, here), here).sum(0)
        sums = {name: values.sum(0) for name, values in here.sent.items()}
        applied = own.aggregate(total, replace(here, sent=sums))
        made.append(torch.cat([applied, server.get("bound", torch.tensor([2.0])).reshape(1).double()]))
    return made


SIDES = [
    ("SideFixedClipping", {"noise_multiplier": 0.0, "clipping_norm": 2.0, "num_sampled_clients": 3}, LAYOUT),
    ("SideFixedClipping", {"noise_multiplier": 1.0, "clipping_norm": 2.0, "num_sampled_clients": 7}, LARGE),
    ("SideAdaptiveClipping", {"noise_multiplier": 0.0, "num_sampled_clients": 3, "initial_clipping_norm": 1.0,
                                    "clipped_count_stddev": 0.0}, LAYOUT),
    ("SideAdaptiveClipping", {"noise_multiplier": 1.0, "num_sampled_clients": 50, "clip_norm_lr": 1e-3,
                                    "initial_clipping_norm": 2.0}, LARGE),
]  # fmt: skip
STRATEGIES = [(side + kind, *more) for side in ("Server", "Client") for kind, *more in SIDES]


@pytest.mark.parametrize("package", FLWR)
@pytest.mark.parametrize(("kind", "settings", "layout"), STRATEGIES)
def test_strategies_of_flower(
    package: str, kind: str, settings: dict[str, Any], layout: Layout, python_with: Python
) -> None:
    """Clips, the order of noise and bound, and the bounds of four rounds."""
    rows, rounds = updates(layout), 4 if layout is LAYOUT else 1
    found = package_says(package, python_with, of_layout(layout, rows, kind=kind, settings=settings, rounds=rounds))
    made = played(build(DEFENSES, f"flower:{kind}", settings), rows, layout, rounds)
    if settings["noise_multiplier"]:
        assert same_law(found[:, :-1], torch.stack(made)[:, :-1])
    else:
        torch.testing.assert_close(found, torch.stack(made))


@pytest.mark.parametrize("package", NVFLARES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("PercentilePrivacy", {"percentile": 40, "gamma": 0.4}),
        ("PercentilePrivacy", {"percentile": 101, "gamma": 0.4}),
        ("ExcludeVars", {"exclude_vars": ["b", "other"]}),
        ("ExcludeVars", {"exclude_vars": "^[ab]"}),
    ],
)
def test_filters_of_nvflare(package: str, kind: str, settings: dict[str, Any], python_with: Python) -> None:
    asked = of_layout(LAYOUT, updates(), kind=kind, settings=settings, steps=2)
    told = settings | ({"steps": 2} if kind == "PercentilePrivacy" else {})
    found = package_says(package, python_with, asked)
    torch.testing.assert_close(found, ours(f"nvflare:{kind}", told, updates(), LAYOUT, 1.0))


def on_the_grid_of_a_processor(rows: Tensor, layout: Layout) -> Tensor:
    """Numbers as bitsandbytes' code for processors takes them before it rounds to the 256 levels of ``blockwise8``.

    It looks the level up in a table of 65,536 equal steps, which near 0 are wider than levels: there 0 is none. Its
    code for GPUs, which NVFlare asks for, compares with the levels themselves (read, not run).
    """
    made = []
    for part in rows.float().split(layout.sizes, dim=1):
        for block in part.split(4096, dim=1):
            largest = block.abs().amax(1, keepdim=True)
            steps = ((block / largest + 1) * 32767.5 + 0.5).floor()
            made.append((steps.double() / 32767.5 - 1) * largest)
    return torch.cat(made, dim=1)


@pytest.mark.parametrize("kind", ["float16", "blockwise8", "float4", "normfloat4", "adaquant"])
def test_quantizer_of_nvflare(kind: str, python_with: Python) -> None:
    """Each row to a millionth of its largest number; blocks end within a tensor, and one is short."""
    rows, settings = updates(LARGE).float().double(), {"quantization_type": kind}
    found = package_says(BITS, python_with, of_layout(LARGE, rows, kind="ModelQuantizer", settings=settings, steps=1))
    seen = on_the_grid_of_a_processor(rows, LARGE) if kind == "blockwise8" else rows
    made, largest = ours("nvflare:ModelQuantizer", settings, seen, LARGE, 1.0), rows.abs().amax(1, keepdim=True)
    torch.testing.assert_close(found / largest, made / largest, rtol=0, atol=1e-6)


def test_matrix_of_pfl(python_with: Python) -> None:
    """Rows have length 1 there, and columns do not."""
    found = package_says(PFLS, python_with, {"iterations": 40, "apart": 8})
    rows = best_bands(40, 7, by_rows=True)
    made = torch.stack([torch.cat([torch.zeros(one), found.diagonal(-one)]) for one in range(7)], 1)
    torch.testing.assert_close(made, rows, rtol=0, atol=5e-3)
    assert float(found.norm(dim=0)[0]) == pytest.approx(1.7319, rel=1e-3)


@pytest.mark.parametrize(("noise", "layout"), [(1e-7, LAYOUT), (1.0, LARGE)])
def test_adaptive_clip_of_pfl(noise: float, layout: Layout, python_with: Python) -> None:
    rows, settings = updates(layout), {
        "initial_clipping_bound": 2.0, "clipping_indicator_noise_stddev": 1.5 if noise == 1 else 1e-6,
        "adaptive_clipping_norm_quantile": 0.4, "log_space_step_size": 0.3,
    }  # fmt: skip
    rounds = 4 if noise < 1 else 1
    found = package_says(
        PFLS, python_with, {"rows": rows.tolist(), "noise": noise, "rounds": rounds, "settings": settings}
    )
    own = build(DEFENSES, "pfl:AdaptiveClippingGaussianMechanism", {**settings, "relative_noise_stddev": noise})
    made = torch.stack(played(own, rows, layout, rounds))
    if noise == 1:
        assert same_law(found[:, :-1], made[:, :-1])
    else:
        torch.testing.assert_close(found, made, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("noise", "layout"), [(1e-7, LAYOUT), (1.0, LARGE)])
def test_central_noise_of_pfl(noise: float, layout: Layout, python_with: Python) -> None:
    rows = updates(layout)
    found = package_says(PFLS, python_with, {"rows": rows.tolist(), "noise": noise, "rounds": 1, "settings": {}})
    settings = {"clipping_bound": 2.0, "relative_noise_stddev": noise}
    made = torch.stack(played(build(DEFENSES, "pfl:CentrallyAppliedPrivacyMechanism", settings), rows, layout, 1))
    if noise == 1:
        assert same_law(found[:, :-1], made[:, :-1])
    else:
        torch.testing.assert_close(found, made, rtol=1e-4, atol=1e-5)


def test_adaquant_of_nvflare_sends_no_number_of_a_narrow_tensor(python_with: Python) -> None:
    rows, settings = updates(LAYOUT) * 1e-6, {"quantization_type": "adaquant"}
    found = package_says(BITS, python_with, of_layout(LAYOUT, rows, kind="ModelQuantizer", settings=settings, steps=1))
    assert bool(found[:, :-1].isnan().all())


@pytest.mark.parametrize("package", NVFLARES)
@pytest.mark.parametrize("settings", [{}, {"fraction": 0.7, "gamma": 0.5, "epsilon": 30.0, "noise_var": 4.0,
                                           "tau": 0.2, "replace": False}])  # fmt: skip
def test_sparse_vector_of_nvflare(package: str, settings: dict[str, Any], python_with: Python) -> None:
    """As many values are sent, and they are of one law."""
    rows = updates(LARGE)
    found = package_says(package, python_with, of_layout(LARGE, rows, kind="SVTPrivacy", settings=settings, steps=2))
    made = ours("nvflare:SVTPrivacy", settings | {"steps": 2, "version": package.rpartition("=")[2]}, rows, LARGE, 1.0)
    for one, other in zip(found, made, strict=True):
        assert int((one != 0).sum()) == pytest.approx(int((other != 0).sum()), rel=0.04)
        assert same_law(one, other)


@pytest.mark.parametrize("package", OPACUSES)
@pytest.mark.parametrize(
    "settings",
    [{"max_grad_norm": 1.5}, {"max_grad_norm": [1.0, 1.0], "clipping": "per_layer"}, {"max_grad_norm": 1e6}],
)
def test_step_of_opacus(package: str, settings: dict[str, Any], python_with: Python) -> None:
    """The gradient of a linear layer's example is known: its output's weights times its input."""
    random = torch.Generator().manual_seed(2)
    for sigma, (inputs, outputs) in ((0.0, (6, 4)), (1.5, (200, 60))):
        x, y = (torch.randn(4, size, generator=random) for size in (inputs, outputs))
        told = settings | {"noise_multiplier": sigma}
        found = package_says(package, python_with, {"inputs": x.tolist(), "outputs": y.tolist(), "settings": told})
        layout = Layout(("weight", "bias"), ((outputs, inputs), (outputs,)))
        examples = torch.cat([(y[:, :, None] * x[:, None]).flatten(1), y], 1)[None]
        cohort = Cohort(batch_size=4, clients_per_round=1)
        here = RoundContext(0, 0, 1.0, cohort, layout, ((0, 0),))
        own = build(DEFENSES, "opacus:PrivacyEngine", told)
        made = own.client_step(MaterialisedGradients(examples, layout.sizes), here).step.double()
        if sigma:
            assert same_law(found, made)
        else:
            torch.testing.assert_close(found, made, rtol=1e-4, atol=1e-5)


FEDERATED = "tensorflow-federated==0.87.0"
CENTRAL: list[tuple[str, dict[str, Any]]] = [
    ("gaussian_fixed", {"noise_multiplier": 0.0, "clip": 2.0}),
    ("gaussian_fixed", {"noise_multiplier": 1.0, "clip": 2.0}),
    (
        "gaussian_adaptive",
        {
            "noise_multiplier": 0.0,
            "initial_l2_norm_clip": 1.0,
            "clipped_count_stddev": 1e-9,
            "learning_rate": 0.3,
            "target_unclipped_quantile": 0.4,
        },
    ),
    ("gaussian_adaptive", {"noise_multiplier": 1.0, "initial_l2_norm_clip": 2.0, "clipped_count_stddev": 0.7}),
    ("tree_aggregation", {"noise_multiplier": 0.0, "l2_norm_clip": 2.0}),
    ("tree_aggregation", {"noise_multiplier": 1.0, "l2_norm_clip": 2.0}),
    ("tree_aggregation", {"noise_multiplier": 1.0, "l2_norm_clip": 2.0, "use_efficient": False}),
]


@pytest.mark.parametrize(("kind", "settings"), CENTRAL)
def test_central_noise_of_tensorflow_federated(kind: str, settings: dict[str, Any], python_with: Python) -> None:
    """Sums of the rounds so far: noise of a tree is correlated."""
    noisy, rounds = bool(settings["noise_multiplier"]), 1 if "adaptive" in kind else 4
    layout, rounds = (LARGE, rounds) if noisy else (LAYOUT, 4)
    rows = updates(layout)
    found = package_says(FEDERATED, python_with,
                         {"rows": rows.tolist(), "kind": kind, "settings": settings, "rounds": rounds})  # fmt: skip
    made = torch.stack(played(build(DEFENSES, f"tff:{kind}", settings), rows, layout, rounds))
    if noisy:
        sums = (one[:, :-1].cumsum(0) for one in (found, made))
        assert all(same_law(one, other) for one, other in zip(*sums, strict=True))
    else:
        torch.testing.assert_close(found, made, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings", "asked"),
    [
        ("BandedToeplitz", {"bands": 3}, {"bands": 3}),
        ("BandedToeplitz", {"bands": 1}, {"bands": 1}),
        ("BufferedToeplitz", buffers := {"buf_decay": [0.9, 0.5], "output_scale": [0.1, 0.3]}, {"buffers": buffers}),
    ],
)
def test_correlated_noise_of_jax_privacy(
    name: str, settings: dict[str, Any], asked: dict[str, Any], python_with: Python
) -> None:
    """The same independent noise becomes the same noise of eight rounds."""
    fresh = torch.randn(8, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = package_says("jax_privacy==2.0.0", python_with, {"rows": fresh.tolist(), **asked})
    defense = build(DEFENSES, f"jax_privacy:{name}", settings)
    (noise,) = (one for one in defense.operations(Cohort()) if isinstance(one, CorrelatedNoise))
    buffers, made = fresh.new_zeros(noise.count, 5), []
    for now, row in enumerate(fresh):
        one, buffers = noise.next(buffers, row, now)
        made.append(one)
    torch.testing.assert_close(found, torch.stack(made))
