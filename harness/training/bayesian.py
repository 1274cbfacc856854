"""A training run's Bayesian accounting, beside the moments accountant on the same noise.

Source: S003, section V; spec: accounting, section 13. What comes out is Bayesian differential privacy (BDP), never
differential privacy: it depends on the data that was seen and covers typical records or clients only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.defenses.fixed_noise import FixedNoise
from harness.privacy.systems import (
    BayesianEpsilon,
    Samples,
    bayesian_epsilon,
    client_samples,
    instance_samples,
    joint_samples,
)
from harness.privacy.systems.bayesian import DIRECTIONS, Direction
from harness.privacy.systems.bayesian_run import Level
from harness.training.settings import TrainSettings
from harness.training.watch import RoundNorms

Array = np.ndarray


@dataclass(frozen=True)
class Condition:
    """Something that the formulas take for granted, and whether this run has it."""

    text: str
    met: bool


@dataclass(frozen=True)
class Bayesian:
    """One Bayesian epsilon of a run.

    Attributes:
        found: the number, its failure probability, the moments accountant's on the same noise.
        samples: smallest and largest number of distances behind an estimate.
        conditions: what both numbers assume of the run beside ``found.assumptions``, which only the Bayesian one needs.
    """

    found: BayesianEpsilon
    samples: tuple[int, int]
    conditions: tuple[Condition, ...]

    @property
    def moments_guarantee(self) -> str:
        """``DP`` where a theorem covers the moments accountant's number for this very run, else ``nominal``."""
        return "DP" if all(condition.met for condition in self.conditions) else "nominal"

    def row(self) -> dict[str, Any]:
        """The record as plain values."""
        return self.found.row() | {
            "samples": list(self.samples), "moments_guarantee": self.moments_guarantee,
            "conditions": [{"text": one.text, "met": one.met} for one in self.conditions],
        }  # fmt: skip


def bayesian_of_run(
    settings: TrainSettings,
    noise: FixedNoise,
    rounds: Sequence[RoundNorms],
    overlap: float,
    delta: float | None = None,
    directions: Sequence[Direction] = DIRECTIONS,
) -> list[Bayesian]:
    """Every level that the run's noise speaks about, in every direction.

    Noise at the server gives ``client``; noise of the clients' own ``instance sequential`` and ``instance parallel``,
    and ``joint`` where a round has one local step. Each local step is accounted for like a round. Where a client clips
    its whole update only, an example moves it by at most its gradient's share of it, however large.

    Args:
        settings: of the run.
        noise: what hid the norms.
        rounds: the norms of all rounds.
        overlap: clients that hold an example, on average.
        delta: of the Chernoff bound; the run's own by default.
        directions: ``max`` (the paper's) and ``L``.
    """
    made = []
    for level in levels_of(settings, noise):
        estimates, counts, bound = _estimates(level, settings, noise, rounds)
        if not estimates:
            continue  # nobody ever took part
        for direction in directions:
            found = bayesian_epsilon(
                estimates, level, delta or settings.delta, bound=bound, direction=direction,
                local_steps=settings.local_steps,
            )  # fmt: skip
            made.append(Bayesian(found, (min(counts), max(counts)), _conditions(level, settings, overlap)))
    return made


def levels_of(settings: TrainSettings, noise: FixedNoise) -> list[Level]:
    """The levels that a run with this noise speaks about."""
    if noise.place == "server":
        return ["client"]
    alone = settings.local_steps == 1 and not settings.algorithm.startswith("scaffold")
    instance: list[Level] = ["instance sequential", "instance parallel"]
    if noise.place == "message":
        return [*instance, "joint"] if alone else []
    return [*instance, *(["joint"] if alone else [])]


def _estimates(
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


def _conditions(level: Level, settings: TrainSettings, overlap: float) -> tuple[Condition, ...]:
    poisson_clients = Condition(
        f"clients are drawn by Poisson sampling at rate {settings.clients_per_round / settings.clients:g}, in secret "
        f"(this run: {settings.client_sampling})",
        settings.client_sampling == "poisson" or settings.clients_per_round == settings.clients,
    )
    if level == "client":
        return (poisson_clients,)
    if level == "joint":
        others = "the noise of every other client of the round is there whoever leaves, and nobody subtracts its own"
        return poisson_clients, Condition(others, False)
    disjoint = Condition(f"no two clients hold an example ({overlap:.2f} hold each one on average)", overlap <= 1)
    batches = Condition(
        f"a batch is drawn by Poisson sampling, or is all a client holds (this run: {settings.batch_sampling}, "
        f"{settings.batch_size} of {settings.client_examples})",
        settings.batch_sampling == "poisson" or settings.batch_size == settings.client_examples,
    )
    if level == "instance parallel":
        return batches, disjoint
    together = Condition("batches are drawn from all clients' data together (here every client from its own)", False)
    return batches, disjoint, together
