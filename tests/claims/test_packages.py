"""Facts about packages from the index, one by one, against the newest release and the oldest that is named here.

Each package runs in an environment of its own, which is made from the index, or lies under its name (``flwr==1.42.0``)
in the folder that HARNESS_PACKAGES names. Every fact is an expression over the script of its package; an error is its
name. The versions that really ran are printed.
"""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.claims.filters import FILTERS

pytestmark = pytest.mark.slow

ABSENT = "AttributeError"  # what the version does not have
BEFORE = "ModuleNotFoundError"  # and the module


@dataclass(frozen=True)
class Fact:
    """A statement about a package, and what an expression then is; ``older`` is that in versions where it differs."""

    said: str
    expression: str
    expected: Any
    within: float = 1e-3
    older: dict[str, Any] = field(default_factory=dict)

    def confirmed(self, package: str, found: Any) -> bool:
        return self._is(self.older.get(package, self.expected), found)

    def _is(self, expected: Any, found: Any) -> bool:
        if isinstance(expected, list) and isinstance(found, list):
            return len(expected) == len(found) and all(map(self._is, expected, found))
        if isinstance(expected, str):
            return str(found).startswith(expected)
        if isinstance(expected, bool | dict | None) or isinstance(found, str | list | None):
            return bool(found == expected)
        return math.isclose(found, expected, rel_tol=self.within, abs_tol=1e-12)


RUNNER = """

given, found = json.load(sys.stdin), {}
for said, expression in given:
    try:
        found[said] = eval(expression)
    except Exception as error:
        found[said] = f"{type(error).__name__}: {error}"[:200]
print(json.dumps(found))
"""
FLOWER = """
import importlib, inspect, json, logging, math, sys, warnings
from types import SimpleNamespace as Fake
import numpy as np
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

def first(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    return Fake()

dp = first("flwr.supercore.differential_privacy", "flwr.common.differential_privacy")
mods, new = first("flwr.clientapp.mod.localdp_mod"), first("flwr.serverapp.strategy")
common, old = importlib.import_module("flwr.common"), importlib.import_module("flwr.server.strategy")
compat = first("flwr.compat.common.recorddict_compat", "flwr.common.recorddict_compat", "flwr.common.recordset_compat")
masks = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils")
rounding = importlib.import_module("flwr.common.secure_aggregation.quantization")
workflow = importlib.import_module("flwr.server.workflow").SecAggPlusWorkflow
mod_of_old = importlib.import_module("flwr.client.mod.localdp_mod").LocalDpMod

def flat(arrays):
    return [float(one) for array in arrays for one in np.ravel(array)]

def clipped(arrays, bound, before=None):
    arrays = [np.asarray(one) for one in arrays]
    dp.compute_clip_model_update(arrays, before or [np.zeros_like(one) for one in arrays], bound)
    return flat(arrays)

def noised(array, deviation):
    dp.add_gaussian_noise_inplace([array], deviation)
    return array

def seeded():
    made = []
    for _ in range(2):
        np.random.seed(3)
        made.append(noised(np.zeros(9), 1.0))
    return bool((made[0] == made[1]).all())

# Messages.

def message(arrays=None, **metrics):
    content = common.RecordDict()
    if arrays is not None:
        content["arrays"] = common.ArrayRecord([np.asarray(one) for one in arrays])
    content["metrics"] = common.MetricRecord(metrics or {"num-examples": 1})
    return Fake(content=content, has_error=lambda: False, metadata=Fake(src_node_id=1))

def local(arrays, bound, sensitivity, epsilon, delta, **metrics):
    mod = mods.LocalDpMod(bound, sensitivity, epsilon, delta)
    zeros = [np.zeros_like(np.asarray(one)) for one in arrays]
    return mod(message(zeros), None, lambda *_: message(arrays, **metrics)).content

def sent(arrays, *settings):
    return flat(local(arrays, *settings)["arrays"].to_numpy_ndarrays())

def evaluated():
    mods._handle_multi_record_err = lambda *_: "an error"
    return mods.LocalDpMod(1, 1, 1, 1e-5)(message([[1.0]]), None, lambda *_: message(loss=1.0))

def old_local(arrays, *settings):
    parameters = common.ndarrays_to_parameters
    ins = getattr(compat, "fitins_to_recorddict", None) or compat.fitins_to_recordset
    res = getattr(compat, "fitres_to_recorddict", None) or compat.fitres_to_recordset
    back = getattr(compat, "recorddict_to_fitres", None) or compat.recordset_to_fitres
    arrays = [np.asarray(one) for one in arrays]
    asked = ins(common.FitIns(parameters([np.zeros_like(one) for one in arrays]), {}), False)
    answer = common.FitRes(common.Status(common.Code.OK, ""), parameters(arrays), 1, {})
    reply = Fake(content=res(answer, False), has_error=lambda: False)
    out = mod_of_old(*settings)(Fake(content=asked, metadata=Fake(message_type="train")), None, lambda *_: reply)
    return flat(common.parameters_to_ndarrays(back(out.content, False).parameters))

def aggregated(kind, replies, settings, inner=None, current=None):
    inner = inner or new.FedAvg()
    strategy = getattr(new, "DifferentialPrivacy" + kind)(inner, **settings)
    arrays = replies[0].content["arrays"].to_numpy_ndarrays()
    before = common.ArrayRecord(current or [np.zeros_like(one) for one in arrays])
    strategy.current_arrays = before
    inner.current_arrays = before if type(inner) is new.FedAvg else {name: one.numpy() for name, one in before.items()}
    return strategy, strategy.aggregate_train(1, replies)

def means(kind, updates, settings, **more):
    made = aggregated(kind, [message([np.asarray(one)]) for one in updates], settings, **more)[1][0]
    return flat(made.to_numpy_ndarrays())

def failed():
    bad = Fake(has_error=lambda: True, metadata=Fake(src_node_id=2), error="no")
    return aggregated("ServerSideFixedClipping", [message([[1.0]]), bad], fixed(0.0, 1.0, 2))[1][0] is None

def weighted():
    replies = [message([[1.0]], **{"num-examples": 1}), message([[2.0]], **{"num-examples": 3})]
    return flat(aggregated("ServerSideFixedClipping", replies, fixed(0.0, 9.0, 2))[1][0].to_numpy_ndarrays())[0]

def published():
    replies = [message([[1.0]], **{"num-examples": 1, "loss": loss}) for loss in (1.0, 3.0)]
    return aggregated("ServerSideFixedClipping", replies, fixed(5.0, 1.0, 2))[1][1]["loss"]

def fixed(z, bound, typed):
    return {"noise_multiplier": z, "clipping_norm": bound, "num_sampled_clients": typed}

def after_optimizer(z):
    inner = new.FedAdam(eta=1e-4)
    updates = [np.full(40000, 0.001), np.full(40000, 0.001)]
    return np.array(means("ServerSideFixedClipping", updates, fixed(z, 1.0, 2), inner=inner))

def sampled():
    grid = Fake(get_node_ids=lambda: list(range(100)))
    chosen = []
    for fraction, least in ((0.2, 4), (0.02, 4)):
        inner = new.FedAvg(fraction_train=fraction, min_train_nodes=least)
        inner._construct_messages = lambda record, node_ids, kind: node_ids
        chosen.append(inner.configure_train(1, common.ArrayRecord([np.zeros(1)]), common.ConfigRecord({}), grid))
    return [len(chosen[0]), len(set(chosen[0])), len(chosen[1])]

def secure(z, typed, count):
    zeros = [np.zeros(1)] * count
    return means("ServerSideFixedClipping", [np.full(1, 50.0)] * count, fixed(z, 1.0, typed))[0]

def adaptive(first_bound, updates, typed, **more):
    settings = {"noise_multiplier": 1.0, "num_sampled_clients": typed, "initial_clipping_norm": first_bound, **more}
    replies = [message([np.asarray(one)]) for one in updates]
    strategy, (made, _) = aggregated("ServerSideAdaptiveClipping", replies, settings)
    return strategy, flat(made.to_numpy_ndarrays())

def wandering(bound, rounds, count=100):
    np.random.seed(5)
    strategy = new.DifferentialPrivacyServerSideAdaptiveClipping(new.FedAvg(), 1.0, count, bound)
    for _ in range(rounds):
        norms = np.random.lognormal(0.0, 0.3, count)
        strategy._geometric_update(strategy._noisy_fraction(int((norms > strategy.clipping_norm).sum()), count))
    return strategy.clipping_norm

def next_noise():
    strategy, made = adaptive(1.0, [np.full(40000, 1.0)] * 20, 20)
    ratio = (1.0 - (2 * 1.0) ** -2) ** -0.5
    return float(np.std(made)) * 20 / ratio / strategy.clipping_norm if strategy.clipping_norm < 0.95 else None

def unclamped():
    strategy = new.DifferentialPrivacyServerSideAdaptiveClipping(new.FedAvg(), 1.0, 100)
    return max(strategy._noisy_fraction(100, 100) for _ in range(500)) > 1

def wrapped(clipped_norm):
    kind = importlib.import_module("flwr.client.dpfedavg_numpy_client").DPFedAvgNumPyClient
    fit = lambda parameters, config: ([np.array([clipped_norm])], 1, {})
    config = {"dpfedavg_clip_norm": 1.0, "dpfedavg_adaptive_clip_enabled": True}
    return kind(Fake(fit=fit)).fit([np.zeros(1)], config)[2]["dpfedavg_norm_bit"]

def old_central(arrays, z):
    parameters = common.ndarrays_to_parameters([np.asarray(one) for one in arrays])
    return flat(common.parameters_to_ndarrays(dp.add_gaussian_noise_to_params(parameters, z, 1.0, 1)))

def folded():
    one = bytes(range(1, 33))
    other = one[4:8] + one[:4] + one[8:]  # another secret of the same sum of 32-bit words
    made = [masks.pseudo_rand_gen(seed, 1 << 32, [(5,)])[0].tolist() for seed in (one, other)]
    return made[0] == made[1]

def accountant(relation="ADD_OR_REMOVE_ONE", sampling="NO_AMPLIFICATION"):
    kinds = importlib.import_module("flwr.supercore.privacy_accounting")
    made = importlib.import_module("flwr.supercore.privacy_accounting.rdp_accountant").RdpAccountant
    return made(kinds.PrivacyConfig(1e-5, 2, getattr(kinds.NeighboringRelation, relation),
                                    getattr(kinds.SamplingMethod, sampling)))

def counted(inner=None, numbers=(1, 1), **settings):  # what three rounds of two clients spend
    strategy = new.DifferentialPrivacyServerSideFixedClipping(
        inner or new.FedAvg(), 1.0, 1.0, 2, accountant=accountant(**settings))
    strategy.current_arrays = strategy.strategy.current_arrays = common.ArrayRecord([np.zeros(1)])
    for now in range(1, 4):
        list(strategy._prepare_accounting(now, [None, None]))
        strategy.aggregate_train(now, [message([[1.0]], **{"num-examples": one}) for one in numbers])
    return strategy.privacy_spent().epsilon

def defaults(kind):
    return {name: one.default for name, one in inspect.signature(kind).parameters.items()
            if one.default is not inspect.Parameter.empty}
"""
NVFLARE = """
import importlib, inspect, json, logging, sys, types
import numpy as np
logging.disable(logging.CRITICAL)
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

functional = types.ModuleType("bitsandbytes.functional")  # 8 and 4 bits need a GPU, and are not asked here
functional.quantize_4bit = functional.quantize_blockwise = None
sys.modules.setdefault("bitsandbytes", types.ModuleType("bitsandbytes"))
sys.modules.setdefault("bitsandbytes.functional", functional)

def filtered(one, steps=None, kind=DataKind.WEIGHT_DIFF, **arrays):
    meta = {} if steps is None else {MetaKey.NUM_STEPS_CURRENT_ROUND: steps}
    share = DXO(kind, data={name: np.asarray(value) for name, value in arrays.items()}, meta=meta).to_shareable()
    return from_shareable(one.process(share, FLContext())).data

def listed(values):
    return [float(one) for one in np.ravel(values)]

def defaults(kind):
    return {name: one.default for name, one in inspect.signature(kind).parameters.items()
            if one.default is not inspect.Parameter.empty}

def percentile(*settings, **more):
    return filtered(PercentilePrivacy(*settings), **more)

def svt(zeros=100_000, value=0.0, seed=1, calls=1, scalar=None, **settings):
    np.random.seed(seed)
    one = SVTPrivacy(**settings)
    for _ in range(calls):
        more = {} if scalar is None else {"s": np.array(scalar)}
        made = filtered(one, w=np.full(zeros, value), **more)
    return one, made

def sent(values):
    return values[values != 0]

def ledger(**settings):
    return svt(**settings)[0].get_privacy_ledger()[-1]

def after_start():
    one = svt()[0]
    one.handle_event(EventType.START_RUN, FLContext())
    return one.get_privacy_spent()

def no_dxo():
    share = Shareable({"weights": [1.0]})
    return PercentilePrivacy().process(share, FLContext()) is share

def rounded(array):
    kind = importlib.import_module("nvflare.app_opt.pt.quantization.quantizer").ModelQuantizer
    made = kind("float16").process_dxo(DXO(DataKind.WEIGHT_DIFF, data={"w": array}), Shareable(), FLContext())
    return made.data["w"]

def levels(largest):
    import torch
    kind = importlib.import_module("nvflare.app_opt.pt.quantization.ada_quant").AdaQuantizer
    return kind().get_number_of_quantization_levels(4, torch.tensor([0.0, largest]))[1]
"""
ENCRYPTED = """
import json, logging, sys
logging.disable(logging.CRITICAL)
import numpy as np
import tenseal as ts
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.he import model_encryptor
from nvflare.lighter.impl.he import HEBuilder

builder = HEBuilder()
builder.initialize(None, None)
server, client, other = (ts.context_from(builder.get_serialized_context(one)) for one in (False, True, True))
model_encryptor.load_tenseal_context_from_workspace = lambda *_: client

def sent(layers=None, steps=3, **data):
    one, here = model_encryptor.HEModelEncryptor(encrypt_layers=layers), FLContext()
    one.handle_event(EventType.START_RUN, here)
    here.set_peer_context(FLContext())
    data = {name: np.asarray(values) for name, values in data.items()}
    dxo = DXO(DataKind.WEIGHT_DIFF, data=data, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: steps})
    return one.process_dxo(dxo, Shareable(), here)

def received(values, context):
    return ts.ckks_vector_from(context, values.serialize())

def kinds(layers=None):
    return [type(one).__name__ for one in sent(layers, a=[1.0, 2.0], b=[[1.0]], count=7.0).data.values()]

def apart():
    values = np.random.default_rng(0).normal(size=4000)
    return float(np.abs(np.subtract(sent(a=values, steps=1).data["a"].decrypt(), values)).max())

def total():
    one, two = (received(sent(a=values).data["a"], server) for values in ([1.0, 2.0], [3.0, 5.0]))
    return received(one + two, other).decrypt()
"""
OPACUS = """
import json, logging, math, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.accountants.rdp import RDPAccountant
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, TensorDataset

def private(n=64, b=16, drop_last=False, engine=None, module=None, **settings):
    torch.manual_seed(0)
    module = module or torch.nn.Linear(400, 500, bias=False)
    loader = DataLoader(TensorDataset(torch.zeros(n, 400)), batch_size=b, drop_last=drop_last)
    engine = engine or PrivacyEngine()
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **settings}
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return engine, *engine.make_private(module=module, optimizer=optimizer, data_loader=loader, **settings)

def stepped(inputs, scale=0.0, steps=1, **settings):
    engine, module, optimizer, *_ = private(**settings)
    before = [one.detach().clone() for one in module.parameters()]
    for _ in range(steps):
        optimizer.zero_grad()
        (module(inputs) * scale).sum().backward()
        optimizer.step()
    return engine, [old - new.detach() for old, new in zip(before, module.parameters())], optimizer

def deviation(**settings):
    moved = torch.cat([one.flatten() for one in stepped(torch.zeros(16, 400), **settings)[1]])
    return float(moved.std())

def factor(norm, bound):
    # A linear module of one input: the gradient of its weight is the input.
    module, inputs = torch.nn.Linear(1, 1, bias=False), torch.tensor([[norm]])
    torch.nn.init.zeros_(module.weight)
    moved = stepped(inputs, 1.0, module=module, noise_multiplier=0.0, max_grad_norm=bound, loss_reduction="sum")[1]
    return float(moved[0]) / norm

def ghost(inputs, scale=0.0, sigma=1.0, bound=1.0, module=None):  # as stepped, without gradients of examples
    class Loss(torch.nn.Module):
        reduction = "sum"

        def forward(self, outputs, _):
            each = (outputs * scale).sum(1)
            return each if self.reduction == "none" else each.sum()

    torch.manual_seed(0)
    module = module or torch.nn.Linear(400, 500, bias=False)
    loader = DataLoader(TensorDataset(torch.zeros(64, 400)), batch_size=16)
    module, optimizer, loss, _ = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader, criterion=Loss(),
        noise_multiplier=sigma, max_grad_norm=bound, loss_reduction="sum", grad_sample_mode="ghost")
    before = [one.detach().clone() for one in module.parameters()]
    loss(module(inputs), torch.zeros(len(inputs))).backward()
    optimizer.step()
    return torch.cat([(old - new.detach()).flatten() for old, new in zip(before, module.parameters())])

def one_weight():
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    return module

def rate(n, b, **settings):
    engine = stepped(torch.zeros(2, 400), n=n, b=b, **settings)[0]
    return engine.accountant.history[0][1]

def expected(n, b):
    return private(n=n, b=b)[2].expected_batch_size

def norms():
    module = torch.nn.Sequential(torch.nn.Linear(400, 4), torch.nn.BatchNorm1d(4))
    return private(module=module)

def layers(bounds):
    module = torch.nn.Sequential(torch.nn.Linear(400, 500, bias=False), torch.nn.Linear(500, 200, bias=False))
    torch.manual_seed(0)
    return deviation(module=module, clipping="per_layer", max_grad_norm=bounds, loss_reduction="sum")

def adaptive(inputs):
    return stepped(inputs, clipping="adaptive", target_unclipped_quantile=0.5, clipbound_learning_rate=0.2,
                   max_clipbound=10.0, min_clipbound=0.01, unclipped_num_std=0.6, loss_reduction="sum")

def reported(kind, *history):
    accountant = create_accountant(kind)
    accountant.history = list(history)
    return accountant.get_epsilon(1e-5)

def odd_lengths():
    counts = [n for n in range(1, 2000) if len(UniformWithReplacementSampler(num_samples=9, sample_rate=1 / n)) != n]
    return [len(counts), *counts[:6]]

def kept(again):
    engine = PrivacyEngine()
    for _ in range(2):
        engine = engine if again else PrivacyEngine()
        stepped(torch.zeros(16, 400), engine=engine)
    return sum(steps for *_, steps in engine.accountant.history)

def searched():
    torch.manual_seed(0)
    engine, module = PrivacyEngine(), torch.nn.Linear(400, 5)
    loader = DataLoader(TensorDataset(torch.zeros(500, 400)), batch_size=32)
    made = engine.make_private_with_epsilon(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
        target_epsilon=3.2405, target_delta=1e-5, epochs=3, max_grad_norm=1.0)
    return made[1].noise_multiplier
"""
PFL = """
import json, logging, math, os, sys, tempfile, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
os.chdir(tempfile.mkdtemp())
import numpy as np
import torch
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
set_framework_module(pytorch_ops)
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.stats import MappedVectorStatistics

def statistics(*arrays):
    return MappedVectorStatistics({str(at): torch.tensor(one) for at, one in enumerate(arrays)}, weight=1)

def flat(made):
    return [float(value) for one in made.get_weights()[1] for value in one.flatten()]

def clipped(mechanism, *arrays):
    return flat(mechanism.constrain_sensitivity(statistics(*arrays))[0])

def noise(mechanism, size=40_000):
    return np.array(flat(mechanism.add_noise(statistics([0.0] * size), 1, seed=7)[0]))

def accountant(sigma, times, rate, **more):
    return PLDPrivacyAccountant(times, rate, "gaussian", noise_parameter=sigma, delta=1e-6, **more)

def adaptive(noise_of_bits, z=1.0, bound=2.0):
    return AdaptiveClippingGaussianMechanism(lambda c: GaussianMechanism(c, z), bound, noise_of_bits, 0.5)

def moved(quantile):
    one = adaptive(10.0)
    one._geometric_update(quantile)
    return one.mutable_clipping_bound.value()

def banded(rounds, apart):
    asked = []
    def make(times):
        asked.append(times)
        return PLDPrivacyAccountant(times, 0.005, "gaussian", noise_parameter=1.0, delta=1e-6)
    mechanism = BandedMatrixFactorizationMechanism(1.0, rounds, apart, make)
    matrix = mechanism.query_matrix
    bands = int((np.abs(matrix) > 1e-9).sum(1).max())
    rows, columns = (np.linalg.norm(matrix, axis=axis) for axis in (1, 0))
    return [asked[0], bands, float(rows.max()), float(columns.max()) > 1.1]
"""
BARE = """
import json, logging, math, os, sys, types
from types import SimpleNamespace as Fake
import torch
logging.disable(logging.CRITICAL)

def bare(*names):  # packages without what they import of other packages
    for name in names:
        parent, _, own = name.rpartition(".")
        folders = [os.path.join(one, own) for one in (sys.modules[parent].__path__ if parent else sys.path)]
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [one for one in folders if os.path.isdir(one)]
"""
APPFL = f"""{BARE}
sys.modules["wandb"] = types.ModuleType("wandb")
bare("appfl", "appfl.algorithm", "appfl.algorithm.trainer")
from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
from appfl.privacy import SecureAggregator
from omegaconf import OmegaConf

class Network(torch.nn.Module):
    def __init__(self, size, slope):
        super().__init__()
        self.weight, self.slope = torch.nn.Parameter(torch.zeros(size)), slope
        self.register_buffer("mean", torch.full((9,), 3.0))

    def forward(self, x):
        return x * self.weight.sum() * self.slope

class Log:
    def __getattr__(self, name):
        return lambda *_: None

def sent(slope=0.0, size=4, **settings):  # a gradient of that slope in every weight
    told = {{"optim": "SGD", "optim_args": {{"lr": 0.5}}, "mode": "step", "num_local_steps": 1, "train_batch_size": 1,
            "use_dp": True, "clip_value": 1.0, "clip_norm": 2, "epsilon": 4.0, "device": "cpu", **settings}}
    data = torch.utils.data.TensorDataset(torch.ones(4, 1), torch.zeros(4, 1))
    trainer = VanillaTrainer(Network(size, slope), lambda made, _: made.sum(), lambda *_: 0.0, data, None,
                             OmegaConf.create(told), Log())
    trainer.client_id = "a"
    trainer.runtime_context = {{"all_client_ids": ["a", "b"], "round_id": 1, "secure_agg_secret": b"s"}}
    trainer.train()
    return trainer.get_parameters()[0]

def mask():
    other = SecureAggregator("b", ["a", "b"], b"s", torch.device("cpu"))
    return other.mask_update({{"weight": torch.zeros(9999), "mean": torch.zeros(9)}}, 1)[0]

def unmasked():
    return sent(2.0, 9999, dp_mechanism="gaussian", use_secure_agg=True)["flat"] + mask()

EXACT = {{"epsilon": 1e12, "dp_mechanism": "gaussian"}}  # noise of next to nothing
"""
FEDML = f"""{BARE}
from collections import OrderedDict
bare("fedml", "fedml.core", "fedml.core.alg_frame")
from fedml.core.alg_frame.client_trainer import ClientTrainer
from fedml.core.alg_frame.context import Context
sys.modules["fedml.core"].Context = Context
from fedml.core.alg_frame.server_aggregator import ServerAggregator
from fedml.core.dp.frames.dp_clip import DP_Clip
from fedml.core.dp.mechanisms.dp_mechanism import DPMechanism
from fedml.core.security.fedml_defender import FedMLDefender as Defender
torch.manual_seed(0)

def told(**more):
    return Fake(**{{"enable_dp": True, "epsilon": 0.5, "delta": 0.1, "mechanism_type": "gaussian", "sensitivity": 1.0,
                   "C": 10.0, "clipping_norm": 1.0, "noise_multiplier": 1.0, "train_data_num_in_total": 10,
                   "comm_round": 5, "client_num_per_round": 2, "client_num_in_total": 1000, "stddev": 1.0,
                   "robust_threshold": 1, "dataset": "mnist", **more}})

def model(size, value=0.0):
    return OrderedDict(w=torch.full((size,), value))

class Part:
    def get_model_params(self):
        return self.params

    def set_model_params(self, params):
        self.params = params

class Client(Part, ClientTrainer):
    def train(self, *_):
        pass

class Server(Part, ServerAggregator):
    def test(self, *_):
        pass

def client(kind, size=20_000, value=0.0, **more):
    made = Client(None, told(dp_solution_type=kind, **more))
    made.set_model_params(model(size, value))
    made.on_after_local_training(None, None, None)
    return made.get_model_params()["w"]

def received(kind, norm, **more):  # of a client's weights of that length
    weights, _ = Server(None, told(dp_solution_type=kind, **more)).on_before_aggregation([(1, model(4, norm / 2))])
    return float(weights[0][1]["w"].norm())

def defended(kind, **more):  # whether a defense is called before, at and after the mean
    Server(None, told(enable_dp=False, enable_defense=True, defense_type=kind, **more))
    made = Defender.get_instance()
    return [made.is_defense_before_aggregation(), made.is_defense_on_aggregation(), made.is_defense_after_aggregation()]

def crfl():
    defended("crfl")
    return [float(Defender.get_instance().defender.clip_weight_norm(model(4, 9.0), 2.1)["w"].norm()),
            Defender.get_instance().defender.sigma, Defender.get_instance().defender._crfl_compute_param_for_mnist()]

def scales():
    clip = DP_Clip(told())
    clip.compute_noise((1,), 2.0), clip.compute_noise((1,), 2.0)
    return clip._scale
"""
JAX = """
import json, math, sys
import jax
jax.config.update("jax_enable_x64", True)
from dp_accounting.pld import PLDAccountant
from jax_privacy.experimental.accounting import amplified_bandmf_event
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

def buffered(decay=(0.9,), scale=(0.1,)):
    return buffered_toeplitz.BufferedToeplitz.build(buf_decay=list(decay), output_scale=list(scale))

TWO = buffered((0.95, 0.5), (0.1, 0.25))

def turns(column, count, apart, rounds):
    found = toeplitz.minsep_sensitivity_squared(column, min_sep=apart, max_participations=count, n=rounds)
    return math.sqrt(found)

def root(bands):
    column = toeplitz.optimal_max_error_strategy_coefs(bands)
    return column / jax.numpy.linalg.norm(column)

def epsilon(rate):
    event = amplified_bandmf_event(0.680599, 2000, num_bands=48, sampling_prob=rate)
    return PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(1e-6)
"""
OPENFL = """
import json, sys
import numpy as np
from openfl.pipelines import kc_pipeline, stc_pipeline
from openfl.pipelines.random_shift_pipeline import RandomShiftTransformer

def sparse(values, share):
    return stc_pipeline.SparsityTransformer(share).forward(np.array(values))[0].tolist()

def ternary(values):
    return sorted(map(float, stc_pipeline.TernaryTransformer().forward(np.array(values))[1]["int_to_float"].values()))

def shifted():
    data, metadata = RandomShiftTransformer().forward(np.array([1.0, 2.0]))
    return (data - [float(one) for one in metadata["int_to_float"].values()]).tolist()
"""
TFF = """
import atexit, inspect, json, math, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
# Its workers would keep the output open.
atexit.register(lambda: [one.kill() for one in psutil.Process().children(recursive=True)])
DP, ZEROED = tff.aggregators.DifferentiallyPrivateFactory, tff.learning.dp_aggregator
SHAPE = tf.TensorSpec([20_000])

def played(factory, *rounds):  # what is applied in each round, and the states before and after
    process = factory.create(tff.TensorType(np.float32, [len(rounds[0][0])]))
    states, results = [process.initialize()], []
    for updates in rounds:
        out = process.next(states[-1], [np.asarray(one, np.float32) for one in updates])
        states.append(out.state)
        results.append(np.array(out.result, float))
    return np.array(results), states

def applied(factory, *updates):
    return played(factory, updates)[0][-1].tolist()

def levels(factory, rounds=1):  # the deviation of all that was applied so far, after each round
    made = played(factory, *[[np.zeros(20_000)] * 2] * rounds)[0]
    return [float(one.std()) for one in made.cumsum(0)]

def events(factory):
    found = played(factory, [[0.0]])[1][-1].dp_event
    parts = getattr(found, "events", [found])
    levels = [getattr(one, "noise_multiplier", None) for one in parts]
    return [[one.class_name.decode(), z if z is None else float(z)] for one, z in zip(parts, levels)]

def bound(*norms, z=0.0, count=None, **settings):  # of gaussian_adaptive, after a round of updates so long
    factory = DP.gaussian_adaptive(z, count or len(norms), initial_l2_norm_clip=1.0, **settings)
    state = played(factory, [[one] for one in norms])[1][-1]
    return float(state.query_state.numerator_state.sum_state.l2_norm_clip)

def restarted(rounds):
    factory = DP.tree_adaptive(0.0, 2.0, tf.TensorSpec([1]), restart_warmup=2, restart_frequency=3,
                               clipped_count_stddev=0.0)
    states = played(factory, *[[[5.0]] * 2] * rounds)[1]
    return [float(one.query_state.numerator_state.inner_query_state.sum_state.clip_value) for one in states]

def zeroes_above(*norms):  # the estimate of a noisy aggregator after a round of updates so long
    state = played(ZEROED(1.0, 20.0), [[one] for one in norms])[1][-1]
    return float(state["zeroing_norm"][0].current_estimate)

def defaults(kind):
    return {name: one.default for name, one in inspect.signature(kind).parameters.items()
            if one.default is not inspect.Parameter.empty}
"""
TENSEAL = "nvflare==2.9.0 tenseal==0.3.18"
#: What is installed for a package whose own requirements are many times as large as the part that is asked about.
INSTALLED = {
    "appfl==1.12.0": "appfl==1.12.0 opacus==1.6.0 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 PyYAML==6.0.3 "
    "opt_einsum==3.4.0 --no-deps",
    "fedml==0.9.6": "fedml==0.9.6 --no-deps",
}
SCRIPTS = {
    "tensorflow-federated": TFF,
    "flwr": FLOWER, "nvflare": NVFLARE, TENSEAL: ENCRYPTED, "opacus": OPACUS, "pfl": PFL, "appfl": APPFL,
    "fedml": FEDML, "jax_privacy": JAX, "openfl": OPENFL,
}  # fmt: skip
of_messages = partial(Fact, older={"flwr==1.12.0": ABSENT})
since_28 = partial(Fact, older={"nvflare==2.7.2": ABSENT})
splits = partial(Fact, older={"nvflare==2.7.2": "TypeError"})  # an argument that it does not have
LOCAL, FIXED = "2.2 LocalDpMod", "2.4 fixed clipping"
FACTS: dict[str, list[Fact]] = {
    "flwr": [
        Fact("2.1 one L2 norm over all arrays, factor min(1, C/norm)", "clipped([[3.0], [4.0]], 1.0)", [0.6, 0.8]),
        Fact("2.1 no small number is added to the norm", "clipped([[1e-7]], 1e-7)", [1e-7], 1e-9),
        Fact("2.1 the result is added back: weights travel", "clipped([[13.0]], 1.0, [np.array([10.0])])", [11.0]),
        Fact("2.1 noise is of numpy's global generator", "seeded()", True),
        Fact("2.1 noise keeps the arrays' dtype", "str(noised(np.zeros(9, np.float16), 1.0).dtype)", "float16"),
        Fact("2.1 0-d arrays are never clipped", "clipped([np.array(2.0)], 1.0)", [2.0]),
        Fact("2.1 121 counters after 100 steps shrink the rest to 1/1100",
             "clipped([[1.0], *([np.array(100.0)] * 121)], 1.0)[0]", 1 / 1100),
        Fact("2.1 integer arrays raise once the clip acts", "clipped([np.array([3, 4])], 1.0)", "UFuncTypeError"),
        Fact("2.1 and pass below it", "clipped([np.array([3, 4])], 9.0)", [3.0, 4.0]),
        Fact("2.1 noise on integers is cut to whole numbers", "flat([noised(np.zeros(99, np.int64), 0.15)])",
             [0.0] * 99, older={"flwr==1.12.0": "UFuncTypeError"}),
        Fact("2.1 an update of zeros divides by zero", "clipped([np.zeros(2)], 1.0)", "ZeroDivisionError"),
        of_messages("2.1 local noise of messages leaves 0-d arrays", "sent([[0.0], np.array(0.5)], 1, 2, 8, 1e-5)[1]",
                    0.5),
        of_messages("2.1 central noise of messages reaches them",
                    "means('ServerSideFixedClipping', [np.array(0.5)] * 2, fixed(1.0, 1.0, 2))[0] != 0.5", True),
        Fact("2.1 central noise of the old API reaches them", "old_central([np.array(0.5)], 1.0)[0] != 0.5", True),
        Fact("2.1 local noise of the old API reaches them", "old_local([np.array(7.0)], 1, 2, 8, 1e-5)[0] != 7.0", True,
             older={"flwr==1.12.0": False}),
        Fact("2.1 which are not clipped there", "abs(old_local([np.array(700.0)], 1, 2, 8, 1e-5)[0] - 700.0) < 20",
             True),
        Fact(f"{LOCAL}: before 1.14.0 its noise is made and not used",
             "float(np.std(old_local([np.full(40000, 1e-9)], 1, 2, 8, 1e-5)))", 2 * 4.844805 / 8, 0.02,
             older={"flwr==1.12.0": 0.0}),
        of_messages(f"{LOCAL}: metrics leave as they are",
                    "local([[1.0]], 1, 2, 8, 1e-5, loss=3.25)['metrics']['loss']", 3.25),
        of_messages(f"{LOCAL}: std is sensitivity sqrt(2 ln(1.25/delta))/epsilon",
                    "float(np.std(sent([np.full(40000, 1e-9)], 1, 2, 8, 1e-5)))", 2 * 4.844805 / 8, 0.02),
        of_messages(f"{LOCAL}: replies to evaluation become errors", "evaluated()", "an error"),
        Fact(f"{LOCAL}: takes sensitivity 0, epsilon 0 and delta 0", "mod_of_old(1.0, 0, 0, 0).epsilon", 0),
        Fact(f"{LOCAL}: epsilon 0 divides by zero, which makes infinite noise and no error",
             "math.isinf(old_local([[1.0]], 1.0, 1.0, 0, 1e-5)[0])", True, older={"flwr==1.12.0": False}),
        Fact(f"{LOCAL}: has no defaults", "defaults(mod_of_old)", {}),
        of_messages(f"{FIXED}: noise z C/K' on each entry of the result",
                    "float(np.std(means('ServerSideFixedClipping', [np.full(40000, 1e-9)] * 4, fixed(2.0, 3.0, 12))))",
                    0.5, 0.02),
        of_messages(f"{FIXED}: another number of clients only warns",
                    "means('ServerSideFixedClipping', [[2.0], [2.0]], fixed(0.0, 1.0, 7))", [1.0]),
        of_messages(f"{FIXED}: weights are the clients' own numbers of examples", "weighted()", 1.75),
        of_messages(f"{FIXED}: one error reply skips the round", "failed()", True),
        of_messages(f"{FIXED}: metrics are published without noise", "published()", 2.0),
        of_messages(f"{FIXED}: of clients that clip nothing is checked",
                    "means('ClientSideFixedClipping', [[99.0], [99.0]], fixed(0.0, 1.0, 2))", [99.0]),
        of_messages(f"{FIXED}: noise comes after FedAdam", "float(np.std(after_optimizer(1.0) - after_optimizer(0.0)))",
                    0.5, 0.02),
        of_messages(f"{FIXED}: K = max(int(N fraction), least), without replacement", "sampled()", [20, 20, 4]),
        of_messages(f"{FIXED}: behind a secure mean every client's is clipped: K times the same", "secure(0.0, 4, 4)",
                    1.0),
        *(
            Fact(f"{FIXED}: since 1.42.0 {said}", expression, expected,
                 older={"flwr==1.29.0": BEFORE, "flwr==1.12.0": ABSENT})
            for said, expression, expected in (
                ("an accountant counts 9.01 for adding or removing, 3 rounds at z 1", "counted()", 9.00996),
                ("which for replacing a client is refused", "counted(relation='REPLACE_ONE')", "ValueError: Unsupp"),
                ("and with samples", "counted(relation='REPLACE_ONE', sampling='WITHOUT_REPLACEMENT')",
                 "ValueError: Fixed-clipping"),
                ("and for unequal weights", "counted(numbers=(1, 2))", "ValueError: Accounted"),
                ("and for other strategies", "counted(new.FedAdam())", "ValueError: Fixed-clipping"),
            )
        ),
        Fact("2.5 its defaults", "[v for k, v in defaults(old.DifferentialPrivacyServerSideAdaptiveClipping).items()]",
             [0.1, 0.5, 0.2, None]),
        Fact("2.5 z >= 2 s_b raises, s_b = K'/20: z 1 needs more than 10 clients",
             "dp.compute_adaptive_noise_params(1.0, 10, None)", "ValueError"),
        Fact("2.5 z_D goes by Andrew et al.", "dp.compute_adaptive_noise_params(1.0, 100, None)", [5.0, 1.0050378]),
        Fact("2.5 the bit says clipped",
             "bool(dp.compute_adaptive_clip_model_update([np.full(1, 5.0)], [np.zeros(1)], 1.0))", True),
        Fact("2.5 the deprecated client sends not clipped", "[wrapped(5.0), wrapped(0.5)]", [False, True],
             older={"flwr==1.42.0": "ModuleNotFoundError", "flwr==1.29.0": [False, True]}),
        of_messages("2.5 from 0.1 the bound is .0352 after 10 rounds", "wandering(0.1, 10)", 0.0368, 0.08),
        of_messages("2.5 and 6.5e-4 after 50", "wandering(0.1, 50)", 6.6e-4, 0.15),
        of_messages("2.5 from 1 it runs to 0 or infinity", "abs(math.log(wandering(1.0, 100))) > 5", True),
        of_messages("2.5 noise goes by the next bound", "next_noise()", 1.0, 0.02),
        of_messages("2.5 the share of clipped is not cut to [0, 1]", "unclamped()", True),
        Fact("2.6 its defaults", "[defaults(workflow)[one] for one in ('max_weight', 'clipping_range', "
             "'quantization_range', 'modulus_range')]", [1000.0, 8.0, 2**22, 2**32]),
        Fact("2.6 coordinates are cut to 8 and 2^22", "flat(rounding.quantize([np.array([99.0])], 8, 2**22))",
             [2.0**22]),
        Fact("2.6 rounding is by chance and unbiased",
             "float(np.mean(rounding.quantize([np.full(40000, 16 / 2**22 * 0.25)], 8, 2**22)[0]) - 2**21)", 0.25, 0.05),
        Fact("2.6 a mask has a seed of 32 bits", "folded()", True),
    ],
    "nvflare": [
        Fact("3.1 its defaults", "defaults(PercentilePrivacy)", {"percentile": 10, "gamma": 0.01, "data_kinds": None}),
        Fact("3.1 the example of 11 values", "listed(percentile(w=[*(k / 1000 for k in range(1, 11)), 0.02])['w'])",
             [0.0, *(k / 1000 for k in range(2, 11)), 0.01]),
        Fact("3.1 percentile 10 shares the top 90%",
             "float((percentile(10, 9.0, w=np.linspace(0.001, 1, 1000))['w'] != 0).mean())", 0.9),
        Fact("3.1 one percentile over all tensors, 0-d among them",
             "listed(percentile(50, 9.0, a=[1.0, 2.0], b=[3.0, 4.0], s=5.0)['a'])", [0.0, 0.0]),
        Fact("3.1 0-d values pass", "float(percentile(w=[1.0], s=7.0)['s'])", 7.0),
        Fact("3.1 gamma is for a local step", "listed(percentile(10, 0.01, steps=5, w=[1.0, -1.0])['w'])",
             [0.05, -0.05]),
        Fact("3.1 gamma 0 passes everything", "listed(percentile(10, 0, w=[1.0, 2.0])['w'])", [1.0, 2.0]),
        Fact("3.1 percentile 101 passes everything", "listed(percentile(101, 0.01, w=[1.0, 2.0])['w'])", [1.0, 2.0]),
        Fact("3.1 weights are cut themselves", "listed(percentile(0, kind=DataKind.WEIGHTS, w=[1.0, -2.0])['w'])",
             [0.01, -0.01]),
        Fact("3.1 what is no DXO passes", "no_dxo()", True),
        Fact("3.1 other kinds of data pass", "percentile(kind=DataKind.METRICS, w=[5.0])['w'].tolist()", [5.0]),
        Fact("3.1 no noise", "listed(percentile(w=np.linspace(-1, 1, 99))['w']) == "
             "listed(percentile(w=np.linspace(-1, 1, 99))['w'])", True),
        Fact("3.2 its defaults",
             "[defaults(SVTPrivacy)[one] for one in ('fraction', 'epsilon', 'noise_var', 'gamma', 'tau', "
             "'replace')]", [0.1, 0.1, 0.1, 1e-5, 1e-6, True]),
        Fact("3.2 draws with replacement: 9.06% of n remain distinct", "len(sent(svt()[1]['w'])) / 100_000", 0.0906,
             0.01),
        Fact("3.2 without it c are sent", "len(sent(svt(replace=False)[1]['w']))", 10_000),
        Fact("3.2 noise is Laplace of 2 gamma/noise_var", "float(np.abs(sent(svt(gamma=1.0)[1]['w'])).mean())", 20.0,
             0.03, older={"nvflare==2.7.2": 0.97}),
        Fact("3.2 values are cut before their noise", "float(np.abs(svt(gamma=1.0, value=9.0)[1]['w']).max()) > 1",
             True, older={"nvflare==2.7.2": False}),
        Fact("3.2 0-d values pass", "float(svt(scalar=7.0)[1]['s'])", 7.0),
        Fact("3.2 noise is of numpy's global generator", "svt()[1]['w'].tolist() == svt()[1]['w'].tolist()", True),
        since_28("3.2 the ledger of 61,706 values: 617.2", "svt(61_706)[0].get_privacy_spent()", 617.2),
        since_28("3.2 of 7,033,225 values: 70,332.4", "svt(7_033_225)[0].get_privacy_spent()", 70_332.4),
        since_28("3.2 which sums calls", "svt(61_706, calls=2)[0].get_privacy_spent()", 1234.4),
        since_28("3.2 at delta 0", "[ledger()['delta'], ledger()['scope']]", [0.0, "filter-level"]),
        since_28("3.2 and is reset when a job starts", "after_start()", 0.0),
        since_28("3.2 threshold gets epsilon/(1+(2c)^(2/3))", "ledger()['epsilon_threshold']",
                 0.1 / (1 + 20_000 ** (2 / 3))),
        splits("3.2 or what epsilon_query leaves of epsilon", "ledger(epsilon=1.0, epsilon_query=0.75)"
                 "['epsilon_threshold']", 0.25),
        splits("3.2 which must add up", "ledger(epsilon=1.0, epsilon_query=0.75, epsilon_threshold=0.2)",
                 "ValueError"),
        splits("3.2 and epsilon_release is that of all values together",
                 "[ledger(epsilon_release=5.0)[one] for one in ('epsilon_release', 'epsilon_total')]", [5.0, 5.1]),
        since_28("3.2 0-d values are flagged", "ledger(scalar=7.0)['has_scalar_passthrough']", True),
        since_28("3.2 0-d values count in n", "ledger(zeros=99, scalar=7.0, fraction=0.5)['n_upload']", 50),
        since_28("3.2 at the defaults one pass suffices", "ledger()['acceptance_passes']", 1),
        since_28("3.2 the brats18 settings need 4 passes at 10^6 values",
                 "ledger(zeros=10**6, fraction=0.9, epsilon=21, "
                 "noise_var=2, gamma=1e-4)['acceptance_passes']", 4),
        Fact("3.2 up to 2.7 the choice spends epsilon (2c)^(2/3) on top: 53.4", "svt(61_706)[0].eps_2", ABSENT,
             older={"nvflare==2.7.2": 53.4}),
        Fact("3.3 ExcludeVars takes exact names and reports none that is missing",
             "sorted(filtered(ExcludeVars(['a', 'c']), a=[1.0], ab=[2.0]))", ["ab"]),
        Fact("3.3 a text is searched", "sorted(filtered(ExcludeVars('a'), a=[1.0], ba=[2.0], c=[3.0]))", ["c"]),
        Fact("3.3 nothing excludes nothing",
             "[len(filtered(ExcludeVars(one), a=[1.0], b=[2.0])) for one in (None, '')]", [2, 2]),
        Fact("3.3 float16 cuts to 65504 and rounds to nearest",
             "listed(rounded(np.array([1e9, 1 + 2**-12], np.float32)))", [65504.0, 1.0], 1e-9),
        Fact("3.3 int64 raises", "rounded(np.array([3]))", "ValueError"),
        Fact("3.3 what is as narrow already is left", "str(rounded(np.array([0.1], np.float16)).dtype)", "float16"),
        Fact("3.3 adaquant: 2^ceil(log2 ceil(max(1, sqrt(range bits ln 4/.01)))) - 1 levels",
             "[levels(1.0), levels(0.01)]", [127, 7]),
    ],
    TENSEAL: [
        Fact("3.3 CKKS with degree 8192, bits 60-40-40 and scale 2^40",
             "[builder.poly_modulus_degree, builder.coeff_mod_bit_sizes, builder.scale_bits]",
             [8192, [60, 40, 40], 40]),
        Fact("3.3 all clients hold a secret key, the server none",
             "[one.has_secret_key() for one in (server, client, other)]", [False, True, True]),
        Fact("3.3 it is the same: one client reads what another sent",
             "received(sent(a=[1.0, 2.0], steps=1).data['a'], other).decrypt()", [1.0, 2.0]),
        Fact("3.3 the server reads nothing", "received(sent(a=[1.0]).data['a'], server).decrypt()", "ValueError"),
        Fact("3.3 clients read the exact sum, of values times steps", "total()", [12.0, 21.0], 1e-6),
        Fact("3.3 precision of numbers around 1 is better than 1e-8", "[apart() < 1e-8, apart() > 0]", [True, True]),
        Fact("3.3 all layers are encrypted by default, 0-d ones too", "[kinds(), kinds('')]", [["CKKSVector"] * 3] * 2),
        Fact("3.3 a list leaves the rest in clear", "kinds(['a'])", ["CKKSVector", "ndarray", "ndarray"]),
        Fact("3.3 and so does a regular expression", "kinds('^b')", ["ndarray", "CKKSVector", "ndarray"]),
        Fact("3.3 what is in clear is times steps", "float(sent(['b'], a=[2.0], b=[1.0]).data['a'][0])", 6.0),
        Fact("3.3 steps leave in clear", "sent(a=[1.0]).get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)", 3),
        Fact("3.3 an empty list raises", "kinds([])", "IndexError"),
        Fact("3.3 names that no layer has raise", "[len(kinds(['other']))]", "ValueError"),
    ],
    "opacus": [
        Fact("4 factor min(1, C/(norm + 1e-6))", "[factor(1e-6, 1e-6), factor(4.0, 1.0), factor(0.5, 1.0)]",
             [0.5, 0.25, 1.0]),
        Fact("4 noise sigma C on the sum, divided by int(n q)",
             "deviation(noise_multiplier=1.5, max_grad_norm=2.0) * 16", 3.0, 0.01),
        Fact("4 a sum is not divided", "deviation(noise_multiplier=1.5, max_grad_norm=2.0, loss_reduction='sum')", 3.0,
             0.01),
        Fact("4 BatchNorm is refused", "norms()", "UnsupportedModuleError"),
        Fact("4 q = 1/ceil(n/b)", "rate(500, 32)", 1 / 16),
        Fact("4 floor with drop_last, which is then ignored", "rate(500, 32, drop_last=True)", 1 / 15),
        Fact("4 the divisor is int(n q)", "[expected(one, 32) for one in (499, 500, 501, 511, 512)]",
             [31, 31, 31, 31, 32]),
        Fact("4 10 examples in batches of 32: all of them in every step", "[rate(10, 32), expected(10, 32)]",
             [1.0, 10]),
        Fact("4 with drop_last there is no batch", "rate(10, 32, drop_last=True)", "ZeroDivisionError"),
        Fact("4 nor is there one without Poisson sampling",
             "rate(10, 32, drop_last=True, poisson_sampling=False)", "ZeroDivisionError"),
        Fact("4 141 lengths below 2,000 give one step less", "odd_lengths()", [141, 93, 99, 105, 117, 123, 186]),
        Fact("4 of which the accountant uses 1/(length - 1)", "rate(93, 1)", 1 / 92),
        Fact("4 empty batches get noise too", "float(stepped(torch.zeros(0, 400))[1][0].std()) * 16", 1.0, 0.01),
        Fact("4 per_layer: noise by sqrt(sum C_i^2)", "layers([1.0, 2.0])", 5**0.5, 0.01),
        Fact("4 a list of other length is refused", "layers([1.0])", "AssertionError"),
        Fact("4 ghost: the same law", "[float(ghost(torch.zeros(16, 400), sigma=1.5, bound=2.0).std()), "
             "float(ghost(torch.tensor([[4.0], [0.5]]), 1.0, 0.0, module=one_weight()))]", [3.0, 1.5], 0.01),
        Fact("4 adaptive: the accountant is fed z since 1.6.0",
             "adaptive(torch.zeros(16, 400))[0].accountant.history[0][0]", 1.0, older={"opacus==1.5.4": 1.809068}),
        Fact("4 adaptive: noise is z_D", "float(adaptive(torch.zeros(16, 400))[1][0].std())", 1.809068, 0.01),
        Fact("4 adaptive: an empty batch fails", "adaptive(torch.zeros(0, 400))", "RuntimeError"),
        Fact("4 adaptive: the share is of the private size of the batch",
             "[adaptive(torch.zeros(size, 400))[2].sample_size "
             "for size in (3, 16)]", [3, 16]),
        Fact("4 the orders of rdp", "[len(RDPAccountant.DEFAULT_ALPHAS), min(RDPAccountant.DEFAULT_ALPHAS), "
             "max(RDPAccountant.DEFAULT_ALPHAS), 11.0 in RDPAccountant.DEFAULT_ALPHAS]", [151, 1.1, 63, False]),
        Fact("4 rdp of 960 steps: 15.1518, not 15.2507", "reported('rdp', (1.0, 1 / 16, 960))", 15.15181, 1e-5),
        Fact("4 rdp of 48 steps: 3.7987", "reported('rdp', (1.0, 1 / 16, 48))", 3.7987),
        Fact("4 rdp with drop_last: 15.7547, not 15.8622", "reported('rdp', (1.0, 1 / 15, 900))", 15.75470, 1e-5),
        Fact("4 gdp of 16 steps: 1.247, below what holds", "reported('gdp', (1.0, 1 / 16, 16))", 1.247),
        Fact("4 gdp of 960 steps: 13.464", "reported('gdp', (1.0, 1 / 16, 960))", 13.464),
        Fact("4 prv of 16 steps: 2.2423 and .01", "reported('prv', (1.0, 1 / 16, 16))", 2.2423 + 0.01, 2e-3),
        Fact("4 prv of 960 steps: 13.9406 and .01", "reported('prv', (1.0, 1 / 16, 960))", 13.9406 + 0.01, 1e-3),
        Fact("4 prv of Flower's example, one round: .6139", "reported('prv', (1.0, 1 / 125, 125))", 0.6139 + 0.01,
             0.01),
        Fact("4 prv of sigma 1.5: .2540", "reported('prv', (1.5, 1 / 125, 125))", 0.2540 + 0.01, 0.01),
        Fact("4 without Poisson sampling it still counts it", "rate(500, 32, poisson_sampling=False)", 1 / 16),
        Fact("4 one engine counts all rounds", "kept(True)", 2),
        Fact("4 a new engine forgets", "kept(False)", 1),
        Fact("4 make_private_with_epsilon finds sigma for int(epochs/q) steps", "searched()", 1.0, 0.02),
    ],
    "pfl": [
        Fact("7 L2 over all statistics", "clipped(GaussianMechanism(1.0, 1.0), [3.0], [4.0])", [0.6, 0.8]),
        Fact("7 noise C z on the sum", "float(noise(GaussianMechanism(3.0, 0.5)).std())", 1.5, 0.02),
        Fact("7 construct_single_iteration is the exact Gaussian",
             "[GaussianMechanism.construct_single_iteration(1.0, one, 1e-5).relative_noise_stddev for one in (1, 8)]",
             [3.730632, 0.600229], 1e-4),
        Fact("7 Laplace: L1", "clipped(LaplaceMechanism(1.0, 2.0), [3.0], [1.0])", [0.75, 0.25]),
        Fact("7 Laplace: scale C/epsilon", "float(np.abs(noise(LaplaceMechanism(3.0, 2.0))).mean())", 1.5, 0.02),
        Fact("7 the same seed of the server makes the same noise", "(noise(GaussianMechanism(3.0, 0.5), 9) == "
             "noise(GaussianMechanism(3.0, 0.5), 9)).all().item()", True),
        Fact("7 cohorts cycle through the users: no Poisson samples",
             "(lambda sampler: [sampler() for _ in range(6)])(MinimizeReuseUserSampler([1, 2, 3]))",
             [1, 2, 3, 1, 2, 3]),
        Fact("7 noise_scale is 1 by default", "accountant(1.0, 1, 1.0).noise_scale", 1.0),
        Fact("7 CIFAR: sigma .4674 is epsilon 2", "accountant(0.46743, 1500, 1e-4).epsilon", 2.0, 2e-3),
        Fact("7 of which 50 clients get .0234", "accountant(0.46743, 1, 1.0, noise_scale=0.05).cohort_noise_parameter",
             0.02337),
        Fact("7 LM: sigma .8639 is epsilon 2", "accountant(0.86390, 2000, 0.005).epsilon", 2.0, 2e-3),
        Fact("7 adaptive: bound C/sqrt(1-r^2), bit C r/sqrt(1-r^2)",
             "[adaptive(5.0)._get_overall_clipping_bound(), adaptive(5.0)._get_clipping_indicator_scale()]",
             [2 / 0.96**0.5, 0.4 / 0.96**0.5]),
        Fact("7 adaptive: with the share of unclipped above its quantile the bound falls", "moved(1.0)", 2 * 0.904837),
        Fact("7 banded: ceil(T/b) compositions, b - 1 bands; rows have length 1, not columns", "banded(10, 4)",
             [3, 3, 1.0, True]),
        Fact("7 banded LM: it counts 42 at that rate: sigma .6806 is epsilon 2",
             "accountant(0.68060, 42, 0.005).epsilon", 2.0, 2e-3),
    ],
    "appfl": [
        Fact("6 Laplace noise of 2 clip_value lr / epsilon on the weights",
             "sent(size=20_000)['weight'].abs().mean().item()", 0.25, 0.03),
        Fact("6 which is the default mechanism; gaussian: by the classical formula at 1e-5",
             "sent(size=20_000, dp_mechanism='gaussian')['weight'].std().item()",
             math.sqrt(2 * math.log(1.25e5)) / 4, 0.03),
        Fact("6 buffers leave raw", "sent(dp_mechanism='gaussian')['mean'].tolist()", [3.0] * 9),
        Fact("6 without clip_grad nothing is clipped", "sent(100.0, **EXACT)['weight'].norm().item()", 100.0),
        Fact("6 with it each step's gradient is, by clip_norm as the order of the norm",
             "[sent(100.0, clip_grad=True, clip_norm=one, **EXACT)['weight'].norm(one).item() for one in (1, 2)]",
             [0.5, 0.5]),
        Fact("6 several steps move weights by several clips",
             "sent(100.0, clip_grad=True, num_local_steps=3, **EXACT)['weight'].norm().item()", 1.5),
        Fact("6 mode epoch reads num_local_epochs alone",
             "sent(1.0, mode='epoch', num_local_epochs=3, num_local_steps=9, **EXACT)['weight'].mean().item()", -6.0),
        Fact("6 mode step num_local_steps alone",
             "sent(1.0, num_local_epochs=9, num_local_steps=2, **EXACT)['weight'].mean().item()", -1.0),
        Fact("6 a mask has deviation 1", "mask().std().item()", 1.0, 0.03),
        Fact("6 any client's secret takes another's mask off", "unmasked()[-9:].abs().max().item() < 1e-5", True),
        Fact("6 masked updates carry no noise at all", "(unmasked()[:-9] + 1).abs().max().item() < 1e-5", True),
    ],
    "fedml": [
        Fact("9 nbafl and dp_clip never act", "[client(one).abs().max().item() for one in ('nbafl', 'dp_clip')]",
             [0.0, 0.0]),
        Fact("9 nor do they at the server", "[received(one, 100.0, max_grad_norm=1.0) for one in ('nbafl', 'dp_clip')]",
             [100.0, 100.0]),
        Fact("9 ldp: Gaussian noise by the classical formula, 4.4951", "client('ldp').std().item()", 4.4951, 0.03),
        Fact("9 which nothing clips", "client('ldp', value=1e6).mean().item()", 1e6),
        Fact("9 cdp clips weights, and only with max_grad_norm",
             "[received('cdp', 100.0), received('cdp', 100.0, max_grad_norm=1.0)]", [100.0, 1.0]),
        Fact("9 epsilon above 1 is refused", "client('ldp', epsilon=2.0)", "ValueError"),
        Fact("9 Laplace: scale sensitivity/(epsilon - ln(1 - delta))",
             "DPMechanism('laplace', 0.5, 0.1, 1.0).get_rdp_scale()", 1 / (0.5 - math.log(0.9))),
        Fact("9 names are not cut to small letters", "client('LDP')", "Exception: dp solution is not defined"),
        Fact("9 dp_clip's scale is divided anew for every tensor", "scales()", 0.25),
        Fact("9 and its server step returns nothing", "DP_Clip(told()).add_global_noise(model(2))", None),
        Fact("9 weak_dp and robust_learning_rate are accepted and never called",
             "[defended(one) for one in ('weak_dp', 'robust_learning_rate')]", [[False] * 3] * 2),
        Fact("9 cdp with its RDP accountant raises",
             "Server(None, told(dp_solution_type='cdp', enable_rdp_accountant=True, rdp_alpha=2.0))", "TypeError"),
        Fact("9 Soteria cannot be selected", "defended('soteria')", "Exception: args.defense_type is not defined"),
        Fact("9 nor can WBC", "defended('wbc')", "Exception: args.defense_type is not defined"),
        Fact("9 crfl scales the global weights to .1 t + 2 and adds sigma .01", "crfl()", [2.1, 0.01, 2.1]),
    ],
    "jax_privacy": [
        Fact("8 BLT: c_0 = 1, c_t = sum w th^(t-1)", "buffered().toeplitz_coefs(4).tolist()", [1.0, 0.1, 0.09, 0.081]),
        Fact("8 BLT: once in 1,000 rounds S 1.025978",
             "math.sqrt(buffered_toeplitz.sensitivity_squared(buffered(), 1000))", 1.025978, 1e-6),
        Fact("8 BLT: 10 times, 100 apart, 3.244440", "turns(buffered().toeplitz_coefs(1000), 10, 100, 1000)", 3.244440,
             1e-6),
        Fact("8 BLT of two buffers: 1.131873", "math.sqrt(buffered_toeplitz.sensitivity_squared(TWO, 1000))", 1.131873,
             1e-6),
        Fact("8 and 3.583116", "turns(TWO.toeplitz_coefs(1000), 10, 100, 1000)", 3.583116, 1e-6),
        Fact("8 banded: square-root coefficients", "toeplitz.optimal_max_error_strategy_coefs(4).tolist()",
             [1.0, 0.5, 0.375, 0.3125]),
        Fact("8 banded: bands apart, k turns cost sqrt(k)", "turns(root(8), 10, 8, 80)", math.sqrt(10), 1e-6),
        Fact("8 banded: ceil(T/b) compositions on samples of groups, at 48 times the rate: 24.966", "epsilon(0.24)",
             24.966, 1e-3),
    ],
    "tensorflow-federated": [
        Fact("8 gaussian_fixed: sum of clipped updates over a fixed number of clients",
             "applied(DP.gaussian_fixed(0.0, 8.0, 1.0), [3.0, 4.0], [0.1, 0.0])", [0.7 / 8, 0.8 / 8]),
        Fact("8 gaussian_fixed: noise z clip on the sum", "levels(DP.gaussian_fixed(2.0, 8.0, 3.0))", [6 / 8], 0.02),
        Fact("8 gaussian_fixed: its event is that Gaussian", "events(DP.gaussian_fixed(2.0, 8.0, 3.0))",
             [["GaussianDpEvent", 2.0]]),
        Fact("8 gaussian_adaptive: initial .1, quantile .5, rate .2", "defaults(DP.gaussian_adaptive)",
             {"initial_l2_norm_clip": 0.1, "target_unclipped_quantile": 0.5, "learning_rate": 0.2,
              "clipped_count_stddev": None}),
        Fact("8 gaussian_adaptive: counts unclipped updates: the bound falls where all are", "bound(0.5, 0.5)",
             math.exp(-0.1)),
        Fact("8 gaussian_adaptive: and rises where none is", "bound(5.0, 5.0)", math.exp(0.1)),
        Fact("8 gaussian_adaptive: counts 1/2 and -1/2, of a fixed number", "bound(0.5, count=2.0)", math.exp(-0.05)),
        Fact("8 gaussian_adaptive: the share is cut to [0, 1]",
             "abs(math.log(bound(0.5, z=1.0, clipped_count_stddev=1e6)))", 0.1),
        Fact("8 gaussian_adaptive: count noise .05 m, and both together cost z",
             "events(DP.gaussian_adaptive(1.0, 20.0))",
             [["GaussianDpEvent", (1 - 1 / 4) ** -0.5], ["GaussianDpEvent", 2.0]]),
        Fact("8 gaussian_adaptive: noise by the old bound", "levels(DP.gaussian_adaptive(1.0, 20.0))",
             [0.1 * (1 - 1 / 4) ** -0.5 / 20], 0.02),
        Fact("8 gaussian_adaptive: z >= 2 s_b raises", "events(DP.gaussian_adaptive(1.0, 10.0))", "ValueError"),
        Fact("8 dp_aggregator: zeroing is on", "defaults(ZEROED)", {"zeroing": True}),
        Fact("8 dp_aggregator: its threshold is 2 x + 1, at first 21: of 25 and 1 one is left",
             "applied(ZEROED(0.0, 2.0), [25.0], [1.0])", [0.1 / 2]),
        Fact("8 dp_aggregator: quantile .98 and rate ln 10, without noise: one of two clients moves it",
             "[zeroes_above(1.0, 1.0), zeroes_above(25.0, 1.0)]", [10 * 10**-0.02, 10 * 10**0.48]),
        Fact("8 tree_aggregation: a node has noise z C, and sums of rounds the least that follows from the nodes",
             "levels(DP.tree_aggregation(2.0, 4.0, 3.0, SHAPE), 4)",
             [1.5, 1.5 * (2 / 3) ** 0.5, 1.5 * (5 / 3) ** 0.5, 1.5 * (4 / 7) ** 0.5], 0.03),
        Fact("8 tree_aggregation: with use_efficient=False that of the nodes themselves",
             "levels(DP.tree_aggregation(2.0, 4.0, 3.0, SHAPE, use_efficient=False), 4)",
             [1.5, 1.5, 1.5 * 2**0.5, 1.5], 0.03),
        Fact("8 tree_aggregation: no accounting in code",
             "events(DP.tree_aggregation(2.0, 4.0, 3.0, tf.TensorSpec([1])))", [["UnsupportedDpEvent", None]]),
        Fact("8 tree_adaptive: warmup 128, restarts every 1024",
             "[defaults(DP.tree_adaptive)[one] for one in ('restart_warmup', 'restart_frequency')]", [128, 1024]),
        Fact("8 tree_adaptive: the clip changes at restarts only", "restarted(6)",
             [0.1, 0.1, *[0.1 * math.exp(0.2)] * 3, *[0.1 * math.exp(0.5)] * 2]),
        Fact("8 tree_adaptive: the count has a tree of its own inside z", "levels(DP.tree_adaptive(0.5, 40.0, SHAPE))",
             [0.1 * (4 - 1 / 16) ** -0.5 / 40], 0.03),
    ],
    "openfl": [
        Fact("5 STC keeps the top share of each tensor", "sparse([3.0, 1.0, 0.5, 0.2, 0.1], 0.4)",
             [3.0, 1.0, 0.0, 0.0, 0.0]),
        Fact("5 and adds 1e-7 to all where one is negative", "sparse([0.5, -0.25, 0.125, 0.0, 0.0], 0.4)[1]",
             -0.25 + 1e-7, 5e-8),
        Fact("5 then +- the mean over all entries, zeros among them", "ternary([3.0, -1.0] + [0.0] * 8)",
             [-0.4, 0.0, 0.4]),
        Fact("5 KC: 6 clusters", "len(set(kc_pipeline.KmeansTransformer().forward(np.arange(99.0))[0].ravel()))", 6),
        Fact("5 RandomShift sends the shift beside: the identity", "shifted()", [1.0, 2.0], 1e-5),
    ],
}  # fmt: skip
NEWEST = {one.source.partition(",")[0].replace(" ", "==") for one in FILTERS.values() if one.ran}
OLDER = ("flwr==1.29.0", "flwr==1.12.0", "nvflare==2.7.2", "opacus==1.5.4")


@pytest.mark.parametrize("package", [*sorted(NEWEST), *OLDER, TENSEAL, "openfl==1.9"])
def test_facts_about_a_package(package: str, python_with: Callable[[str], Path]) -> None:
    name = package if package in FACTS else package.partition("==")[0]
    versions = dict(one.split("==") for one in package.split())
    checked = (
        f"from importlib.metadata import version; assert {versions} == {{one: version(one) for one in {versions}}}"
    )
    code = f"{checked}\n{SCRIPTS[name]}{RUNNER}"
    asked = json.dumps([(one.said, one.expression) for one in FACTS[name]])
    python = python_with(INSTALLED.get(package, package))
    done = subprocess.run([python, "-c", code], input=asked, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    refuted = []
    for one in FACTS[name]:
        good = one.confirmed(package, found[one.said])
        print(f"{package}: {one.said}: {'confirmed' if good else 'refuted'} ({found[one.said]!r:.80})", file=sys.stderr)
        refuted += [] if good else [(one.said, found[one.said])]
    assert not refuted
