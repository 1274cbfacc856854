"""The 12 worked cases, by the command itself: each number as it was derived by hand, and by a second computation.

A number is a field of a row of ``--json``: its relation, rounds and delta name the row. Within 1e-4, and 1e-3 where
samples are counted.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, RoundContext

Harness = Callable[..., Any]
CLOSED, SAMPLES = 1e-4, 1e-3
Number = tuple[str, str, int, float, float, Any]

LOCAL = "flower:LocalDpMod --arg clipping_norm=1 --arg sensitivity={} --arg epsilon={} --arg delta=1e-5 {}"
ENGINE = "opacus:PrivacyEngine --arg noise_multiplier={} --unit example {}"
HOSPITAL = "--examples 500 --batch-size 32 --local-epochs 3 --rounds 20"
FLOWERS = "--examples 4000 --batch-size 32 --local-epochs 1 --rounds 3 --arg engine=per-round"
SVT = "nvflare:SVTPrivacy --scalars 0 --parameters {}"
DP_SA = """
[tool.flwr.app.components]
serverapp = "app.server:app"
clientapp = "app.client:app"
[tool.flwr.app.config]
num-server-rounds = 3
noise-multiplier = 0.2
clipping-norm = 10
num-sampled-clients = 20
[tool.flwr.federations.simulation]
options.num-supernodes = {}
"""
SERVER = """
config = context.run_config
strategy = FedAvg(fraction_fit=0.2, min_fit_clients=int(config["num-sampled-clients"] * 0.2))
strategy = DifferentialPrivacyClientSideFixedClipping(strategy, noise_multiplier=config["noise-multiplier"],
    clipping_norm=config["clipping-norm"], num_sampled_clients=config["num-sampled-clients"])
"""
CLIENT = "app = ClientApp(mods=[fixedclipping_mod])\n"
FLIP = "[tool.flwr.app.config]\ndp-enabled = true\n"
CONF = """task_result_filters = [{ tasks = ["train"], filters = [{
  path = "nvflare.app_common.filters.%s"
  args {} }] }]"""
JSON = '{"task_result_filters": [{"tasks": ["train"], "filters": [{"path": "nvflare.app_common.filters.%s"}]}]}'
PERCENTILE = "percentile_privacy.PercentilePrivacy"


def deviation(sensitivity: float, epsilon: float) -> float:
    return sensitivity * math.sqrt(2 * math.log(1.25e5)) / epsilon


def gauss(mu: float, rounds: int = 1, delta: float = 1e-5) -> tuple[Any, ...]:
    return "gaussian", math.sqrt(rounds) * mu, delta


def spent(mu: float, epsilon: float) -> tuple[Any, ...]:
    return "gaussian_delta", mu, epsilon


def adaptive(bit: float) -> float:
    """Mu of a round of Flower's adaptive rule, z 1 of 100 clients, where the noisy share of clipped is ``bit``."""
    vector = 1 / math.sqrt(1 - 0.1**2)
    return math.hypot(2 / (vector * math.exp(-0.2 * (bit - 0.5))), 1 / 5)


def choice(numbers: int, count: int, each: float) -> float:
    """What SVT's choice costs: epsilon 0.1 in all, of which so many parts go to each of the values."""
    threshold = 0.1 / (1 + (2 * count) ** (2 / 3))
    return threshold * (each == 1) + numbers * (0.1 - threshold) / count * each


def svt(numbers: int, count: int, per: float) -> list[Number]:
    """The pure epsilon, that of one pass, and what the ledger says; ``per`` is epsilon at delta 1e-5."""
    pure, once = (0.1 * count + choice(numbers, count, each) for each in (1.0, 0.5))
    return [
        ("claimed_epsilon 0", "replace", 1, 0.1 + 0.1 * count, CLOSED, ("plain", 0.1 + 0.1 * count)),
        ("epsilon 0", "replace", 1, {6171: 618.098, 703_323: 70_333.3}[count], 1e-6, ("plain", pure)),
        ("epsilon 1e-9", "replace", 1, {6171: 617.599, 703_323: 70_332.8}[count], 1e-6, ("plain", once)),
        ("epsilon", "replace", 1, per, SAMPLES, ("laplace", 0.1, count, 1e-5, choice(numbers, count, 0.5))),
    ]


EPSILON, CLAIMED, LOST = "epsilon", "claimed_epsilon", "delta_at_claimed_epsilon"
#: files, command, exit code, numbers, words of the output
WORKED: dict[str, tuple[dict[str, str], str, int, list[Number], list[str]]] = {
    "1": ({}, LOCAL.format(2, 8, "--scalars 0 --rounds 20"), 0, [
        (CLAIMED, "replace", 1, 8, CLOSED, ("plain", 8.0)),
        (EPSILON, "replace", 1, 7.91437, CLOSED, gauss(2 / deviation(2, 8))),
        (LOST, "replace", 1, 7.9706e-6, CLOSED, spent(2 / deviation(2, 8), 8)),
        (EPSILON, "replace", 20, 57.9734, CLOSED, gauss(2 / deviation(2, 8), 20)),
        (EPSILON, "zero-out", 1, 3.51118, CLOSED, gauss(1 / deviation(2, 8))),
    ], ["claim holds"]),
    "2": ({}, LOCAL.format(2, 10, "--scalars 0"), 1, [
        (EPSILON, "replace", 1, 10.39388, CLOSED, gauss(2 / deviation(2, 10))),
        (LOST, "replace", 1, 2.2654e-5, CLOSED, spent(2 / deviation(2, 10), 10)),
    ], ["holds up to epsilon 8.419"]),  # up to 8.41977: a claim of 8.42 is exceeded
    "3": ({}, LOCAL.format(1, 1, "--scalars 0 --rounds 20"), 1, [
        (EPSILON, "replace", 1, 1.61032, CLOSED, gauss(2 / deviation(1, 1))),
        (EPSILON, "replace", 20, 9.0625, CLOSED, gauss(2 / deviation(1, 1), 20)),
        (EPSILON, "zero-out", 1, 0.75098, CLOSED, gauss(1 / deviation(1, 1))),
        (EPSILON, "zero-out", 20, 3.9908, CLOSED, gauss(1 / deviation(1, 1), 20)),
    ], ["sensitivity 1 is below 2 clipping_norm = 2"]),
    "4": ({}, LOCAL.format(2, 8, "--model resnet18 --rounds 20"), 1, [
        (EPSILON, "replace", 1, math.nan, CLOSED, ("nothing",)),
        ("would_be", "replace", 1, 7.91437, CLOSED, gauss(2 / deviation(2, 8))),
        ("would_be", "replace", 20, 57.9734, CLOSED, gauss(2 / deviation(2, 8), 20)),
    ], ["20 0-d arrays leave without clip, and in messages without noise"]),
    "5": ({"pyproject.toml": FLIP}, "pyproject.toml --scalars 0 --rounds 10", 1, [
        (CLAIMED, "replace", 1, 10, CLOSED, ("plain", 10.0)),
        (EPSILON, "replace", 1, 8.52250e8, CLOSED, gauss(2 / deviation(1e-4, 10))),
        (EPSILON, "zero-out", 1, 2.13107e8, CLOSED, gauss(1 / deviation(1e-4, 10))),
        (EPSILON, "replace", 10, 8.5213e9, CLOSED, gauss(2 / deviation(1e-4, 10), 10)),
    ], []),
    **{f"6, {nodes} nodes, {weights}": (
        {"pyproject.toml": DP_SA.format(nodes), "app/server.py": SERVER, "app/client.py": CLIENT},
        f"pyproject.toml --weights {weights} --scalars 0", 0, [
            (EPSILON, relation, 3, found, CLOSED, gauss(factor * largest * 20 / 0.2, 3))
            for relation, found, factor in lines
        ], []) for nodes, weights, largest, lines in (
            (100, "equal", 1 / 20, [("replace", 222.977, 2), ("zero-out", 73.623, 1)]),
            (10, "equal", 1 / 4, [("replace", 4118.37, 2), ("zero-out", 1121.22, 1)]),
            (100, "private", 1, [("replace", 61_476.4, 2)]),
    )},
    "7": ({}, "flower:ServerSideAdaptiveClipping --arg noise_multiplier=1 --arg num_sampled_clients=100 --rounds 50 "
              "--clients 100 --per-round 100 --weights equal --scalars 0", 1, [
        (CLAIMED, "replace", 1, 9.997256, CLOSED, gauss(2)),
        (CLAIMED, "replace", 50, 159.441486, CLOSED, gauss(2, 50)),
        (EPSILON, "replace", 1, 12.176, CLOSED, gauss(adaptive(1.3), 1, 1e-5 - 1e-9)),
        (EPSILON, "replace", 50, 207.148, CLOSED, gauss(adaptive(1.3), 50, 1e-5 - 5e-8)),
    ], ["warning: the rule counts clipped updates where its source counts unclipped ones"]),
    "7, K 10": ({}, "flower:ServerSideAdaptiveClipping --arg noise_multiplier=1 --arg num_sampled_clients=10", 2, [],
                ["must be below twice the noise of the bit, 1, as Flower itself demands"]),
    **{f"8, {kind}": ({f"config_fed_client.{kind}": text % PERCENTILE}, f"config_fed_client.{kind}", 0, [
        (EPSILON, "None", 1, math.nan, CLOSED, ("nothing",)),
    ], ["percentile 10 shares the largest 90% of all values, cut to 0.01 a step"]) for kind, text in (
        ("json", JSON), ("conf", CONF))},
    "9, LeNet": ({}, SVT.format(61_706), 1, svt(61_706, 6171, 62.45), []),
    "9, FLIP": ({}, SVT.format(7_033_225), 1, svt(7_033_225, 703_323, 3754.3), []),
    "9, 2.7.2": ({}, SVT.format("61706 --framework-version 2.7.2"), 1, [
        (EPSILON, "None", 1, math.nan, CLOSED, ("nothing",)),
    ], ["nothing bounds them"]),
    "10": ({}, ENGINE.format(1, HOSPITAL), 0, [
        (EPSILON, "zero-out", 1, 3.2405, SAMPLES, ("poisson", 1, 1 / 16, 48)),
        (EPSILON, "zero-out", 20, 13.9406, SAMPLES, ("poisson", 1, 1 / 16, 960)),
        (CLAIMED, "zero-out", 20, 13.9406, SAMPLES, ("accounted", 1, 1 / 16, 960)),
    ], []),
    # With the orders that Opacus 1.6.0 has: 15.1518, and not 15.2507.
    "10, rdp": ({}, ENGINE.format(1, f"--arg accountant=rdp {HOSPITAL}"), 0, [
        (CLAIMED, "zero-out", 20, 15.15181, CLOSED, ("renyi", 1, 1 / 16, 960)),
    ], []),
    "10, drop_last": ({}, ENGINE.format(1, f"--drop-last {HOSPITAL}"), 0, [
        (EPSILON, "zero-out", 20, 14.4898, SAMPLES, ("poisson", 1, 1 / 15, 900)),
    ], []),
    "10, poisson False": ({}, ENGINE.format(1, f"--arg poisson_sampling=false {HOSPITAL}"), 1, [
        (EPSILON, "zero-out", 20, 62.2407, CLOSED, gauss(1, 60)),
        (EPSILON, "replace", 20, 185.189, CLOSED, gauss(2, 60)),
    ], []),
    **{f"11, sigma {sigma}": ({}, ENGINE.format(sigma, FLOWERS), 1, [
        # prv adds its error, .01; each round anew.
        (CLAIMED, "zero-out", 3, one + 0.01, SAMPLES, ("accounted", sigma, 1 / 125, 125, 1e-5, False, 0.01)),
        (EPSILON, "zero-out", 1, one, SAMPLES, ("poisson", sigma, 1 / 125, 125)),
        (EPSILON, "zero-out", 3, three, SAMPLES, ("poisson", sigma, 1 / 125, 375)),
    ], ["forgets the rounds before it"]) for sigma, one, three in ((1, 0.6139, 0.9257), (1.5, 0.2540, 0.4348))},
    "12": ({}, "pfl:BandedMatrixFactorization --arg num_iterations=2000 --arg min_separation=48 --arg cohort_size=5000 "
               "--arg population=1000000 --arg corrected=true", 1, [
        (CLAIMED, "zero-out", 2000, 2, SAMPLES, ("accounted", 0.6806, 0.005, 42, 1e-6)),
        ("epsilon poisson", "zero-out", 2000, 24.966, SAMPLES, ("poisson", 0.6806, 0.24, 42, 1e-6)),
        ("epsilon none", "zero-out", 2000, 89.792, CLOSED, gauss(1 / 0.680597, 42, 1e-6)),
    ], ["noise of 0.6806 clipping bounds"]),
}  # fmt: skip


def found_in(rows: list[dict[str, Any]], name: str, relation: str, rounds: int) -> Any:
    """The field of the row: beside it may stand the delta, or the sampler."""
    field, _, which = name.partition(" ")
    (value,) = {
        row[field] for row in rows
        if (str(row["adjacency"]), row["rounds"]) == (relation, rounds)
        and (row["sampler"] == which if which.isalpha() else row["delta"] == float(which or rows_delta(rows)))
        and (row["epsilon"] is not None or row["would_be"] is not None or relation == "None")
    }  # fmt: skip
    return value


def rows_delta(rows: list[dict[str, Any]]) -> float:
    """The delta of the last row, which is the one asked for."""
    return rows[-1]["delta"]


@pytest.mark.parametrize("case", WORKED)
def test_a_worked_case_is_printed(
    case: str, harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Any
) -> None:
    files, command, code, numbers, words = WORKED[case]
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    printed = harness("claims", *command.split())
    assert printed.code == code, printed
    assert all(one in printed.out + printed.err for one in words), printed
    rows = json.loads(harness("claims", *command.split(), "--json").out)["rows"] if numbers else []
    for name, relation, rounds, expected, within, (way, *settings) in numbers:
        found = found_in(rows, name, relation, rounds)
        if way == "nothing":
            assert found is None, name
        else:
            assert found == pytest.approx(expected, rel=within), (name, relation, rounds)
            assert found == pytest.approx(getattr(second, way)(*settings), rel=within), (name, relation, rounds)


def test_what_percentile_privacy_shares_is_counted_twice() -> None:
    """Case 8: by numpy's percentile, and by the defense of that name; the largest 90%, cut to .01."""
    values = np.random.default_rng(8).normal(0, 0.02, 5001)
    plain = np.where(np.abs(values) >= np.percentile(np.abs(values), 10), np.clip(values, -0.01, 0.01), 0.0)
    layout, keys = Layout(("w",), ((5001,),)), ((0, 0),)
    own = build(DEFENSES, "nvflare:PercentilePrivacy", {})
    sent = own.client_message(
        torch.from_numpy(values)[None], RoundContext(0, 0, 0.1, Cohort(clients_per_round=1), layout, keys, 1.0)
    )[0].numpy()
    np.testing.assert_allclose(sent, plain, rtol=1e-12)
    assert (sent != 0).mean() == pytest.approx(0.9, abs=2 / 5001) and np.abs(sent).max() == 0.01
