"""A training run's Bayesian accounting, beside the moments accountant on the same noise.

Source: Triastcyn and Faltings, section V; see docs/accounting.md. What comes out is Bayesian differential privacy
(BDP), never differential privacy: it depends on the data that was seen and covers typical records or clients only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.federation.defense import FixedNoise
from harness.privacy.bayesian import DIRECTIONS, Direction
from harness.privacy.bayesian_levels import BayesianEpsilon, Level, bayesian_epsilon
from harness.training.norms_reading import estimates_of, levels_of
from harness.training.norms_watch import RoundNorms
from harness.training.settings import TrainSettings


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
