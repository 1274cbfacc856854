"""Filters with noise on sums of clipped updates: pfl-research, TensorFlow Federated and jax_privacy.

Their sums are divided by a public number, so that one client that is left out moves the sum by one clipping bound, and
one that is replaced by two. Sampling helps only if every client joins a round by an independent coin.

Sources: Andrew et al. 2021 (adaptive clipping); Kairouz et al. 2021 (trees); Choquette-Choo et al. 2023, Theorem 4
(banded matrices with samples); Dvijotham et al. 2024 (buffered linear Toeplitz noise).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from harness.base.errors import UsageError
from harness.claims import epsilons
from harness.claims.answers import (
    EXACT,
    REQUIRED,
    Answer,
    Arguments,
    Facts,
    Line,
    agree,
    choice,
    flag,
    number,
    positive,
    share,
    whole,
)  # fmt: skip
from harness.claims.epsilons import Relation
from harness.claims.registry import RAW, line_of, register

THIRD = "third party, client"
_SCALES: dict[Relation, float] = {"zero-out": 1.0, "replace": 2.0}


def _answer(unit: str, why: str, delta: float, rounds: int, **settings: Any) -> tuple[Answer, Line]:
    """An answer that says what the server sees, and a line of so many rounds to fill in."""
    answer, line = Answer(), line_of(unit, why, delta, THIRD, **settings)
    answer.lines.append(replace(line, view="server", why=RAW, rounds=rounds, claimed=None, claimed_delta=None))
    return answer, replace(line, rounds=rounds)


def _plain(answer: Answer, line: Line, mu: float, why: str | None = None) -> None:
    """Adds the lines of Gaussian noise without samples; ``mu`` is for leaving one unit out."""
    for relation, scale in _SCALES.items():
        answer.lines.append(line.filled(
            lambda delta, mu=scale * mu: epsilons.gaussian_epsilon(mu, delta), relation=relation, mu=scale * mu,
            why=why or line.why, judged=relation == "zero-out", conversion=EXACT,
        ))  # fmt: skip


def _sampled(answer: Answer, line: Line, sigma: float, rate: float, times: int, said: str, known: bool = False) -> None:
    """Adds the lines of Gaussian noise on Poisson samples, on condition of what is ``said`` unless it is known."""
    why, ifs = (said, ()) if known else (f"if {said}", (said,))
    answer.sampled(line, [(sigma, rate, times)], why=why, ifs=ifs)


def _cohorts(answer: Answer, line: Line, sigma: float, cohort: float, facts: Facts) -> None:
    """Adds the lines with samples, where the number of clients is known, and without."""
    cohort, drawn = facts.per_round or cohort, facts.sampler == "poisson" and facts.clients is not None
    if not drawn:
        _plain(answer, line, math.sqrt(facts.taking_part) / sigma, "exact Gaussian, without such samples")
    if facts.clients is not None:
        if cohort > facts.clients:
            raise UsageError(f"{cohort:g} clients per round of {facts.clients}; lower it or raise --clients")
        said = "every client joins a round by an independent coin (Poisson samples)"
        _sampled(answer, line, sigma, cohort / facts.clients, facts.rounds, said, drawn)


def _of_a_job(facts: Facts, rounds: int, cohort: float, population: float, name: str) -> None:
    """Refuses facts that contradict the arguments of an accountant, which counts so many rounds.

    Raises:
        UsageError: they do, or the arguments do.
    """
    if cohort > population:
        raise UsageError(f"a cohort of {cohort:g} is above the population {population:g}; lower it")
    agree("--clients", facts.clients, "population", population)
    if facts.rounds > rounds:
        raise UsageError(f"--rounds {facts.rounds} is above {name} {rounds}; lower it or raise --arg {name}=...")


# pfl-research.


@register(
    "pfl:GaussianMechanism", "s1", source="pfl 0.6.0, pfl/privacy/gaussian_mechanism.py", ran=True,
    aliases=("GaussianMechanism", "construct_single_iteration"),
    does="clips all statistics of a client to clipping_bound and adds noise; as a local mechanism",
    claims="(epsilon, delta) of one use, for leaving the client out",
    works="ask for half of what replacing a client may cost",
    settings={"clipping_bound": REQUIRED, "relative_noise_stddev": None, "epsilon": None, "delta": None},
)  # fmt: skip
def _local(arguments: Arguments, facts: Facts) -> Answer:
    positive(arguments, "clipping_bound")
    own, claimed, asked = facts.delta or 1e-5, None, arguments["epsilon"]
    if arguments["delta"] is not None:
        own = number(arguments, "delta", 0.0, 1.0)
    if asked is not None and arguments["relative_noise_stddev"] is not None:
        raise UsageError("epsilon and relative_noise_stddev both say how much noise there is; give one of them")
    if arguments["relative_noise_stddev"] is not None:
        sigma = positive(arguments, "relative_noise_stddev")[0]
    elif asked is not None:
        claimed = positive(arguments, "epsilon")[0]
        sigma = 1 / epsilons.gaussian_mu(claimed, own)
    else:
        raise UsageError("it needs relative_noise_stddev, or epsilon and delta; add --arg epsilon=1")
    answer = Answer(notes=[f"noise of {sigma:.4g} clipping bounds", "the random seed comes from the server's context"])
    line = line_of("client", "exact Gaussian", facts.delta or own, claimed=claimed, claimed_delta=claimed and own)
    answer.gaussian(line, {"zero-out": 1 / sigma, "replace": 2 / sigma}, facts, judged="zero-out")
    return answer


@register(
    "pfl:CentralGaussian", "s0", source="pfl 0.6.0, pfl/privacy/privacy_accountant.py", ran=True,
    aliases=("PLDPrivacyAccountant",),
    does="adds noise to the sum of clipped updates, calibrated by an accountant; benchmarks scale it to another cohort",
    claims="(epsilon, delta) over all rounds, with Poisson samples",
    works="let cohorts be Poisson samples of the size that the noise is scaled to, and weigh users equally",
    settings={"num_compositions": REQUIRED, "cohort_size": REQUIRED, "population": REQUIRED, "noise_cohort_size": None,
              "epsilon": 2.0, "delta": 1e-6, "weighting": "user", "clipping_bound": 1.0},
)  # fmt: skip
def _central(arguments: Arguments, facts: Facts) -> Answer:
    cohort, population = positive(arguments, "cohort_size", "population")
    rounds, weighting = whole(arguments, "num_compositions"), choice(arguments, "weighting", "user", "datapoints")
    claimed, delta = positive(arguments, "epsilon")[0], number(arguments, "delta", 0.0, 1.0)
    noisy = cohort if arguments["noise_cohort_size"] is None else positive(arguments, "noise_cohort_size")[0]
    _of_a_job(facts, rounds, max(cohort, noisy), population, "num_compositions")
    agree("--per-round", facts.per_round, "cohort_size", cohort)
    sigma = calibrated_noise(noisy / population, rounds, claimed, delta)
    answer, line = _answer("client", "", facts.delta or delta, rounds, claimed=claimed, claimed_delta=delta)
    answer.notes.append(f"noise of {sigma:.4g} clipping bounds on a sum of {noisy:g} updates")
    if noisy != cohort:
        answer.fails.append(
            f"noise is scaled to a cohort of {noisy:g} that was not there: with {cohort:g} clients it is "
            f"{sigma * cohort / noisy:.4g} clipping bounds"
        )
    if weighting == "datapoints":
        answer.fails.append("the sum is divided by a private number of examples")
    _sampled(answer, line, sigma, noisy / population, rounds, "cohorts are Poisson samples")
    _plain(answer, line, math.sqrt(rounds) / sigma, "exact Gaussian, without such samples")
    return answer


@register(
    "pfl:CentrallyAppliedPrivacyMechanism", "s0", source="pfl 0.6.0, pfl/privacy/privacy_mechanism.py",
    aliases=("CentrallyAppliedPrivacyMechanism",), claims="no number; an accountant is asked beside it",
    does="clips updates to clipping_bound and adds noise of relative_noise_stddev times it to their sum",
    works="weigh users equally, and draw them by Poisson samples",
    settings={"clipping_bound": 1.0, "relative_noise_stddev": REQUIRED},
)  # fmt: skip
def _centrally_applied(arguments: Arguments, facts: Facts) -> Answer:
    positive(arguments, "clipping_bound")
    sigma = positive(arguments, "relative_noise_stddev")[0]
    answer, line = _answer("client", "", facts.delta or 1e-5, facts.taking_part)
    if facts.weights is None:
        answer.unknown.append("every user weighs the same")
    elif facts.weights != "equal":
        answer.fails.append("the sum is divided by weights of the clients, which are private")
    _cohorts(answer, line, sigma, float(facts.per_round or 1), facts)
    return answer


@register(
    "pfl:AdaptiveClippingGaussianMechanism", "s0", source="pfl 0.6.0, pfl/privacy/adaptive_clipping.py",
    aliases=("AdaptiveClippingGaussianMechanism",), claims="no number; an accountant is asked beside it",
    does="as CentrallyAppliedPrivacyMechanism, with a bound that follows the noisy share of unclipped updates",
    works="weigh users equally, and draw them by Poisson samples",
    settings={"relative_noise_stddev": REQUIRED, "clipping_indicator_noise_stddev": REQUIRED,
              "initial_clipping_bound": 1.0, "adaptive_clipping_norm_quantile": 0.5, "log_space_step_size": 0.2},
)  # fmt: skip
def _adaptive_of_pfl(arguments: Arguments, facts: Facts) -> Answer:
    noise, bits, _ = positive(
        arguments, "relative_noise_stddev", "clipping_indicator_noise_stddev", "initial_clipping_bound"
    )
    if noise >= bits:
        raise UsageError(
            f"relative_noise_stddev {noise:g} must be below clipping_indicator_noise_stddev {bits:g}; raise that"
        )
    # The vector and its bit, scaled to one length, get noise by the old bound together.
    answer = _centrally_applied({"clipping_bound": 1.0, **arguments}, facts)
    answer.notes.append("relative_noise_stddev is the cost of update and bit together")
    return answer


@register(
    "pfl:BandedMatrixFactorization", "s0", source="pfl 0.6.0, pfl/privacy/ftrl_mechanism.py", ran=True,
    aliases=("BandedMatrixFactorizationMechanism",),
    does="adds noise that a banded matrix correlates over the rounds",
    claims="(epsilon, delta), with each of its compositions on a sample at rate cohort/population",
    works="let columns of the matrix have length 1 (corrected=true), draw cohorts by Poisson sampling from one of b "
    "groups in turn, and count them at b times the rate",
    settings={"num_iterations": REQUIRED, "min_separation": 48, "cohort_size": REQUIRED, "population": REQUIRED,
              "epsilon": 2.0, "delta": 1e-6, "clipping_bound": 1.0, "corrected": False},
)  # fmt: skip
def _banded(arguments: Arguments, facts: Facts) -> Answer:
    cohort, population = positive(arguments, "cohort_size", "population")
    rounds, apart = whole(arguments, "num_iterations"), whole(arguments, "min_separation")
    claimed, delta = positive(arguments, "epsilon")[0], number(arguments, "delta", 0.0, 1.0)
    corrected = flag(arguments, "corrected")
    _of_a_job(facts, rounds, cohort, population, "num_iterations")
    agree("--per-round", facts.per_round, "cohort_size", cohort)
    times, rate = math.ceil(rounds / apart), cohort / population
    sigma = calibrated_noise(rate, times, claimed, delta)
    answer, line = _answer("client", "", facts.delta or delta, rounds, claimed=claimed, claimed_delta=delta)
    answer.notes.append(f"noise of {sigma:.4g} clipping bounds; one unit takes part at most {times} times")
    if not corrected and apart > 2:
        answer.fails.append(
            "the rows of its matrix have length 1, where the theorem needs the columns: taking part once counts more "
            "than once (1.58 times at 40 rounds and min_separation 6)"
        )
    if (facts.participations or 0) > times:
        answer.fails.append(f"a client takes part {facts.participations} times, and {times} times are counted")
    else:
        answer.unknown.append(f"one unit takes part at most once in {apart} rounds, which nothing enforces")
    _in_groups(answer, line, sigma, min(1.0, apart * rate), times, apart)
    return answer


def _in_groups(answer: Answer, line: Line, sigma: float, rate: float, times: int, groups: int) -> None:
    said = f"cohorts are Poisson samples of {groups} groups in turn: rate {rate:g}"
    _sampled(answer, line, sigma, rate, times, said)
    _plain(answer, line, math.sqrt(times) / sigma, "without that sampling")


Parts = Sequence[tuple[float, float, int]]


@lru_cache(maxsize=64)
def calibrated_noise(rate: float, times: int, epsilon: float, delta: float) -> float:
    """The noise multiplier that gives epsilon in so many rounds with Poisson samples at a rate."""
    return _calibrated(lambda sigma: [(sigma, rate, times)], epsilon, delta)


def _calibrated(parts: Callable[[float], Parts], epsilon: float, delta: float) -> float:
    """The noise multiplier that gives epsilon, between the Renyi bound's and less, by false position on its log."""
    low, high = -3.0, 14.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        bound = epsilons.renyi_epsilon(parts(math.exp(middle)), delta)
        low, high = (low, middle) if bound <= epsilon else (middle, high)
    low, kept = high - 0.3, 0
    above, below = (math.log(epsilons.sampled_epsilon(parts(math.exp(x)), delta) / epsilon) for x in (low, high))
    while high - low > 1e-6 and abs(below) > 1e-5:
        middle = low + (high - low) * above / (above - below)
        found = math.log(epsilons.sampled_epsilon(parts(math.exp(middle)), delta) / epsilon)
        if found <= 0:
            high, below, above, kept = middle, found, above / (2 if kept < 0 else 1), -1
        else:
            low, above, below, kept = middle, found, below / (2 if kept > 0 else 1), 1
    return math.exp(high)


# TensorFlow Federated.

_TFF = "tensorflow-federated 0.87.0, aggregators/differential_privacy.py"
_NO_NUMBER = "no number: its documentation names papers to compute it"


@register(
    "tff:gaussian_fixed", "s0", source=_TFF, ran=True, aliases=("gaussian_fixed",), claims=_NO_NUMBER,
    does="adds noise of z clip to the sum of clipped updates, divided by a fixed number of clients",
    works="draw clients by independent coins, or count without samples",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": REQUIRED, "clip": 1.0},
)  # fmt: skip
def _fixed(arguments: Arguments, facts: Facts) -> Answer:
    noise, cohort, _ = positive(arguments, "noise_multiplier", "clients_per_round", "clip")
    agree("--per-round", facts.per_round, "clients_per_round", cohort)
    answer, line = _answer("client", "", facts.delta or 1e-5, facts.taking_part)
    _cohorts(answer, line, noise, cohort, facts)
    return answer


_QUANTILE = {
    "noise_multiplier": REQUIRED, "clients_per_round": REQUIRED, "initial_l2_norm_clip": 0.1,
    "target_unclipped_quantile": 0.5, "learning_rate": 0.2, "clipped_count_stddev": None,
}  # fmt: skip


@register(
    "tff:gaussian_adaptive", "s0", source=_TFF, ran=True, aliases=("gaussian_adaptive",), claims=_NO_NUMBER,
    settings=_QUANTILE,
    does="as gaussian_fixed, with a bound that follows the noisy share of unclipped updates",
    works="draw clients by independent coins, or count without samples",
)  # fmt: skip
def _adaptive(arguments: Arguments, facts: Facts) -> Answer:
    noise, cohort = positive(arguments, "noise_multiplier", "clients_per_round")
    agree("--per-round", facts.per_round, "clients_per_round", cohort)
    given = arguments["clipped_count_stddev"]
    bits = 0.05 * cohort if given is None else positive(arguments, "clipped_count_stddev")[0]
    if noise >= 2 * bits:
        raise UsageError(
            f"noise_multiplier {noise:g} must be below twice the noise of the count, {2 * bits:g}; raise "
            f"clients_per_round above {10 * noise:g}, or clipped_count_stddev"
        )
    # Bits of 1/2 and -1/2, a fixed number of clients, noise by the old bound: mean and count together cost z.
    answer, line = _answer("client", "", facts.delta or 1e-5, facts.taking_part)
    answer.notes.append("noise_multiplier is the cost of mean and count together")
    _cohorts(answer, line, noise, cohort, facts)
    return answer


@register(
    "tff:dp_aggregator", "s0", source="tensorflow-federated 0.87.0, learning/model_update_aggregator.py", ran=True,
    aliases=("dp_aggregator",), claims=_NO_NUMBER,
    does="gaussian_adaptive, after a rule that zeroes large updates at a quantile without noise",
    works="set zeroing to False",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": REQUIRED, "zeroing": True},
)  # fmt: skip
def _aggregator(arguments: Arguments, facts: Facts) -> Answer:
    answer = _adaptive({**_QUANTILE, **arguments}, facts)
    if flag(arguments, "zeroing"):
        answer.fails.append("zeroing compares with a quantile without noise: one client moves which others are zeroed")
    return answer


@register(
    "tff:tree_aggregation", "s0", source=_TFF, ran=True, aliases=("tree_aggregation",), claims=_NO_NUMBER,
    does="adds noise of z clip to every node of a binary tree over the rounds, or over restart_frequency of them",
    works="let each client take part once in a tree",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": 1.0, "l2_norm_clip": 1.0, "restart_frequency": None,
              "use_efficient": True},
)  # fmt: skip
def _tree(arguments: Arguments, facts: Facts) -> Answer:
    flag(arguments, "use_efficient")  # less noise in sums, of the same noisy nodes: it costs nothing
    often = arguments["restart_frequency"]
    leaves = facts.rounds if often is None else whole(arguments, "restart_frequency")
    return _trees(positive(arguments, "noise_multiplier")[0], _in_trees(facts.rounds, leaves), facts)


def _in_trees(rounds: int, leaves: int) -> list[int]:
    """The leaves of each tree; where a tree has fewer rounds, it has fewer."""
    whole, rest = divmod(rounds, leaves)
    if whole > 10**6:
        raise UsageError(f"{whole} trees are too many to count; raise restart_frequency")
    return [leaves] * whole + [rest] * (rest > 0)


@register(
    "tff:tree_adaptive", "s0", source=_TFF, ran=True, aliases=("tree_adaptive",), claims=_NO_NUMBER,
    does="as tree_aggregation, with a new tree and a new bound after restart_warmup and restart_frequency rounds",
    works="let each client take part once in a tree",
    settings={"noise_multiplier": REQUIRED, "clients_per_round": 1.0, "initial_l2_norm_clip": 0.1,
              "restart_warmup": 128, "restart_frequency": 1024},
)  # fmt: skip
def _restarted(arguments: Arguments, facts: Facts) -> Answer:
    first, next_ = whole(arguments, "restart_warmup"), whole(arguments, "restart_frequency")
    trees = [min(first, facts.rounds), *_in_trees(max(0, facts.rounds - first), next_)]
    return _trees(positive(arguments, "noise_multiplier")[0], trees, facts)


def _trees(noise: float, trees: list[int], facts: Facts) -> Answer:
    """The answer for trees of so many leaves; k turns in one tree move each of its nodes by k at most."""
    answer, line = _answer("client", "exact Gaussian on the nodes of the tree", facts.delta or 1e-5, facts.rounds)
    depths = [epsilons.tree_depth(leaves) for leaves in trees]
    answer.notes.append(f"a leaf is in at most {max(depths)} nodes; noise is correlated over rounds")
    if facts.participations is None:
        answer.unknown.append("each client takes part at most once in a tree, which nothing enforces")
        _plain(answer, line, math.sqrt(sum(depths)) / noise)
    else:
        left, squares = facts.taking_part, 0
        for leaves, depth in sorted(zip(trees, depths, strict=True), reverse=True):
            squares += min(left, leaves) ** 2 * depth
            left -= min(left, leaves)
        _plain(answer, line, math.sqrt(squares) / noise)
    return answer


# jax_privacy.


@register(
    "jax_privacy:BufferedToeplitz", "s0", aliases=("BufferedToeplitz",),
    source="jax_privacy 2.0.0, matrix_factorization/buffered_toeplitz.py", ran=True, claims="no number of its own",
    does="adds noise that buffers of the model's size correlate over the rounds",
    works="let the server enforce min_separation and max_participations",
    settings={"noise_multiplier": REQUIRED, "buf_decay": REQUIRED, "output_scale": REQUIRED, "clip": 1.0,
              "min_separation": 1, "max_participations": None},
)  # fmt: skip
def _buffered(arguments: Arguments, facts: Facts) -> Answer:
    column = buffered_column(arguments["buf_decay"], arguments["output_scale"], facts.rounds)
    return _toeplitz(column, arguments, facts)


@register(
    "jax_privacy:BandedToeplitz", "s0", source="jax_privacy 2.0.0, matrix_factorization/toeplitz.py",
    ran=True,
    claims="no number of its own",
    does="adds noise that a banded matrix of square-root coefficients correlates over the rounds",
    works="let the server enforce as many rounds between two turns as there are bands",
    settings={"noise_multiplier": REQUIRED, "bands": 8, "clip": 1.0, "min_separation": 1, "max_participations": None},
)  # fmt: skip
def _banded_toeplitz(arguments: Arguments, facts: Facts) -> Answer:
    return _toeplitz(root_column(_in_a_matrix("bands", whole(arguments, "bands"))), arguments, facts)


def _toeplitz(column: Sequence[float], arguments: Arguments, facts: Facts) -> Answer:
    noise, *_ = positive(arguments, "noise_multiplier", "clip")
    answer, line = _answer("client", "exact Gaussian by the sensitivity of the matrix", facts.delta or 1e-5,
                           _in_a_matrix("rounds", facts.rounds))  # fmt: skip
    turns, apart = _turns(answer, arguments, facts)
    if any(after > before or after < 0 for before, after in pairwise(column)):
        answer.fails.append("the coefficients do not fall, or are negative: the theorem does not cover them")
    sensitivity = epsilons.toeplitz_sensitivity(column, facts.rounds, turns, apart)
    answer.notes.append(f"sensitivity {sensitivity:.6g} clipping bounds")
    _plain(answer, line, sensitivity / noise)
    return answer


def _turns(answer: Answer, arguments: Arguments, facts: Facts) -> tuple[int, int]:
    """Return how often a client takes part at most, and how many rounds apart. A number that is only declared becomes a
    condition.

    Raises:
        UsageError: the rounds that are known to have a client contradict what is declared.
    """
    apart, declared = whole(arguments, "min_separation"), arguments["max_participations"]
    most = facts.rounds if declared is None else whole(arguments, "max_participations")
    fitting, known = math.ceil(facts.rounds / apart), facts.participations
    if known is None:
        turns = min(most, fitting)
    elif known > most:
        raise UsageError(f"{known} participations contradict max_participations {most}; give both the same")
    elif known > fitting:
        raise UsageError(
            f"{known} participations do not fit in {facts.rounds} rounds with min_separation {apart}; lower one of them"
        )
    else:
        turns = known
    if apart > 1 and turns > 1:
        answer.unknown.append(f"the server enforces {apart} rounds between two turns of a client")
    if known is None and most < fitting:
        answer.unknown.append(f"the server enforces max_participations {most}")
    return turns, apart


def root_column(bands: int) -> list[float]:
    """The first column (b,) of a banded matrix: coefficients of (1 - x)^(-1/2), scaled to length 1."""
    column = [1.0]
    for one in range(1, bands):
        column.append(column[-1] * (2 * one - 1) / (2 * one))
    length = math.hypot(*column)
    return [value / length for value in column]


_LARGEST = 10**6


def _in_a_matrix(name: str, value: int) -> int:
    """The number, unless a matrix of that size is too large to count with."""
    if value > _LARGEST:
        raise UsageError(f"{value} {name} are too many for a matrix; ask about {_LARGEST} at most")
    return value


def buffered_column(decays: Any, scales: Any, rounds: int) -> list[float]:
    """The first column 1, sum of w, sum of w th, ... of a matrix with buffers."""
    _in_a_matrix("rounds", rounds)
    if not (
        isinstance(decays, list | tuple) and isinstance(scales, list | tuple) and 0 < len(decays) == len(scales) <= 100
    ):
        raise UsageError("buf_decay and output_scale must be lists of one length; write --arg buf_decay=[0.9]")
    pairs = [
        (share({"buf_decay": decay}, "buf_decay", zero=True), number({"output_scale": scale}, "output_scale"))
        for decay, scale in zip(decays, scales, strict=True)
    ]
    steps = np.arange(rounds - 1.0)
    return [1.0, *sum((scale * decay**steps for decay, scale in pairs), np.zeros(rounds - 1)).tolist()]


@register(
    "jax_privacy:banded", "s0", source="jax_privacy 2.0.0, experimental/accounting.py", ran=True,
    aliases=("amplified_bandmf_event",), claims="no number of its own: its event is for an accountant",
    does="adds noise that a banded matrix correlates over the steps, with samples of groups in turn",
    works="draw batches by Poisson samples from one of bands groups in turn",
    settings={"noise_multiplier": REQUIRED, "num_bands": REQUIRED, "iterations": REQUIRED,
              "expected_batch_size": None, "num_examples": None},
)  # fmt: skip
def _jax_banded(arguments: Arguments, facts: Facts) -> Answer:
    noise = positive(arguments, "noise_multiplier")[0]
    bands, steps = whole(arguments, "num_bands"), whole(arguments, "iterations")
    times = math.ceil(steps / bands)
    answer, line = _answer("example", "", facts.delta or 1e-5, steps)
    if bands > 1:
        answer.unknown.append(f"an example is in a batch at most once in {bands} steps")
    batch = _either(arguments, "expected_batch_size", "--batch-size", facts.batch_size)
    examples = _either(arguments, "num_examples", "--examples", facts.examples)
    if batch is None or examples is None:
        answer.notes.append("with num_examples and expected_batch_size samples are counted too")
        _plain(answer, line, math.sqrt(times) / noise, "exact Gaussian, without samples")
        return answer
    if batch > examples:
        raise UsageError(f"batches of {batch:g} of {examples:g} examples; lower expected_batch_size")
    # Whose group is the smallest is drawn most often.
    _in_groups(answer, line, noise, min(1.0, batch / max(1.0, examples // bands)), times, bands)
    return answer


def _either(arguments: Arguments, name: str, fact: str, known: float | None) -> float | None:
    """An argument, or the fact that says the same."""
    if arguments[name] is None:
        return known
    value = positive(arguments, name)[0]
    agree(fact, known, name, value)
    return value
