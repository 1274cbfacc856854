"""From the norms of a round to the distances of Bayesian accounting, level by level.

Source: Triastcyn and Faltings, section V. Where a client clips its whole update only, an example moves it by at most
its gradient's share of it, however large the update.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.federation.defense import FixedNoise
from harness.privacy.bayesian import Samples
from harness.privacy.bayesian_levels import Level
from harness.privacy.bayesian_samples import client_samples, instance_samples, joint_samples
from harness.training.norms_watch import RoundNorms
from harness.training.settings import TrainSettings

Array = np.ndarray


def levels_of(settings: TrainSettings, noise: FixedNoise) -> list[Level]:
    """The levels that a run with this noise speaks about."""
    if noise.place == "server":
        # The server divides by the expected number: the mean of those who took part only if that never varies.
        return ["client"] if settings.client_sampling == "poisson" else ["client", "client mean"]
    alone = settings.local_steps == 1 and not settings.has_variates
    instance: list[Level] = ["instance sequential", "instance parallel"]
    if noise.place == "message":
        return [*instance, "joint"] if alone else []
    return [*instance, *(["joint"] if alone else [])]


def estimates_of(
    level: Level, settings: TrainSettings, noise: FixedNoise, rounds: Sequence[RoundNorms]
) -> tuple[list[list[Samples]], list[int], float]:
    """Samples of every estimate, how many distances each has, and the bound on a distance."""
    reading = _reading(level, settings, noise)
    known = [[values[np.isfinite(values)] for values in estimated] for one in rounds for estimated in reading.of(one)]
    known = [[np.minimum(values, reading.bound) for values in estimated] for estimated in known if estimated]
    # Two samples are the least; where there are fewer the round counts at the bound.
    enough = [[values if len(values) > 1 else np.full(2, reading.bound) for values in one] for one in known]
    counts = [len(values) for estimated in known for values in estimated]
    made = [[reading.samples(values) for values in estimated] for estimated in enough]
    return made, counts, float(reading.samples(np.full(2, reading.bound)).distances[0])


@dataclass(frozen=True)
class _Reading:
    """How a level reads a round's norms.

    Attributes:
        of: the norms of each estimate, for every local step that counts like a round.
        bound: the largest such norm that clipping allows.
        samples: the distances that norms come to, with their noise and rate.
    """

    of: Callable[[RoundNorms], list[list[Array]]]
    bound: float
    samples: Callable[[Array], Samples]


def _reading(level: Level, settings: TrainSettings, noise: FixedNoise) -> _Reading:
    per_round, batch, held = settings.clients_per_round, settings.batch_size, settings.client_examples
    deviation, rate = noise.deviation, per_round / settings.clients
    if level == "client":
        return _Reading(
            lambda one: [[one.messages]],
            noise.bound,
            lambda norms: client_samples(norms, deviation / per_round, rate, per_round),
        )
    if level == "client mean":
        others = max(per_round - 1, 1)
        return _Reading(
            lambda one: [[one.apart]],
            2 * noise.bound * others / per_round,
            lambda norms: client_samples(norms, deviation / per_round, rate, others),
        )
    if level == "joint":
        if noise.place == "message":
            return _Reading(
                lambda one: [[one.updates]], noise.bound, lambda norms: joint_samples(norms, deviation, per_round, rate)
            )
        # One client's step may hold more examples than expected if their number is random.
        fullest = held / batch if settings.batch_sampling == "poisson" else 1.0
        return _Reading(
            lambda one: [[one.steps.ravel()]],
            noise.bound * fullest,
            lambda norms: joint_samples(norms, deviation / batch, per_round, rate),
        )
    data_size = held * settings.clients if level == "instance sequential" else held
    bound, on_mean = noise.bound, deviation / batch
    if noise.place == "message":
        # Clipping the update as a whole moves no two updates apart, and two clipped ones are at most 2 C apart.
        on_mean = deviation / settings.learning_rate
        bound = 2 * noise.bound * batch / settings.learning_rate
    return _Reading(
        lambda one: [list(step) for step in one.examples.swapaxes(0, 1)],
        bound,
        lambda norms: instance_samples(norms, on_mean, batch, data_size),
    )
