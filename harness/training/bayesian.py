"""A training run's Bayesian accounting, beside the moments accountant on the same noise.

Source: Triastcyn and Faltings, section V; see docs/accounting.md. What comes out is Bayesian differential privacy
(BDP), never differential privacy: it depends on the data that was seen and covers typical records or clients only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UsageError
from harness.federation.defense import FixedNoise
from harness.privacy.bayesian import (
    DIRECTIONS,
    BayesianEpsilon,
    Direction,
    Level,
    Samples,
    bayesian_epsilon,
    client_samples,
    instance_samples,
    joint_samples,
)
from harness.training.norms import NormsFolder, RoundNorms, Watch
from harness.training.rounds import Training
from harness.training.settings import TrainSettings

# From the norms of a round to the distances of Bayesian accounting, level by level.
#
# Source: Triastcyn and Faltings, section V. Where a client clips its whole update only, an example moves it by at
# most its gradient's share of it, however large the update.

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
    """Rule by which a level reads a round's norms.

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
    levels: Sequence[Level] | None = None,
) -> list[Bayesian]:
    """Every level that the run's noise speaks about, in every direction.

    Noise at the server gives ``client``, for a mean with a fixed denominator, and, where the number of clients is
    fixed, ``client mean``, for the paper's mean over those who took part, which leaving out one of many alike hardly
    moves. Noise of the clients' own gives ``instance sequential`` and ``instance parallel``, and ``joint`` where a
    round has one local step. Each local step is accounted for like a round.

    Args:
        settings: of the run.
        noise: what hid the norms.
        rounds: the norms of all rounds.
        overlap: clients that hold an example, on average.
        delta: of the Chernoff bound; the run's own by default.
        directions: ``max`` (the paper's) and ``L``.
        levels: some of :func:`levels_of`; all by default.
    """
    made = []
    for level in levels or levels_of(settings, noise):
        estimates, counts, bound = estimates_of(level, settings, noise, rounds)
        if not estimates:
            continue  # nobody ever took part
        for direction in directions:
            found = bayesian_epsilon(
                estimates, level, delta or settings.delta, bound=bound, direction=direction,
                local_steps=settings.local_steps,
            )  # fmt: skip
            made.append(Bayesian(found, (min(counts), max(counts)), _conditions(level, settings, overlap)))
    return made


def _conditions(level: Level, settings: TrainSettings, overlap: float) -> tuple[Condition, ...]:
    poisson_clients = Condition(
        f"clients are drawn by Poisson sampling at rate {settings.clients_per_round / settings.clients:g}, in secret "
        f"(this run: {settings.client_sampling})",
        settings.client_sampling == "poisson" or settings.clients_per_round == settings.clients,
    )
    models_only = Condition("whoever looks sees the models only, as all but the server do", True)
    if level == "client":
        return poisson_clients, models_only
    if level == "client mean":
        divided = "without the client, the server would divide by one less (here by the expected number, whoever comes)"
        return poisson_clients, models_only, Condition(divided, False)
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


# Takes the notes of a run that is trained with `--bayesian`.


class Notes:
    """Watches a run and writes down the norms of every round.

    Raises:
        UsageError: the model, the data's scales or the defense's noise or bound are not fixed, or one of the ``done``
            rounds has no notes.
    """

    def __init__(self, run: Training, folder: Path, done: int) -> None:
        if run.holdings.uncovered:
            raise UsageError(
                f"Bayesian accounting would not cover this run ({run.holdings.uncovered}); "
                f"use another {'--model' if run.model.uncovered else '--dataset'}"
            )
        noise = run.defense.fixed_noise(run.settings.facts(run.model.layout, run.settings.rounds))
        if noise is None:
            raise UsageError(
                f"{run.settings.defense} as set adds no Gaussian noise of a fixed scale to vectors clipped to a fixed "
                "bound, so Bayesian accounting does not apply; take global_dp, fed_sdp, fed_cdp or dp_local with noise"
            )
        levels = levels_of(run.settings, noise)
        if not levels:
            raise UsageError(
                "Bayesian accounting of noise on a client's whole message needs one plain local step per round; "
                "set --local-steps 1, or take a defense with noise in every step or at the server"
            )
        self._noise, self._run = noise, run
        self._folder = NormsFolder(folder, run.settings.model_copy(update={"model": run.model_name}))
        if done:
            self._folder.read(done)
        self._watch = Watch(noise.place, "client mean" in levels)
        run.recorders = [self._watch]

    def write(self, number: int) -> None:
        """Writes what was measured in a round, counted from 1."""
        self._folder.write(number, self._watch.take(), self._noise)

    def statements(self, rounds: int) -> list[dict[str, Any]]:
        """Rows of the Bayesian accounting of so many rounds."""
        norms, noise = self._folder.read(rounds)
        return [one.row() for one in bayesian_of_run(self._run.settings, noise, norms, self._run.overlap)]
