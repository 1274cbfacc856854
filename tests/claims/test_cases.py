"""Worked cases: what each filter claims and what is proven, every number by two independent computations.

Per line of a case: relation, rounds, the number as derived by hand, and the second computation.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from harness.claims.answers import Answer, Facts
from harness.claims.filters import FILTERS, find_filter

CLOSED, BUCKETS = 1e-4, 1e-3
Second = Callable[[], float]


def ask(name: str, arguments: dict[str, Any], **facts: Any) -> Answer:
    found = find_filter(name)
    assert found is not None
    return found.asked(found.arguments(arguments), Facts(**facts))


def gaussian(mu: float, delta: float = 1e-5) -> Second:
    """By logarithms of normal tails and Brent's method."""

    def excess(epsilon: float) -> float:
        first, second = norm.logcdf(mu / 2 - epsilon / mu), epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        return first + math.log(max(-math.expm1(min(second - first, -1e-300)), 1e-300)) - math.log(delta)

    return lambda: brentq(excess, 1e-9, mu**2 + 20 * mu + 1, xtol=1e-12, rtol=1e-12)


@lru_cache
def poisson_epsilon(sigma: float, rate: float, steps: int, delta: float, replace: bool) -> float:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
    from dp_accounting.privacy_accountant import NeighboringRelation

    relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
    one = from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4 if steps < 500 else 3e-4, sampling_prob=rate,
        neighboring_relation=relation,
    )  # fmt: skip
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def poisson(sigma: float, rate: float, steps: int, delta: float = 1e-5, replace: bool = False) -> Second:
    return lambda: poisson_epsilon(sigma, rate, steps, delta, replace)


def laplace(count: int, interval: float) -> Second:
    from dp_accounting.pld.privacy_loss_distribution import from_laplace_mechanism

    one = from_laplace_mechanism(10.0, value_discretization_interval=interval)
    return lambda: float(one.self_compose(count).get_epsilon_for_delta(1e-5))


def formula(sensitivity: float, epsilon: float, delta: float = 1e-5) -> float:
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def local(sensitivity: float, epsilon: float) -> dict[str, Any]:
    return {"clipping_norm": 1, "sensitivity": sensitivity, "epsilon": epsilon, "delta": 1e-5}


CENTRAL = {"noise_multiplier": 0.2, "clipping_norm": 10, "num_sampled_clients": 20}
ENGINE = {"noise_multiplier": 1.0}
HOSPITAL = {"examples": 500, "batch_size": 32, "local_epochs": 3, "rounds": 20}
BANDED = {"num_iterations": 2000, "min_separation": 48, "cohort_size": 5000, "population": 10**6}
BITS = math.hypot(2 / (math.exp(-0.2 * 0.8) / math.sqrt(1 - 0.01)), 1 / 5)  # case 7: mu of a round

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
        ("replace", 1, 8.52250e8, CLOSED, lambda: 41281.32900277731**2 / 2 + 4.264891 * 41281.32900277731),
        ("replace", 10, 8.5213e9, CLOSED, lambda: 130543.0244875**2 / 2 + 4.264891 * 130543.0244875),
        ("zero-out", 1, 2.13107e8, CLOSED, lambda: 20640.66450138866**2 / 2 + 4.264891 * 20640.66450138866),
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
        ("replace", 1, 617.599, CLOSED, lambda: 6171 * 0.1 + 61_706 * (0.1 - 0.1 / (1 + 12_342 ** (2 / 3))) / 12_342),
        ("replace", 1, 62.4503, BUCKETS, lambda: 0.499033 + laplace(6171, 1e-3)()),
    ], True),
    "9 FLIP": ("nvflare:SVTPrivacy", {}, {"numbers": 7_033_225, "scalars": 0}, [
        ("replace", 1, 70332.8, CLOSED, lambda: 703_323 * 0.1 + 0.49996),
        ("replace", 1, 3754.3, BUCKETS, lambda: 3753.80 + 0.5),  # by the central limit
    ], True),
    "10": ("opacus:PrivacyEngine", ENGINE, HOSPITAL, [
        ("zero-out", 1, 3.2405, BUCKETS, poisson(1, 1 / 16, 48)),
        ("zero-out", 20, 13.9406, BUCKETS, poisson(1, 1 / 16, 960)),
        ("replace", 1, 4.29407, BUCKETS, poisson(1, 1 / 16, 48, replace=True)),
    ], False),
    "10 drop_last": ("opacus:PrivacyEngine", ENGINE, {**HOSPITAL, "drop_last": True}, [
        ("zero-out", 20, 14.4898, BUCKETS, poisson(1, 1 / 15, 900)),
    ], False),
    "10 no Poisson": ("opacus:PrivacyEngine", {**ENGINE, "poisson_sampling": False}, HOSPITAL, [
        ("zero-out", 20, 62.2407, CLOSED, gaussian(math.sqrt(60))),
        ("replace", 20, 185.189, CLOSED, gaussian(2 * math.sqrt(60))),
    ], True),
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
    "TFF fixed": ("tff:gaussian_fixed", {"noise_multiplier": 1, "clients_per_round": 100, "clip": 1},
                  {"rounds": 100, "clients": 1000, "per_round": 100}, [
        ("zero-out", 100, 7.0466, BUCKETS, poisson(1, 0.1, 100)),
        ("zero-out", 100, 91.817, CLOSED, gaussian(10)),
    ], False),
    "TFF adaptive": ("tff:gaussian_adaptive", {"noise_multiplier": 1, "clients_per_round": 100}, {"rounds": 4}, [
        ("replace", 4, 24.38161, CLOSED, gaussian(4)),
    ], False),
    "pfl Gaussian": ("pfl:GaussianMechanism", {"clipping_bound": 1, "relative_noise_stddev": 2},
                     {"rounds": 4, "weights": "equal"}, [
        ("zero-out", 4, 4.377178, CLOSED, gaussian(1)),
    ], False),
    "TFF tree": ("tff:tree_aggregation", {"noise_multiplier": 7, "clients_per_round": 100, "clip": 1},
                 {"rounds": 1024, "participations": 1, "delta": 1e-6}, [
        ("zero-out", 1024, 2.124798, CLOSED, gaussian(math.sqrt(11) / 7, 1e-6)),
    ], False),
    "BLT once": ("jax_privacy:BLT", {"noise_multiplier": 7}, {"rounds": 1000, "participations": 1, "delta": 1e-6}, [
        ("zero-out", 1000, 0.5975, BUCKETS, gaussian(1.025978 / 7, 1e-6)),
    ], False),
    "BLT": ("jax_privacy:BLT", {"noise_multiplier": 7, "decays": [0.5, 0.95], "scales": [0.25, 0.1],
                                "min_separation": 100}, {"rounds": 1000, "delta": 1e-6}, [
        ("zero-out", 1000, 2.3130, BUCKETS, gaussian(3.583116 / 7, 1e-6)),
    ], False),
    "banded": ("jax_privacy:BandedToeplitz", {"noise_multiplier": 4, "bands": 8, "min_separation": 8},
               {"rounds": 80, "delta": 1e-6}, [
        ("zero-out", 80, 3.747218, CLOSED, gaussian(math.sqrt(10) / 4, 1e-6)),
    ], False),
    "12": ("pfl:BandedMatrixFactorization", BANDED, {}, [
        ("zero-out", 2000, 24.966, BUCKETS, poisson(0.680599, 0.24, 42, 1e-6)),
        ("zero-out", 2000, 89.792, CLOSED, gaussian(math.sqrt(42) / 0.680597, 1e-6)),
    ], True),
}  # fmt: skip
LONG = {"10", "10 drop_last"}


@pytest.mark.parametrize("case", CASES)
def test_a_worked_case(case: str) -> None:
    name, arguments, facts, lines, broken = CASES[case]
    answer = ask(name, arguments, **facts)
    assert answer.broken == broken and not answer.fails
    for relation, rounds, expected, tolerance, second in lines:
        found = [one for one in answer.proven if (one.relation, one.rounds) == (relation, rounds) and one.epsilon]
        nearest = min(found, key=lambda one: abs(one.epsilon - expected))
        assert nearest.epsilon == pytest.approx(expected, rel=tolerance), relation
        assert nearest.epsilon == pytest.approx(second(), rel=tolerance), relation


#: name, arguments, facts, whether the claim fails, words of the reason; and what would be proven otherwise
NOTHING: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool, str, float | None]] = {
    "4": ("flower:LocalDpMod", local(2, 8), {"scalars": 20}, True, "20 0-d arrays leave without clip", 7.91437),
    "8": ("nvflare:PercentilePrivacy", {}, {}, False, "largest 90% of all values, cut to 0.01", None),
    "8 off": ("nvflare:PercentilePrivacy", {"gamma": 0}, {}, False, "sends everything", None),
    "9 old": ("nvflare:SVTPrivacy", {}, {"numbers": 61_706, "version": "2.7.2"}, True, "nothing bounds them", None),
    "9 unknown": ("nvflare:SVTPrivacy", {}, {}, True, "add --parameters", None),
    "9 scalars": ("nvflare:SVTPrivacy", {}, {"numbers": 61_706, "scalars": 3}, True, "3 0-d arrays leave", 617.599),
    "6 Adam": ("flower:ServerSideFixedClipping", CENTRAL,
               {"per_round": 20, "clients": 100, "weights": "equal", "server_optimizer": "FedAdam"}, False,
               "noise is added after FedAdam", 91.8173),
    "10 adaptive": ("opacus:PrivacyEngine", {**ENGINE, "clipping": "adaptive"}, HOSPITAL, True, "not centred", 3.24047),
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
NEVER = ("nvflare:ExcludeVars", "nvflare:ModelQuantizer", "nvflare:HEModelEncryptor", "flower:SecAggPlus",
         "paper:Soteria", "paper:PRECODE", "paper:ATS", "paper:Outpost", "paper:CENSOR", "paper:QSGD", "paper:signSGD",
         "paper:top-k")  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_nothing_is_proven_of_what_has_no_noise(name: str) -> None:
    answer = ask(name, {"any": 1})
    assert [line.epsilon for line in answer.proven] == [None] and answer.lines[0].why


def test_every_filter_has_a_case() -> None:
    tested = {name for name, *_ in [*CASES.values(), *NOTHING.values()]} | set(NEVER)
    # Those on the clients' side are as those on the server's, and tested with the command.
    assert {name for name in FILTERS if not name.startswith("flower:Client")} == {
        name for name in tested if not name.startswith("flower:Client")
    }


def test_the_bound_that_runs_off_is_a_warning_and_spoils_no_theorem() -> None:
    answer = ask("flower:ServerSideAdaptiveClipping", {"noise_multiplier": 1, "num_sampled_clients": 100})
    assert any("runs off" in one for one in answer.warnings) and not answer.fails
