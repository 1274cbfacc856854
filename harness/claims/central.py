"""Central mechanisms of TensorFlow Federated, pfl-research and JAX Privacy, with noise of one round or of several.

Noise is added to the sum of clipped updates, of which each weighs the same. Sources: TensorFlow Federated 63f73da4
(``aggregators/differential_privacy.py``), pfl-research c9d1f32f (``pfl/privacy/``), JAX Privacy 8967688c
(``matrix_factorization/``). Theorems: Andrew et al. 2021 (adaptive clipping), Kairouz et al. 2021 (tree),
Choquette-Choo et al. 2023 and McMahan et al. 2024 (matrix mechanisms).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import REQUIRED, Answer, Arguments, Facts, Line, number, positive
from harness.claims.epsilons import Relation
from harness.claims.filters import RAW, register_filter

_VIEW = "third party, client"
_MOST_ROUNDS = 100_000


def _line(why: str, delta: float) -> Line:
    return Line(_VIEW, "client", "zero-out", 1, None, delta, why)


def _server_reads(answer: Answer, facts: Facts, delta: float) -> Answer:
    answer.nothing(Line("server", "client", "zero-out", 1, None, delta, RAW), facts)
    return answer


def _every_round(noise: float, facts: Facts, why: str) -> Answer:
    """One Gaussian release in each round, without and with Poisson samples of the clients."""
    answer, delta = Answer(), facts.delta or 1e-5
    relations: dict[Relation, float] = {"replace": 2 / noise, "zero-out": 1 / noise}
    sampled = facts.clients is not None and facts.per_round is not None and facts.per_round < facts.clients
    if not (sampled and facts.sampler == "poisson"):
        answer.gaussian(_line(why, delta), relations, facts, judged="zero-out")
    if sampled:
        assert facts.clients and facts.per_round
        rate = facts.per_round / facts.clients
        said = f"{why}, on Poisson samples of clients{'' if facts.sampler else ', if the server draws such'}"
        for relation in relations:
            for rounds in dict.fromkeys((1, facts.rounds)):
                found = epsilons.sampled_epsilon([(noise, rate, rounds)], delta, relation)
                answer.lines.append(
                    Line(_VIEW, "client", relation, rounds, found, delta, said, judged=relation == "zero-out",
                         sampler="poisson")
                )  # fmt: skip
    return _server_reads(answer, facts, delta)


@register_filter(
    "tff:gaussian_fixed", "s0", source="TensorFlow Federated 63f73da4, aggregators/differential_privacy.py",
    does="clips updates to clip and adds Gaussian noise to their sum, which is divided by clients_per_round",
    claims="no number", works="draw clients by Poisson sampling at clients_per_round / clients",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": REQUIRED, "clip": REQUIRED},
)  # fmt: skip
def _tff_fixed(arguments: Arguments, facts: Facts) -> Answer:
    noise, *_ = positive(arguments, "noise_multiplier", "clients_per_round", "clip")
    return _every_round(noise, facts, "exact Gaussian on the sum of clipped updates")


@register_filter(
    "tff:gaussian_adaptive", "s0", source="TensorFlow Federated 63f73da4, aggregators/differential_privacy.py",
    does="clips updates to a noisy quantile of their lengths and adds Gaussian noise by that bound to their sum",
    claims="no number", works="leave zeroing out, whose threshold has no noise, and draw clients by Poisson sampling",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": REQUIRED, "initial_l2_norm_clip": 0.1,
              "target_unclipped_quantile": 0.5, "learning_rate": 0.2, "clipped_count_stddev": None, "zeroing": False},
)  # fmt: skip
def _tff_adaptive(arguments: Arguments, facts: Facts) -> Answer:
    noise, clients = positive(arguments, "noise_multiplier", "clients_per_round")
    bits = 0.05 * clients if arguments["clipped_count_stddev"] is None else number(arguments, "clipped_count_stddev", 0)
    if noise >= 2 * bits:
        raise UsageError(
            f"noise_multiplier {noise:g} must be below twice the noise of the bits, {2 * bits:g}; raise "
            "clients_per_round or clipped_count_stddev"
        )
    answer = _every_round(noise, facts, "updates and their bits together cost one Gaussian release")
    if arguments["zeroing"]:
        answer.fails.append("zeroing compares updates with a quantile of their own that has no noise")
    return answer


@register_filter(
    "pfl:GaussianMechanism", "s0", source="pfl-research c9d1f32f, pfl/privacy/gaussian_mechanism.py",
    does="clips updates to clipping_bound and adds Gaussian noise to their sum",
    claims="no number; an accountant is asked beside it",
    works="weigh users equally, and draw them by Poisson sampling",
    settings={"clipping_bound": REQUIRED, "relative_noise_stddev": REQUIRED},
)  # fmt: skip
def _pfl_gaussian(arguments: Arguments, facts: Facts) -> Answer:
    _, noise = positive(arguments, "clipping_bound", "relative_noise_stddev")
    answer = _every_round(noise, facts, "exact Gaussian on the sum of clipped updates")
    if facts.weights not in ("equal", None):
        answer.fails.append("the sum is divided by weights of the clients, which are private")
    elif facts.weights is None:
        answer.unknown.append("every user weighs the same")
    return answer


# Noise that is correlated over the rounds.


def _taking_part(facts: Facts, apart: int) -> int:
    """The most rounds that one client takes part in, at least ``apart`` rounds from each other."""
    return max(1, min(facts.taking_part, math.ceil(facts.rounds / apart)))


def _over_rounds(sensitivity: float, noise: float, facts: Facts, why: str) -> Answer:
    answer, delta = Answer(), facts.delta or 1e-5
    factors: dict[Relation, float] = {"zero-out": 1.0, "replace": 2.0}
    for relation, factor in factors.items():
        mu = factor * sensitivity / noise
        answer.lines.append(Line(_VIEW, "client", relation, facts.rounds, epsilons.gaussian_epsilon(mu, delta), delta,
                                 why, mu, judged=relation == "zero-out"))  # fmt: skip
    if facts.participations is None and facts.rounds > 1:
        answer.notes.append("a client is taken to be in every round that it may be in; give --participations")
    return _server_reads(answer, facts, delta)


@register_filter(
    "tff:tree_aggregation", "s0", source="TensorFlow Federated 63f73da4, aggregators/differential_privacy.py",
    does="clips updates to clip, and adds to the sum over all rounds so far the noise of few nodes of a binary tree",
    claims="no number", works="let each client take part once in restart_frequency rounds",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": REQUIRED, "clip": REQUIRED, "restart_frequency": None},
)  # fmt: skip
def _tree(arguments: Arguments, facts: Facts) -> Answer:
    noise, *_ = positive(arguments, "noise_multiplier", "clients_per_round", "clip")
    often = arguments["restart_frequency"]
    leaves = facts.rounds if often is None else min(facts.rounds, round(positive(arguments, "restart_frequency")[0]))
    whole, rest = divmod(facts.rounds, leaves)
    left, squares = facts.taking_part, 0.0
    # One client's part of all nodes of a tree is no longer than the parts of its rounds together.
    for size in [leaves] * whole + [rest] * (rest > 0):
        own = min(left, size)
        left -= own
        squares += own**2 * math.ceil(math.log2(size + 1))
    return _over_rounds(math.sqrt(squares), noise, facts, f"noise of a tree over {leaves} rounds")


_SEPARATION = "min_separation is that of the server's sampling, which nothing here enforces"


@register_filter(
    "jax_privacy:BLT", "s0", source="JAX Privacy 8967688c, matrix_factorization/buffered_toeplitz.py",
    does="clips updates to clip, and adds noise that a few buffers correlate over the rounds (BLT)",
    claims="no number", works="let the server keep min_separation rounds between two of one client",
    settings={"noise_multiplier": REQUIRED, "clip": 1.0, "decays": (0.9,), "scales": (0.1,), "min_separation": 1},
)  # fmt: skip
def _buffered(arguments: Arguments, facts: Facts) -> Answer:
    noise, _ = positive(arguments, "noise_multiplier", "clip")
    decays, scales = (_numbers(arguments, name) for name in ("decays", "scales"))
    if len(decays) != len(scales) or not all(0 < one < 1 for one in decays) or not all(one > 0 for one in scales):
        raise UsageError("decays in (0, 1) and scales above 0 are as many; set --arg decays=[0.9] --arg scales=[0.1]")
    if sum(scales) > 1:
        raise UsageError("scales add up to more than 1, so that the strategy does not fall; lower them")
    return _toeplitz(buffered_strategy(decays, scales, _rounds(facts)), noise, arguments, facts)


@register_filter(
    "jax_privacy:BandedToeplitz", "s0", source="JAX Privacy 8967688c, matrix_factorization/toeplitz.py",
    does="clips updates to clip, and adds noise that a banded matrix of square-root coefficients correlates",
    claims="no number", works="let the server keep as many rounds between two of one client as there are bands",
    settings={"noise_multiplier": REQUIRED, "clip": 1.0, "bands": 8, "min_separation": 1},
)  # fmt: skip
def _banded(arguments: Arguments, facts: Facts) -> Answer:
    noise, _, bands = positive(arguments, "noise_multiplier", "clip", "bands")
    return _toeplitz(root_strategy(round(bands))[: _rounds(facts)], noise, arguments, facts)


def _rounds(facts: Facts) -> int:
    if facts.rounds > _MOST_ROUNDS:
        raise UsageError(f"{facts.rounds} rounds are more than {_MOST_ROUNDS} that are computed here; lower --rounds")
    return facts.rounds


def _numbers(arguments: Arguments, name: str) -> tuple[float, ...]:
    given: Any = arguments[name]
    values = list(given) if isinstance(given, list | tuple) else [given]
    return tuple(number({name: one}, name) for one in values)


def _toeplitz(column: np.ndarray, noise: float, arguments: Arguments, facts: Facts) -> Answer:
    apart = round(positive(arguments, "min_separation")[0])
    times = _taking_part(facts, apart)
    sensitivity = toeplitz_sensitivity(column, facts.rounds, times, apart)
    answer = _over_rounds(sensitivity, noise, facts, f"matrix mechanism, {times} participations {apart} rounds apart")
    answer.notes.append(_SEPARATION)
    return answer


def buffered_strategy(decays: Sequence[float], scales: Sequence[float], rounds: int) -> np.ndarray:
    """The first column (T,) of C: 1, and then the sum of scale decay^(t-1)."""
    powers = np.power.outer(np.asarray(decays, float), np.arange(rounds - 1)) if rounds > 1 else np.zeros((1, 0))
    return np.concatenate([[1.0], np.asarray(scales, float) @ powers if rounds > 1 else []])


def root_strategy(bands: int) -> np.ndarray:
    """The first column (b,) of C: coefficients of (1 - x)^(-1/2), scaled to length 1."""
    column = np.cumprod(np.concatenate([[1.0], [(2 * one - 1) / (2 * one) for one in range(1, bands)]]))
    return column / np.linalg.norm(column)


def toeplitz_sensitivity(column: np.ndarray, rounds: int, times: int, apart: int) -> float:
    """The longest sum of ``times`` columns of a non-negative, falling Toeplitz matrix, ``apart`` rounds apart."""
    whole = np.zeros(rounds)
    for start in range(0, times * apart, apart):
        if start < rounds:
            part = column[: rounds - start]
            whole[start : start + len(part)] += part
    return float(np.linalg.norm(whole))
