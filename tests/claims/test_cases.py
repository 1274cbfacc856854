"""Worked cases: what each filter claims and what is proven, every number by two independent computations.

Per line of a case: relation, rounds, the number as derived by hand, and the second computation of conftest.py.
"""

import math
from typing import Any

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import Answer, Facts
from harness.claims.filters import FILTERS, find_filter

CLOSED, BUCKETS = 1e-4, 1e-3
Second = tuple[Any, ...]


def ask(name: str, arguments: dict[str, Any], **facts: Any) -> Answer:
    found = find_filter(name)
    assert found is not None
    return found.asked(found.arguments(arguments), Facts(**facts))


def gaussian(mu: float, delta: float = 1e-5) -> Second:
    return "gaussian", mu, delta


def poisson(*settings: Any) -> Second:
    return "poisson", *settings


def plain(value: float) -> Second:
    return "plain", value


def formula(sensitivity: float, epsilon: float, delta: float = 1e-5) -> float:
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def local(sensitivity: float, epsilon: float) -> dict[str, Any]:
    return {"clipping_norm": 1, "sensitivity": sensitivity, "epsilon": epsilon, "delta": 1e-5}


MEAN = {"noise_multiplier": 1, "clipping_norm": 1, "num_sampled_clients": 100}
CENTRAL = {"noise_multiplier": 0.2, "clipping_norm": 10, "num_sampled_clients": 20}
ENGINE = {"noise_multiplier": 1.0}
HOSPITAL = {"examples": 500, "batch_size": 32, "local_epochs": 3, "rounds": 20}
BANDED = {"num_iterations": 2000, "min_separation": 48, "cohort_size": 5000, "population": 10**6}


def coins(numbers: int, count: int, epsilon: float = 0.1) -> float:
    """What the choices of SVT cost in one pass: coins whose odds one client moves by a factor e^(query/(2 count))."""
    return numbers * (epsilon - epsilon / (1 + (2 * count) ** (2 / 3))) / (2 * count)


def accepted(numbers: int, count: int, epsilon: float = 0.1) -> float:
    """What they cost in any number of passes: the threshold's share, and two of those factors for each value."""
    return epsilon / (1 + (2 * count) ** (2 / 3)) + 2 * coins(numbers, count, epsilon)


BITS = math.hypot(2 / (math.exp(-0.2 * 0.8) / math.sqrt(1 - 0.01)), 1 / 5)  # case 7: mu of a round

STEPS = {"epsilon": 10, "clip_grad": True}
PLAIN = {"optimizer": "sgd", "buffers": "none"}
BLT = {"noise_multiplier": 7, "max_participations": 1}
MANY = {**BLT, "min_separation": 100, "max_participations": 10}
ONE_BUFFER = {"noise_multiplier": 7, "buf_decay": [0.9], "output_scale": [0.1]}
SAMPLED = {"clients": 1000, "per_round": 100, "weights": "equal", "scalars": 0, "rounds": 100}
FIXED = {**ENGINE, "poisson_sampling": False}


def turns(count: int, apart: int = 1, decay: float = 0.9, scale: float = 0.1, rounds: int = 1000) -> float:
    """The length of the sum of a client's columns of the matrix, which is written out."""
    back = np.subtract.outer(np.arange(rounds), np.arange(0, count * apart, apart))
    return float(np.linalg.norm(np.where(back > 0, scale * decay ** (np.maximum(back, 1) - 1.0), back == 0).sum(1)))


BUFFERS = {"buf_decay": [0.5, 0.95], "output_scale": [0.25, 0.1]}
TURNS = {"rounds": 1000, "delta": 1e-6}
BRATS = {"fraction": 0.9, "epsilon": 21, "noise_var": 2, "gamma": 1e-4}

Lines = list[tuple[str, int, float, float, Second]]
#: name, arguments, facts, lines (relation, rounds, number, tolerance, second computation), whether the claim fails
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Lines, bool]] = {
    "1": ("flower:LocalDpMod", local(2, 8), {"rounds": 20, "scalars": 0}, [
        ("replace", 1, 7.91437, CLOSED, gaussian(2 / formula(2, 8))),
        ("replace", 20, 57.9734, CLOSED, gaussian(math.sqrt(20) * 2 / formula(2, 8))),
    ], False),
    "2": ("flower:LocalDpMod", local(2, 10), {"scalars": 0}, [
        ("replace", 1, 10.39388, CLOSED, gaussian(2 / formula(2, 10))),
    ], True),
    "3": ("flower:LocalDpMod", local(1, 1), {"rounds": 20, "scalars": 0}, [
        ("replace", 1, 1.61032, CLOSED, gaussian(2 / formula(1, 1))),
        ("replace", 20, 9.0625, CLOSED, gaussian(math.sqrt(20) * 2 / formula(1, 1))),
    ], True),
    "5": ("flip:local_dp", {}, {"rounds": 10, "scalars": 0}, [
        ("replace", 1, 8.52250e8, CLOSED, gaussian(2 / formula(1e-4, 10))),
        ("replace", 10, 8.5213e9, CLOSED, gaussian(math.sqrt(10) * 2 / formula(1e-4, 10))),
        ("zero-out", 1, 2.13107e8, CLOSED, gaussian(1 / formula(1e-4, 10))),
    ], True),
    "6 of 100": ("flower:ServerSideFixedClipping", CENTRAL,
                 {"rounds": 3, "clients": 100, "per_round": 20, "weights": "equal"}, [
        ("replace", 3, 222.977, CLOSED, gaussian(math.sqrt(3) * 10)),
        ("zero-out", 3, 73.623, CLOSED, gaussian(math.sqrt(3) * 5)),
    ], False),
    "6 of 10": ("flower:ServerSideFixedClipping", CENTRAL,
                {"rounds": 3, "clients": 10, "per_round": 4, "weights": "equal"}, [
        ("replace", 3, 4118.37, CLOSED, gaussian(math.sqrt(3) * 50)),
        ("zero-out", 3, 1121.22, CLOSED, gaussian(math.sqrt(3) * 25)),
    ], False),
    "6 private": ("flower:ServerSideFixedClipping", CENTRAL, {"rounds": 3, "clients": 100, "per_round": 20}, [
        ("replace", 3, 61476.4, CLOSED, gaussian(math.sqrt(3) * 200)),
    ], False),
    "7": ("flower:ServerSideAdaptiveClipping", {"noise_multiplier": 1, "num_sampled_clients": 100},
          {"rounds": 50, "clients": 100, "per_round": 100, "weights": "equal"}, [
        ("replace", 1, 12.176, CLOSED, gaussian(BITS, 1e-5 - 1e-9)),
        ("replace", 50, 207.148, CLOSED, gaussian(math.sqrt(50) * BITS, 1e-5 - 5e-8)),
    ], True),
    "9 LeNet": ("nvflare:SVTPrivacy", {}, {"numbers": 61_706, "scalars": 0}, [
        ("replace", 1, 618.0983, 1e-7, plain(6171 * 0.1 + accepted(61_706, 6171))),
        ("replace", 1, 617.599, 1e-7, plain(6171 * 0.1 + coins(61_706, 6171))),
        ("replace", 1, 62.4503, CLOSED, ("laplace", 0.1, 6171, 1e-5, coins(61_706, 6171))),
        ("zero-out", 1, 309.049, CLOSED, plain(6171 * 0.05 + coins(61_706, 6171))),
        ("zero-out", 1, 24.0128, CLOSED, ("laplace", 0.05, 6171, 1e-5, coins(61_706, 6171))),
    ], True),
    "9 FLIP": ("nvflare:SVTPrivacy", {}, {"numbers": 7_033_225, "scalars": 0}, [
        ("replace", 1, 70333.3, 1e-6, plain(703_323 * 0.1 + accepted(7_033_225, 703_323))),
        ("replace", 1, 70332.8, 1e-6, plain(703_323 * 0.1 + coins(7_033_225, 703_323))),
        # An upper bound on a coarse grid gave 3754.3.
        ("replace", 1, 3753.2936, CLOSED, ("laplace", 0.1, 703_323, 1e-5, coins(7_033_225, 703_323))),
    ], True),
    "10": ("opacus:PrivacyEngine", ENGINE, HOSPITAL, [
        ("zero-out", 1, 3.2405, BUCKETS, poisson(1, 1 / 16, 48)),
        ("zero-out", 20, 13.9406, BUCKETS, poisson(1, 1 / 16, 960)),
        ("replace", 1, 4.29407, BUCKETS, poisson(1, 1 / 16, 48, 1e-5, True)),
    ], False),
    "10 drop_last": ("opacus:PrivacyEngine", ENGINE, {**HOSPITAL, "drop_last": True}, [
        ("zero-out", 20, 14.4898, BUCKETS, poisson(1, 1 / 15, 900)),
    ], False),
    "10 no Poisson": ("opacus:PrivacyEngine", {**ENGINE, "poisson_sampling": False}, HOSPITAL, [
        ("zero-out", 20, 62.2407, CLOSED, gaussian(math.sqrt(60))),
        ("replace", 20, 185.189, CLOSED, gaussian(2 * math.sqrt(60))),
    ], True),
    "hello-dp": ("opacus:PrivacyEngine", {"noise_multiplier": 1.111, "sample_rate": 1 / 891, "steps": 44_549}, {}, [
        ("zero-out", 1, 1.0, BUCKETS, poisson(1.111, 1 / 891, 44_549)),
    ], False),
    "11": ("opacus:PrivacyEngine", {**ENGINE, "engine": "per-round"},
           {"examples": 4000, "batch_size": 32, "local_epochs": 1, "rounds": 3}, [
        ("zero-out", 1, 0.6139, BUCKETS, poisson(1, 1 / 125, 125)),
        ("zero-out", 3, 0.9257, BUCKETS, poisson(1, 1 / 125, 375)),
    ], True),
    "11 odd": ("opacus:PrivacyEngine", {"noise_multiplier": 1.5, "engine": "per-round"},
               {"examples": 4000, "batch_size": 32, "local_epochs": 1, "rounds": 3}, [
        ("zero-out", 1, 0.2540, BUCKETS, poisson(1.5, 1 / 125, 125)),
        ("zero-out", 3, 0.4348, BUCKETS, poisson(1.5, 1 / 125, 375)),
    ], True),
    "pfl, central": ("pfl:CentrallyAppliedPrivacyMechanism", {"relative_noise_stddev": 2},
                     {"rounds": 4, "weights": "equal"}, [
        ("zero-out", 4, 4.377178, CLOSED, gaussian(1)),
    ], False),
    "pfl, adaptive": ("pfl:AdaptiveClippingGaussianMechanism",
                      {"relative_noise_stddev": 2, "clipping_indicator_noise_stddev": 10},
                      {"rounds": 4, "weights": "equal"}, [("zero-out", 4, 4.377178, CLOSED, gaussian(1))], False),
    "TFF tree, restarts": ("tff:tree_aggregation", {"noise_multiplier": 7, "restart_frequency": 4},
                           {"rounds": 10, "participations": 5, "delta": 1e-6}, [
        ("zero-out", 10, 4.99915, CLOSED, gaussian(math.sqrt(16 * 3 + 3) / 7, 1e-6)),
    ], False),
    "banded Toeplitz": ("jax_privacy:BandedToeplitz", {"noise_multiplier": 4, "bands": 8, "min_separation": 8},
                        {"rounds": 80, "delta": 1e-6}, [
        ("zero-out", 80, 3.747218, CLOSED, gaussian(math.sqrt(10) / 4, 1e-6)),
    ], False),
    "12": ("pfl:BandedMatrixFactorization", {**BANDED, "corrected": True}, {}, [
        ("zero-out", 2000, 24.966, BUCKETS, poisson(0.680599, 0.24, 42, 1e-6)),
        ("zero-out", 2000, 89.792, CLOSED, gaussian(math.sqrt(42) / 0.680597, 1e-6)),
    ], True),
    "OpenFL 2": ("openfl:GlobalDP2", {}, {"rounds": 10, "buffers": "none"}, [
        ("zero-out", 10, 565.6134, CLOSED, ("accounted", 0.1, 0.5, 10)),
    ], False),
    "APPFL": ("appfl:dp", {**STEPS, "dp_mechanism": "gaussian", "clip_norm": 2}, {**PLAIN, "local_steps": 10}, [
        ("replace", 1, 300.14, CLOSED, gaussian(10 * 10 / math.sqrt(2 * math.log(1.25e5)))),
    ], True),
    "APPFL 100": ("appfl:dp", {**STEPS, "dp_mechanism": "gaussian", "clip_norm": 2}, {**PLAIN, "local_steps": 100}, [
        ("replace", 1, 22181.2, CLOSED, gaussian(100 * 10 / math.sqrt(2 * math.log(1.25e5)))),
    ], True),
    "APPFL L1": ("appfl:dp", STEPS, {**PLAIN, "local_steps": 1, "rounds": 3}, [
        ("replace", 1, 10, CLOSED, plain(10)), ("replace", 3, 30, CLOSED, plain(30)),
        ("zero-out", 1, 5, CLOSED, plain(5)),
    ], False),
    "APPFL L2": ("appfl:dp", {**STEPS, "clip_norm": 2}, {**PLAIN, "local_steps": 1, "numbers": 61_706}, [
        ("replace", 1, 2484.07, CLOSED, plain(10 * math.sqrt(61_706))),
    ], True),
    "pfl local": ("pfl:GaussianMechanism", {"clipping_bound": 1, "epsilon": 1, "delta": 1e-5}, {}, [
        ("zero-out", 1, 1.0, CLOSED, gaussian(0.2680511)), ("replace", 1, 2.1547, CLOSED, gaussian(2 * 0.2680511)),
    ], False),
    "pfl local 2": ("pfl:GaussianMechanism", {"clipping_bound": 1, "epsilon": 2, "delta": 1e-5}, {}, [
        ("replace", 1, 4.3929, CLOSED, gaussian(2 * 0.5015517)),
    ], False),
    "pfl central": ("pfl:CentralGaussian", {"num_compositions": 1500, "cohort_size": 1000, "population": 1e7}, {}, [
        ("zero-out", 1500, 2.0, BUCKETS, ("accounted", 0.46743, 1e-4, 1500, 1e-6)),
        ("zero-out", 1500, 3825.5, CLOSED, gaussian(math.sqrt(1500) / 0.4674303, 1e-6)),
    ], True),
    "TFF fixed": ("tff:gaussian_fixed", {"noise_multiplier": 1, "clients_per_round": 100},
                  {"clients": 1000, "rounds": 100}, [
        ("zero-out", 100, 7.0466, BUCKETS, poisson(1, 0.1, 100)), ("zero-out", 100, 91.8173, CLOSED, gaussian(10)),
        ("replace", 100, 284.392, CLOSED, gaussian(20)),
    ], False),
    "TFF adaptive": ("tff:gaussian_adaptive", {"noise_multiplier": 1, "clients_per_round": 100}, {"rounds": 50}, [
        ("zero-out", 50, 54.3766, CLOSED, gaussian(math.sqrt(50))),
        ("replace", 50, 159.441, CLOSED, gaussian(2 * math.sqrt(50))),
    ], False),
    "TFF aggregator": ("tff:dp_aggregator", {"noise_multiplier": 1, "clients_per_round": 100, "zeroing": False}, {}, [
        ("zero-out", 1, 4.37717, CLOSED, gaussian(1.0)),
    ], False),
    "TFF tree": ("tff:tree_aggregation", {"noise_multiplier": 7}, {"rounds": 1024, "delta": 1e-6}, [
        ("zero-out", 1024, 2.124798, CLOSED, gaussian(math.sqrt(11) / 7, 1e-6)),
    ], False),
    "TFF tree, z 1": ("tff:tree_aggregation", {"noise_multiplier": 1}, {"rounds": 1024, "delta": 1e-6}, [
        ("zero-out", 1024, 20.6473, CLOSED, gaussian(math.sqrt(11), 1e-6)),
    ], False),
    "TFF tree, 2048": ("tff:tree_aggregation", {"noise_multiplier": 7}, {"rounds": 2048, "delta": 1e-6}, [
        ("zero-out", 2048, 2.2287, CLOSED, gaussian(math.sqrt(12) / 7, 1e-6)),
    ], False),
    "TFF tree, 128": ("tff:tree_aggregation", {"noise_multiplier": 4}, {"rounds": 128, "delta": 1e-6}, [
        ("zero-out", 128, 3.3076, CLOSED, gaussian(math.sqrt(8) / 4, 1e-6)),
    ], False),
    "TFF trees": ("tff:tree_adaptive", {"noise_multiplier": 7}, {"rounds": 2176, "delta": 1e-6}, [
        ("zero-out", 2176, 3.7041, CLOSED, gaussian(math.sqrt(30) / 7, 1e-6)),
    ], False),
    "TFF tree, twice": ("tff:tree_adaptive", {"noise_multiplier": 7},
                        {"rounds": 2176, "participations": 2, "delta": 1e-6}, [
        ("zero-out", 2176, 4.59676, CLOSED, gaussian(2 * math.sqrt(11) / 7, 1e-6)),
    ], False),
    "BLT": ("jax_privacy:BufferedToeplitz", {**BLT, "buf_decay": [0.9], "output_scale": [0.1]}, TURNS, [
        ("zero-out", 1000, 0.5975, CLOSED, gaussian(1.025978 / 7, 1e-6)),
    ], False),
    "BLT, 10 turns": ("jax_privacy:BufferedToeplitz", {**MANY, "buf_decay": [0.9], "output_scale": [0.1]}, TURNS, [
        ("zero-out", 1000, 2.0742, CLOSED, gaussian(3.244440 / 7, 1e-6)),
    ], False),
    "BLT, 2 buffers": ("jax_privacy:BufferedToeplitz", {**BLT, **BUFFERS}, TURNS, [
        ("zero-out", 1000, 0.6639, CLOSED, gaussian(1.131873 / 7, 1e-6)),
    ], False),
    "BLT, both": ("jax_privacy:BufferedToeplitz", {**MANY, **BUFFERS}, {**TURNS, "delta": 1e-10}, [
        ("zero-out", 1000, 3.1779, CLOSED, gaussian(3.583116 / 7, 1e-10)),
    ], False),
    "banded": ("jax_privacy:banded", {"noise_multiplier": 0.680599, "num_bands": 48, "iterations": 2000,
                                      "expected_batch_size": 5000, "num_examples": 10**6}, {"delta": 1e-6}, [
        ("zero-out", 2000, 24.966, BUCKETS, poisson(0.680599, 0.24, 42, 1e-6)),
        ("zero-out", 2000, 89.792, CLOSED, gaussian(math.sqrt(42) / 0.680599, 1e-6)),
    ], False),
    "banded, uneven groups": ("jax_privacy:banded", {"noise_multiplier": 1, "num_bands": 3, "iterations": 30,
                                                     "expected_batch_size": 2, "num_examples": 11}, {}, [
        ("zero-out", 30, 13.1350, BUCKETS, poisson(1, 2 / 3, 10)),
    ], False),
    "accountant": ("flower:ServerSideFixedClipping",
                   {**CENTRAL, "noise_multiplier": 1, "accountant": {"target_delta": 1e-5}}, {"rounds": 3}, [
        ("zero-out", 3, 8.38542, CLOSED, gaussian(math.sqrt(3))),
        ("replace", 3, 20.1250, CLOSED, gaussian(2 * math.sqrt(3)))
    ], False),
    "accountant, of one client": ("flower:ServerSideFixedClipping",
                                  {**CENTRAL, "noise_multiplier": 1, "accountant": {"target_delta": 1e-5}},
                                  {"rounds": 9, "participations": 1, "delta": 1e-7}, [
        ("zero-out", 1, 5.349345, CLOSED, gaussian(1, 1e-7)),
    ], False),
    "10 of 100 rounds": ("flower:ServerSideFixedClipping", MEAN, {**SAMPLED, "participations": 10}, [
        ("replace", 10, 46.2112, CLOSED, gaussian(2 * math.sqrt(10))),
        ("replace", 1, 9.997256, CLOSED, gaussian(2)),
        ("zero-out", 10, 17.8566, CLOSED, gaussian(math.sqrt(10))),
    ], False),
    "1 of 100 rounds": ("flower:ClientSideFixedClipping", MEAN, {**SAMPLED, "participations": 1}, [
        ("replace", 1, 9.997256, CLOSED, gaussian(2)),
    ], False),
    "50 of 100 rounds": ("flower:ServerSideFixedClipping", MEAN, {**SAMPLED, "participations": 50}, [
        ("replace", 50, 84.0414, CLOSED, ("drawn", 0.5, 999, 100, 100)), ("replace", 1, 9.997256, CLOSED, gaussian(2)),
    ], False),
    "any of 100 rounds": ("flower:ServerSideFixedClipping", MEAN, SAMPLED, [
        ("replace", 100, 84.0414, CLOSED, ("drawn", 0.5, 999, 100, 100)),
        ("replace", 1, 7.702404, CLOSED, ("drawn", 0.5, 999, 100, 1)),
    ], False),
    "1 of 2 clients": ("flower:ServerSideFixedClipping", {**MEAN, "noise_multiplier": 1, "num_sampled_clients": 1},
                       {**SAMPLED, "rounds": 10, "clients": 2, "per_round": 1}, [
        ("replace", 10, 46.2112, CLOSED, gaussian(2 * math.sqrt(10))),
    ], False),
    "FedProx": ("flower:ServerSideFixedClipping", MEAN, {**SAMPLED, "rounds": 1, "server_optimizer": "FedProx"}, [
        ("zero-out", 1, 4.377178, CLOSED, gaussian(1)),
    ], False),
    "whole batches": ("opacus:PrivacyEngine", FIXED, {"examples": 32, "batch_size": 32, "local_steps": 100}, [
        ("zero-out", 1, 91.8173, CLOSED, gaussian(10)), ("replace", 1, 284.392, CLOSED, gaussian(20)),
    ], False),
    "batches above the data": ("opacus:PrivacyEngine", ENGINE, {"examples": 10, "batch_size": 32, "rounds": 3}, [
        ("zero-out", 3, 8.385416, CLOSED, gaussian(math.sqrt(3))),
    ], False),
    "half batches": ("opacus:PrivacyEngine", {**FIXED, "sample_rate": 0.5, "steps": 100}, {}, [
        ("zero-out", 1, 54.3766, CLOSED, gaussian(math.sqrt(50))),
    ], True),
    "part of an epoch": ("opacus:PrivacyEngine", FIXED,
                         {"examples": 100, "batch_size": 10, "local_steps": 25, "rounds": 4}, [
        ("zero-out", 4, 20.12502, CLOSED, gaussian(math.sqrt(4 * 3))),
    ], True),
    "epochs of 49 batches": ("opacus:PrivacyEngine", FIXED, {"examples": 490, "batch_size": 10, "local_epochs": 99}, [
        ("zero-out", 1, 91.10418, CLOSED, gaussian(math.sqrt(99))),
    ], True),
    "history of fixed batches": ("opacus:PrivacyEngine", {**FIXED, "history": [[1.0, 0.5, 99], [2.0, 0.25, 8]]}, {}, [
        ("zero-out", 1, 54.77625, CLOSED, gaussian(math.sqrt(50 + 2 / 4))),
    ], True),
    "history, 20 rounds of 1 step": ("opacus:PrivacyEngine", {**FIXED, "history": [[1.0, 0.0625, 20]]},
                                     {"rounds": 20}, [
        ("zero-out", 20, 28.37347, CLOSED, gaussian(math.sqrt(20))),
    ], True),
    "history, 20 rounds of 2 epochs": ("opacus:PrivacyEngine", {**FIXED, "history": [[1.0, 0.0625, 640]]},
                                       {"rounds": 20}, [
        ("zero-out", 20, 46.2112, CLOSED, gaussian(math.sqrt(40))),
    ], True),
    "history of rounds that differ": ("opacus:PrivacyEngine", {**FIXED, "history": [[1.0, 0.5, 5], [2.0, 0.5, 4]]},
                                      {"rounds": 4}, [
        ("zero-out", 4, 12.87066, CLOSED, gaussian(math.sqrt(5 + 4 / 4))),
    ], True),
    "a rate and epochs": ("opacus:PrivacyEngine", {**ENGINE, "sample_rate": 1 / 16}, {"local_epochs": 3}, [
        ("zero-out", 1, 3.2405, BUCKETS, poisson(1, 1 / 16, 48)),
    ], False),
    "BLT, 50 turns": ("jax_privacy:BufferedToeplitz", ONE_BUFFER, {"rounds": 1000, "participations": 50}, [
        ("zero-out", 1000, 9.18373, CLOSED, gaussian(turns(50) / 7)),
        ("replace", 1000, 22.2218, CLOSED, gaussian(2 * turns(50) / 7)),
    ], False),
    "BLT, every round": ("jax_privacy:BufferedToeplitz", ONE_BUFFER, {"rounds": 1000}, [
        ("zero-out", 1000, 78.0107, CLOSED, gaussian(turns(1000) / 7)),
    ], False),
    "BLT, 3 turns apart": ("jax_privacy:BufferedToeplitz", {**ONE_BUFFER, "min_separation": 300},
                           {"rounds": 1000, "participations": 3}, [
        ("zero-out", 1000, 0.942058, CLOSED, gaussian(turns(3, 300) / 7)),
    ], False),
    "at another delta": ("flower:LocalDpMod", local(2, 8), {"scalars": 0, "delta": 1e-9}, [
        ("replace", 1, 10.8463, CLOSED, gaussian(2 / formula(2, 8), 1e-9)),
    ], False),
    "pfl local, another delta": ("pfl:GaussianMechanism", {"clipping_bound": 1, "epsilon": 1, "delta": 1e-5},
                                 {"delta": 1e-9}, [
        ("zero-out", 1, 1.501901, CLOSED, gaussian(0.2680511, 1e-9)),
    ], False),
    "pfl central, another delta": ("pfl:CentralGaussian",
                                   {"num_compositions": 1500, "cohort_size": 1000, "population": 1e7},
                                   {"delta": 1e-8}, [
        ("zero-out", 1500, 3896.660, CLOSED, gaussian(math.sqrt(1500) / 0.4674303, 1e-8)),
    ], True),
    "banded, no samples": ("jax_privacy:banded", {"noise_multiplier": 3.745, "num_bands": 48, "iterations": 2000}, {}, [
        ("zero-out", 2000, 8.37634, CLOSED, gaussian(math.sqrt(42) / 3.745)),
    ], False),
    "SVT, several passes": ("nvflare:SVTPrivacy", BRATS, {"numbers": 10**6, "scalars": 0}, [
        ("replace", 1, 1_800_023.33, 1e-7, plain(900_000 * 2 + accepted(10**6, 900_000, 21))),
        ("zero-out", 1, 900_011.67, 1e-7, plain(900_000 + coins(10**6, 900_000, 21) + 21 / (1 + 1.8e6 ** (2 / 3)))),
    ], True),
    "SVT, budgets of its own": ("nvflare:SVTPrivacy", {"epsilon": 1.0, "epsilon_query": 0.75, "epsilon_release": 5.0},
                                {"numbers": 1000, "scalars": 0}, [
        ("replace", 1, 12.75, 1e-9, plain(5 + 0.25 + 10 * 0.75)),
    ], True),
}  # fmt: skip


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 30.0, 1e3, 1e6, 1e8, 1e20])
def test_one_laplace_release_of_any_size_loses_what_its_law_says(epsilon: float) -> None:
    """Its delta is 1 - e^((epsilon' - epsilon)/2)."""
    exact = epsilon + 2 * math.log1p(-1e-5)
    found = epsilons.laplace_epsilon(epsilon, 1, 1e-5)
    assert exact <= found <= min(epsilon, exact + 1e-3 * epsilon)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("epsilon", "count"), [(1.0, 10**9), (0.1, 10**12), (1e8, 10**6), (1e29, 10**12)])
def test_what_no_loss_distribution_holds_is_bounded_by_the_sum(epsilon: float, count: int) -> None:
    """The mean of the losses is what is lost at the least: about epsilon^2/2 each, or epsilon less 1."""
    mean = count * (epsilon - 1 + math.exp(-epsilon))
    assert 0.99 * mean <= epsilons.laplace_epsilon(epsilon, count, 1e-5) <= count * epsilon


def test_equal_parts_count_as_one_and_many_lose_no_more_than_a_bound() -> None:
    """A schedule of noise from 1 to 1.3: more than that of its end throughout, less than that of its start."""
    assert epsilons.sampled_epsilon([(1.0, 0.1, 3)] * 40, 1e-5) == epsilons.sampled_epsilon([(1.0, 0.1, 120)], 1e-5)
    parts = [(1 + 0.3 * one / 120, 0.1, 1) for one in range(120)]
    low, found, high = (epsilons.sampled_epsilon(one, 1e-5) for one in ([(1.3, 0.1, 120)], parts, [(1.0, 0.1, 120)]))
    assert low < found < high
    grouped = epsilons.sampled_epsilon([(sigma, 0.1, 4) for sigma, *_ in parts[::4]], 1e-5)
    assert grouped == pytest.approx(found, rel=1e-9)


def test_a_small_delta_is_bounded_by_renyi_divergences() -> None:
    parts = [(1.0, 0.1, 10)]
    assert epsilons.sampled_epsilon(parts, 1e-29) <= epsilons.renyi_epsilon(parts, 1e-29) < 17
    settings = {**ENGINE, "accountant": "rdp", "sample_rate": 0.1, "steps": 10}
    assert not ask("opacus:PrivacyEngine", settings, delta=1e-29).broken


# Other numbers of what a quick case asks as well.
REPEATED = ("9 FLIP", "11 odd")


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=pytest.mark.slow if case in REPEATED else ()) for case in CASES
])  # fmt: skip
def test_a_worked_case(case: str, second: Any) -> None:
    name, arguments, facts, lines, broken = CASES[case]
    answer = ask(name, arguments, **facts)
    assert answer.broken == broken and not answer.fails
    for relation, rounds, expected, tolerance, (way, *settings) in lines:
        found = [one for one in answer.proven if (one.relation, one.rounds) == (relation, rounds) and one.epsilon]
        nearest = min(found, key=lambda one: abs(one.epsilon - expected))
        assert nearest.epsilon == pytest.approx(expected, rel=tolerance), relation
        assert nearest.epsilon == pytest.approx(getattr(second, way)(*settings), rel=tolerance), relation


#: name, arguments, facts, whether the claim fails, words of the reason; and what would be proven otherwise
NOTHING: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool, str, float | None]] = {
    "4": ("flower:LocalDpMod", local(2, 8), {"scalars": 20}, True, "20 0-d arrays leave without clip", 7.91437),
    "1, flwr 1.13": ("flower:LocalDpMod", local(2, 8), {"scalars": 0, "version": "1.13.1"}, True, "made and not used",
                     None),
    "8": ("nvflare:PercentilePrivacy", {}, {}, False, "largest 90% of all values, cut to 0.01", None),
    "8 off": ("nvflare:PercentilePrivacy", {"gamma": 0}, {}, False, "sends everything", None),
    "9 old": ("nvflare:SVTPrivacy", {}, {"numbers": 61_706, "version": "2.7.2"}, True, "nothing bounds them", None),
    "9 unknown": ("nvflare:SVTPrivacy", {}, {}, True, "add --parameters", None),
    "9 scalars": ("nvflare:SVTPrivacy", {}, {"numbers": 61_706, "scalars": 3}, True, "3 0-d arrays leave", 618.098),
    "6 Adam": ("flower:ServerSideFixedClipping", CENTRAL,
               {"per_round": 20, "clients": 100, "weights": "equal", "server_optimizer": "FedAdam"}, False,
               "noise is added after FedAdam", 91.8173),
    **{strategy: ("flower:ServerSideFixedClipping", MEAN,
                  {"per_round": 100, "weights": "equal", "server_optimizer": strategy}, False, why, 9.99726)
       for strategy, why in (
           ("FedMedian", "may move what it chooses by 2 clipping norms"), ("Krum", "Krum takes no mean of all"),
           ("MultiKrum", "takes no mean of all"), ("Bulyan", "takes no mean of all"), ("krum", "takes no mean of all"),
           ("FedTrimmedAvg", "takes no mean of all"), ("QFedAvg", "weighs clients by their loss"),
           ("FedXgbBagging", "collects trees"), ("FedAvgM", "whose state has read the raw updates"),
       )},
    "strategy as an argument": ("flower:ClientSideFixedClipping", {**MEAN, "strategy": "FedMedian"},
                                {"per_round": 100, "weights": "equal"}, False, "takes no mean of all", 9.99726),
    "adaptive, FedMedian": ("flower:ServerSideAdaptiveClipping", {"noise_multiplier": 1, "num_sampled_clients": 100},
                            {"server_optimizer": "FedMedian", "weights": "equal"}, True, "no mean of all", 12.17566),
    "10 adaptive": ("opacus:PrivacyEngine", {**ENGINE, "clipping": "adaptive"}, HOSPITAL, True, "not centred", 3.24047),
    "OpenFL 1": ("openfl:GlobalDP1", {}, {"rounds": 10}, True, "with few, noise is too small", 565.613),
    "APPFL Adam": ("appfl:dp", STEPS, {**PLAIN, "optimizer": "adam", "local_steps": 1}, True, "adam moves", 10),
    "APPFL, as shipped": ("appfl:dp", {"epsilon": 1}, {**PLAIN, "local_steps": 100}, True, "clip_grad is off", 100),
    "APPFL BatchNorm": ("appfl:dp", STEPS, {"local_steps": 1, "buffers": "float"}, True, "buffers leave", 10),
    "APPFL, masked": ("appfl:dp", {**STEPS, "use_secure_agg": True}, {**PLAIN, "local_steps": 1}, True,
                      "masks go on the update before its noise", 10),
    "APPFL, no steps": ("appfl:dp", STEPS, PLAIN, True, "add --local-steps", None),
    "FedML nbafl": ("fedml:dp", {"dp_solution_type": "nbafl", "epsilon": 0.5}, {}, True, "does not act", None),
    "FedML ldp": ("fedml:dp", {"dp_solution_type": "ldp", "epsilon": 0.5}, {}, True, "which nothing clips", None),
    "FedML cdp": ("fedml:dp", {"dp_solution_type": "cdp", "epsilon": 0.5}, {}, True, "no update is clipped", None),
    "pfl, as simulated": ("pfl:CentralGaussian", {"num_compositions": 1500, "cohort_size": 50, "population": 1e7,
                          "noise_cohort_size": 1000}, {}, True, "with 50 clients it is 0.02337", 2.0),
    "12, as shipped": ("pfl:BandedMatrixFactorization", BANDED, {}, True, "the theorem needs the columns", 24.966),
    "TFF zeroing": ("tff:dp_aggregator", {"noise_multiplier": 1, "clients_per_round": 100}, {}, False, "zeroing",
                    4.37717),
    "BLT, rising": ("jax_privacy:BufferedToeplitz", {**BLT, "buf_decay": [0.9], "output_scale": [2]}, TURNS, False,
                    "do not fall", 3.11932),
    "HE": ("nvflare:HEModelEncryptor", {}, {}, False, "one secret key", None),
    "5 off": ("flip:local_dp", {"dp_enabled": False}, {}, False, "leaves as it is", None),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_is_proven_where_a_condition_is_known_to_fail(case: str) -> None:
    name, arguments, facts, broken, why, would_be = NOTHING[case]
    answer = ask(name, arguments, **facts)
    assert all(line.epsilon is None for line in answer.proven) and answer.broken == broken
    assert why in " ".join([*answer.fails, *answer.notes, *(line.why for line in answer.lines)])
    held = [line.epsilon for line in answer.lines if line.epsilon is not None]
    assert (would_be is None) == (held == [])
    assert would_be is None or held[0] == pytest.approx(would_be, rel=1e-3)


#: Filters of which nothing is proven at any arguments.
NEVER = ("nvflare:ExcludeVars", "nvflare:ModelQuantizer", "flower:SecAggPlus",
         "paper:Soteria", "paper:PRECODE", "paper:ATS", "paper:Outpost", "paper:CENSOR", "paper:LoRA", "paper:QSGD",
         "paper:signSGD", "paper:top-k")  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_nothing_is_proven_of_what_has_no_noise(name: str) -> None:
    answer = ask(name, {"any": 1})
    assert [line.epsilon for line in answer.proven] == [None] and answer.lines[0].why


@pytest.mark.parametrize(("layers", "read"), [
    (None, "reads nothing"), ("", "reads nothing"), (["conv", "fc"], "every layer but conv, fc in clear"),
    ("^conv", "every layer but ^conv in clear"),
])  # fmt: skip
def test_encryption_hides_layers_from_the_server_alone(layers: Any, read: str) -> None:
    answer = ask("nvflare:HEModelEncryptor", {"encrypt_layers": layers}, rounds=3)
    assert [(line.view, line.epsilon, line.rounds) for line in answer.proven] == [
        ("server", None, 3), ("client", None, 3)
    ]  # fmt: skip
    assert read in answer.lines[0].why and "exact sum" in answer.lines[1].why and not answer.broken
    assert "one secret key" in answer.notes[0]


@pytest.mark.parametrize("layers", [[], 3, [1], True, {"a": 1}])
def test_layers_that_nvflare_refuses_are_refused(layers: Any) -> None:
    with pytest.raises(UsageError, match="names of layers or a regular expression"):
        ask("nvflare:HEModelEncryptor", {"encrypt_layers": layers})


def test_flowers_accountant_claims_what_dp_accounting_says_of_removing_a_client() -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    settings = {**CENTRAL, "noise_multiplier": 1, "accountant": {"target_delta": 1e-5}}
    for participations, counted in ((None, {1: 1, 3: 3}), (2, {1: 1, 2: 3}), (1, {1: 3})):
        answer = ask("flower:ServerSideFixedClipping", settings, rounds=3, participations=participations, delta=1e-7)
        lines = [one for one in answer.lines if one.judged and one.claimed]
        assert [one.rounds for one in lines] == list(counted) and {one.relation for one in lines} == {"zero-out"}
        for line in lines:  # it counts every round, whoever took part
            accountant = RdpAccountant().compose(GaussianDpEvent(1.0), counted[line.rounds])
            assert line.claimed == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9) and line.claimed_delta == 1e-5


def test_batches_above_the_data_are_the_data() -> None:
    """As Opacus takes them: rate 1, and a divisor of 10."""
    answer = ask("opacus:PrivacyEngine", ENGINE, examples=10, batch_size=32)
    assert [one for one in answer.warnings if "32 is above the 10 examples" in one and "averaged over 10" in one]
    assert not ask("opacus:PrivacyEngine", ENGINE, examples=32, batch_size=32).warnings
    for poisson in (True, False):
        with pytest.raises(UsageError, match=r"10 examples make no batch of 32.*lower --batch-size to 10"):
            ask("opacus:PrivacyEngine", {**ENGINE, "poisson_sampling": poisson}, examples=10, batch_size=32,
                drop_last=True)  # fmt: skip


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize(("name", "arguments", "relation", "claimed", "at_claim", "broken"), [
    ("flower:LocalDpMod", local(2, 8), "replace", 8, gaussian(2 / formula(2, 8)), False),
    ("flower:LocalDpMod", local(2, 10), "replace", 10, gaussian(2 / formula(2, 10)), True),
    ("flip:local_dp", {"dp_sensitivity": 2.0}, "replace", 10, gaussian(2 / formula(2, 10)), True),
    ("pfl:GaussianMechanism", {"clipping_bound": 1, "epsilon": 1, "delta": 1e-5}, "zero-out", 1, gaussian(0.2680511),
     False),
    ("appfl:dp", {**STEPS, "dp_mechanism": "gaussian", "clip_norm": 2}, "replace", 10,
     gaussian(10 / math.sqrt(2 * math.log(1.25e5))), True),
])  # fmt: skip
def test_a_claim_is_judged_at_its_own_delta(
    name: str, arguments: dict[str, Any], relation: str, claimed: float, at_claim: Second, broken: bool, delta: float,
    second: Any,
) -> None:  # fmt: skip
    answer = ask(name, arguments, scalars=0, delta=delta, local_steps=1, optimizer="sgd", buffers="none")
    (line,) = (one for one in answer.lines if one.relation == relation)
    assert (line.claimed, line.claimed_delta, line.delta, answer.broken) == (claimed, 1e-5, delta, broken)
    way, *settings = at_claim
    found = line.epsilon if line.at_claim is None else line.at_claim
    assert found == pytest.approx(getattr(second, way)(*settings), rel=CLOSED)


#: name, arguments, facts, words of a condition that nobody said; None where there is none; of lines with samples alone
UNSAID: dict[str, tuple[str, dict[str, Any], dict[str, Any], str | None, bool]] = {
    "a strategy of their own": ("flower:ServerSideFixedClipping", MEAN, {"server_optimizer": "Mine"},
                                "Mine takes a plain mean, as FedAvg does, which is not known here", False),
    "no strategy": ("flower:ServerSideAdaptiveClipping", {"noise_multiplier": 1, "num_sampled_clients": 100}, {},
                    "the strategy that is wrapped takes a plain mean", False),
    "FedAvg": ("flower:ServerSideFixedClipping", MEAN, {"server_optimizer": "FedAvg", "per_round": 100, "scalars": 0},
               None, False),
    "pfl": ("pfl:CentralGaussian", {"num_compositions": 20, "cohort_size": 400, "population": 10**6}, {},
            "cohorts are Poisson samples", True),
    "pfl applied": ("pfl:CentrallyAppliedPrivacyMechanism", {"relative_noise_stddev": 1},
                    {"clients": 100, "per_round": 10, "weights": "equal"}, "a round by an independent coin", True),
    "tff": ("tff:gaussian_fixed", {"noise_multiplier": 1, "clients_per_round": 10}, {"clients": 100},
            "joins a round by an independent coin", True),
    "tff, drawn so": ("tff:gaussian_fixed", {"noise_multiplier": 1, "clients_per_round": 10},
                      {"clients": 100, "sampler": "poisson"}, None, True),
    "groups": ("jax_privacy:banded", {"noise_multiplier": 4, "num_bands": 8, "iterations": 80,
               "expected_batch_size": 5, "num_examples": 1000}, {}, "Poisson samples of 8 groups in turn", True),
    "banded, no samples": ("jax_privacy:banded", {"noise_multiplier": 4, "num_bands": 8, "iterations": 80}, {},
                           "an example is in a batch at most once in 8 steps", False),
    "one turn": ("jax_privacy:BufferedToeplitz", {**ONE_BUFFER, "max_participations": 1}, {"rounds": 10},
                 "the server enforces max_participations 1", False),
    "apart": ("jax_privacy:BandedToeplitz", {"noise_multiplier": 4, "min_separation": 8}, {"rounds": 80},
              "the server enforces 8 rounds between two turns", False),
    "every round": ("jax_privacy:BufferedToeplitz", ONE_BUFFER, {"rounds": 10}, None, False),
    "known turns": ("jax_privacy:BufferedToeplitz", ONE_BUFFER, {"rounds": 10, "participations": 3}, None, False),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSAID)
def test_what_nobody_said_is_a_condition(case: str) -> None:
    name, arguments, facts, said, of_samples = UNSAID[case]
    answer = ask(name, arguments, **facts)
    assert not answer.fails and any(line.epsilon is not None for line in answer.lines)
    for line in answer.lines:
        held = [*answer.unknown, *line.ifs] if line.epsilon is not None else []
        expected = said is not None and line.epsilon is not None and (line.sampler == "poisson" or not of_samples)
        assert any(said in one for one in held) == expected if said else held == []


def test_every_filter_has_a_case() -> None:
    tested = {name for name, *_ in [*CASES.values(), *NOTHING.values()]} | set(NEVER)
    # Those on the clients' side are as those on the server's, and tested with the command.
    assert {name for name in FILTERS if not name.startswith("flower:Client")} == {
        name for name in tested if not name.startswith("flower:Client")
    }


def test_the_bound_that_runs_off_is_a_warning_and_spoils_no_theorem() -> None:
    answer = ask("flower:ServerSideAdaptiveClipping", {"noise_multiplier": 1, "num_sampled_clients": 100})
    assert any("runs off" in one for one in answer.warnings) and not answer.fails
