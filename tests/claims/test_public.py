"""Configurations of public projects: their settings, the place where they were read, and the line that is right.

None of their text is here. Numbers are computed by hand: mu, or the second computations of conftest.py.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Harness = Callable[..., Any]

FLOWER = """
[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"
[tool.flwr.app.config]
noise-multiplier = 0.2
clipping-norm = 10
num-sampled-clients = 20
[tool.flwr.federations.simulation]
options.num-supernodes = 100
"""
SERVER = """
sampled = context.run_config["num-sampled-clients"]
share = 0.2
strategy = FedAvg(fraction_fit=share, min_fit_clients=int(sampled * share))
noise, bound = context.run_config["noise-multiplier"], 0
strategy = DifferentialPrivacyClientSideFixedClipping(
    strategy, noise_multiplier=context.run_config["noise-multiplier"],
    clipping_norm=context.run_config["clipping-norm"], num_sampled_clients=sampled)
config = ServerConfig(num_rounds=3)
workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=7, reconstruction_threshold=4))
"""
FLIP = """
[tool.flwr.app.config]
num-server-rounds = 3
dp-enabled = true
dp-clipping-norm = 1.0
dp-sensitivity = 1e-4
dp-epsilon = 10.0
dp-delta = 1e-5
"""
APPFL = """
client_configs:
  train_configs:
    mode: "step"
    num_local_steps: 50
    optim: "Adam"
    optim_args:
      lr: 0.001
    use_dp: True
    epsilon: 1
    clip_grad: False
    clip_value: 1
    clip_norm: 1
    train_batch_size: 4
server_configs:
  scheduler_kwargs:
    num_clients: 2
  num_global_epochs: 10
"""
FEDML = """
train_args:
  client_num_in_total: 1000
  client_num_per_round: 2   # of all
  comm_round: 5
  epochs: 1
  batch_size: 10
  client_optimizer: sgd
dp_args:
  enable_dp: true
  dp_solution_type: {}
  epsilon: 0.5
  delta: 0.1
"""
OPENFL = """
differential_privacy:
  noise_multiplier: 0.1
  clip_norm: 1.0
  clip_frequency: 1
  sample_rate: 0.5
  delta: 0.00001
"""
BRATS = """{"task_result_filters": [{"tasks": ["train"], "filters": [
  {"path": "nvflare.app_common.filters.svt_privacy.SVTPrivacy",
   "args": {"fraction": 0.9, "epsilon": 0.001, "noise_var": 1.0, "gamma": 1e-4}}]}], "task_data_filters": []}"""
STAMP = """
{
  format_version = 2
  task_data_filters = []
  task_result_filters = [
    {
      tasks = ["train"]  # and no other
      filters = [
        {
          path = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
          args {
            percentile = 10
            gamma = 0.01
          }
        }
      ]
    }
  ]
}
"""
PLAIN = '{"format_version": 2, "task_result_filters": [], "task_data_filters": [], "components": []}'
THESIS = """
class Client:
    def __init__(self, model, loader):
        self.engine = PrivacyEngine()
        self.model, self.optimizer, self.loader = self.engine.make_private(
            module=model, optimizer=self.optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0)
"""
EXAMPLE = """
class Client:
    def fit(self, parameters, config):
        engine = PrivacyEngine(secure_mode=False)
        model, optimizer, self.loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=self.loader, noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm)
"""
CLASSICAL = math.sqrt(2 * math.log(1.25e5))
THREE = "--examples 4000 --batch-size 32 --local-epochs 1 --rounds 3 --arg noise_multiplier=1.0"
Lines = list[tuple[str, int, tuple[Any, ...] | None]]
#: repository, path, commit; the file's name, its settings, options; exit code; relation, rounds, second computation
PUBLIC: list[tuple[str, str, str, str, str, str, int, Lines]] = [
    ("adap/flower", "examples/fl-dp-sa/pyproject.toml", "0087631796f3", "pyproject.toml", FLOWER, "--weights equal", 0,
     [("replace", 3, ("gaussian", 10 * math.sqrt(3))), ("zero-out", 3, ("gaussian", 5 * math.sqrt(3)))]),
    ("adap/flower", "examples/opacus/opacus_fl/client_app.py", "09ed383c75b4", "client.py", EXAMPLE, THREE, 1,
     [("zero-out", 3, ("poisson", 1, 1 / 125, 375)), ("zero-out", 1, ("poisson", 1, 1 / 125, 125))]),
    ("londonaicentre/FLIP", "fl-tutorials/flower/xray_classification/pyproject.toml", "0d88a97cd918", "pyproject.toml",
     FLIP, "--scalars 0", 1, [("replace", 1, ("gaussian", 2 / (1e-4 * CLASSICAL / 10))),
                              ("replace", 3, ("gaussian", math.sqrt(3) * 2 / (1e-4 * CLASSICAL / 10)))]),
    ("APPFL/APPFL", "examples/bench/configs/privacy/heart_server.yaml", "17efc1d7160e", "server.yaml", APPFL, "", 1,
     [("replace", 1, None), ("replace", 10, None)]),
    ("FedML-AI/FedML", "python/examples/federate/privacy/mpi_fedavg_dp_mnist_lr_example/config/nbafl/fedml_config.yaml",
     "452d01b2b38b", "fedml_config.yaml", FEDML.format("nbafl"), "", 1, [(None, 5, None)]),
    ("FedML-AI/FedML", "python/examples/federate/privacy/mqtt_s3_fedavg_cdp_mnist_lr_example/config/fedml_config.yaml",
     "99aa2b968a84", "fedml_config.yaml", FEDML.format("cdp"), "", 1, [(None, 5, None)]),
    ("FedML-AI/FedML", "python/examples/federate/privacy/mqtt_s3_fedavg_ldp_mnist_lr_example/config/fedml_config.yaml",
     "452d01b2b38b", "fedml_config.yaml", FEDML.format("ldp"), "", 1, [(None, 5, None)]),
    ("securefederatedai/openfl", "openfl-tutorials/experimental/Global_DP/test_config.yml", "3b092bbc42a1",
     "test_config.yml", OPENFL, "--rounds 10", 1, [("zero-out", 10, ("accounted", 0.1, 0.5, 10)),
                                                   ("zero-out", 10, None)]),
    ("NVIDIA/NVFlare", "examples/advanced/brats18/configs/brats_fedavg_dp/app/config/config_fed_client.json",
     "6feaa783509d", "config_fed_client.json", BRATS, "--parameters 1000000 --scalars 0", 0,
     [("replace", 1, ("plain", 900_000.00111))]),
    ("KatherLab/MediSwarm", "application/jobs/STAMP_classification/app/config/config_fed_client.conf", "00a298cf1e80",
     "config_fed_client.conf", STAMP, "", 0, [(None, 1, None)]),
    ("antoniodev0/FL-DP-Tesi", "client.py", "2fd2e09df603", "client.py", THESIS,
     "--examples 9600 --batch-size 32 --local-epochs 1 --rounds 3", 0,
     [("zero-out", 1, ("poisson", 1.1, 1 / 300, 300)), ("zero-out", 3, ("poisson", 1.1, 1 / 300, 900))]),
    ("Hamster-yang/FL_chest-xray_timm", "app/config/config_fed_client.json", "ef84d6a0bac5", "config_fed_client.json",
     PLAIN, "", 2, []),
]  # fmt: skip


@pytest.mark.parametrize("project", range(len(PUBLIC)), ids=[f"{one[0]}-{one[1][-24:]}" for one in PUBLIC])
def test_a_public_configuration_gets_a_right_line(harness: Harness, tmp_path: Path, second: Any, project: int) -> None:
    *_, name, settings, options, code, lines = PUBLIC[project]
    (tmp_path / name).write_text(settings)
    if settings == FLOWER:
        (tmp_path / "app").mkdir()
        (tmp_path / "app" / "server.py").write_text(SERVER)
        (tmp_path / "app" / "client.py").write_text("app = ClientApp(mods=[secaggplus_mod, fixedclipping_mod])\n")
    finished = harness("claims", str(tmp_path / name), *options.split(), "--json")
    assert finished.code == code
    rows = json.loads(finished.out)["rows"] if lines else []
    for relation, rounds, way in lines:
        found = [row["epsilon"] for row in rows if (row["adjacency"], row["rounds"]) == (relation, rounds)]
        if way is None:
            assert None in found
        else:
            expected = getattr(second, way[0])(*way[1:])
            assert any(
                one == pytest.approx(expected, rel=1e-3 if way[0] != "gaussian" else 1e-4) for one in found if one
            )
