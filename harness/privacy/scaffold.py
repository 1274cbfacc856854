"""Privacy cost of DP-SCAFFOLD and DP-FedAvg to a record, towards a third party and towards the server.

Source: Noble, Bellet, Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data", Claim 4.1,
Theorem 4.1 and appendix B.4; control variates are post-processing, so both algorithms cost the same. See
docs/accounting.md.

Modes:

* ``paper``: as the authors' script has it. Records and users sampled without replacement, replace-one, the bound for
  samples of units applied to samples of users, noise of all users of a round for every local step.
* ``tight``: records sampled by Poisson, add/remove (std 2 sigma C on the sum is then twice the multiplier), users'
  sampling charged by joint convexity, the same noise. Needs Poisson sampling in the code.
* ``proven``: as ``tight``, but only a user's own noise counts wherever its steps depend on what only its own noise
  hides: its own model after more than one local step, its own control variate. What is left for all users' noise is
  DP-FedAvg with one local step.

Why ``paper`` is no bound: leaving a user out of the sample is no neighbour of changing one of its records, which the
theorem for samples of units needs; and see ``proven``.
"""

import math
from dataclasses import dataclass
from typing import Literal

from harness.base.errors import UsageError
from harness.privacy.accountant import choice
from harness.privacy.events import Event, GaussianRelease, MechanismRelease
from harness.privacy.mechanism import Claimed, GaussianNoise, Mechanism, Repeated, Sampled, TakingPart
from harness.privacy.rdp import Renyi

Viewer = Literal["third party", "server"]
Mode = Literal["paper", "tight", "proven"]

MODES: tuple[Mode, ...] = ("paper", "tight", "proven")
VIEWERS: tuple[Viewer, ...] = ("third party", "server")


@dataclass(frozen=True)
class Scaffold:
    """The plain numbers of a run.

    Attributes:
        sigma: the paper's sigma_g: noise std over twice the clipping bound, on a user's sum of gradients.
        users, records: M users with R training records each.
        steps, rounds: K local steps, T rounds.
        user_rate, data_rate: l and s, in (0, 1].
        warm_up: rounds before them that set the control variates (DP-SCAFFOLD-warm); they are charged too.
        variates: whether users keep control variates (DP-SCAFFOLD); False for DP-FedAvg.

    Raises:
        UsageError: a value is out of its range.
    """

    sigma: float
    users: int
    records: int
    steps: int
    rounds: int
    user_rate: float = 0.2
    data_rate: float = 0.2
    warm_up: int = 0
    variates: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma > 0):
            raise UsageError(f"sigma must be above 0, got {self.sigma:g}; without noise no epsilon holds")
        if min(self.users, self.records, self.steps) < 1 or min(self.rounds, self.warm_up) < 0:
            raise UsageError("users, records and steps must be at least 1, rounds and warm-up at least 0")
        if not (0 < self.user_rate <= 1 and 0 < self.data_rate <= 1):
            raise UsageError("both sampling rates must lie in (0, 1]; give shares of users and of records")

        if self.taking_part < 1:
            raise UsageError(f"{self.user_rate:g} of {self.users} users is less than one; raise the user rate")

    @property
    def taking_part(self) -> float:
        """lM, users of a round."""
        return self.user_rate * self.users

    @property
    def delta(self) -> float:
        """The paper's delta, one over all records."""
        return 1 / (self.users * self.records)


def scaffold_event(run: Scaffold, viewer: Viewer = "third party", mode: Mode = "tight") -> Event:
    """Everything a viewer gets to see. A server knows who takes part: worst case, a user of every round.

    Raises:
        UsageError: unknown viewer or mode.
    """
    choice(viewer, VIEWERS, "viewer")
    choice(mode, MODES, "mode")
    rounds = run.rounds + run.warm_up
    own = run.steps > 1 or run.variates
    together = viewer == "third party" and not (mode == "proven" and own)
    sigma = run.sigma * (math.sqrt(run.taking_part) if together else 1.0)
    if mode == "paper":
        return _paper(run, sigma, rounds, viewer)
    if viewer == "server":
        rate = run.data_rate
        return GaussianRelease(2 * sigma, rate, "poisson" if rate < 1 else "none", count=rounds * run.steps)
    steps: Mechanism = Repeated(Sampled(GaussianNoise(2 * sigma), run.data_rate, "poisson"), run.steps)
    if together and own:
        steps = Claimed(steps, "users' models and control variates are hidden by their own noise alone")
    return MechanismRelease(TakingPart(steps, run.user_rate), count=rounds)


def _paper(run: Scaffold, sigma: float, rounds: int, viewer: Viewer) -> Event:
    steps = Repeated(Sampled(GaussianNoise(sigma), run.data_rate, "without-replacement", capped=False), run.steps)
    if viewer == "server":
        return MechanismRelease(steps, adjacency="replace", count=rounds)
    claimed = Claimed(steps, "samples of users are charged like samples of records")
    return MechanismRelease(claimed, run.user_rate, "without-replacement", "replace", rounds)


def scaffold_accountant(mode: Mode = "tight") -> Renyi:
    """The accountant of a mode: the script's (Mironov conversion, integer orders) or our own."""
    return Renyi("mironov", tuple(range(2, 129))) if mode == "paper" else Renyi("improved", "dense")


def scaffold_epsilon(run: Scaffold, viewer: Viewer = "third party", mode: Mode = "tight") -> float:
    """Epsilon at the paper's delta, 1/(MR), towards both viewers."""
    return scaffold_accountant(mode).epsilon(scaffold_event(run, viewer, mode), run.delta).epsilon
