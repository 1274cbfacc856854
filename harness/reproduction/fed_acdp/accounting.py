"""What the accounting tables share: the paper's settings as events, its accountants, and when a number agrees."""

from functools import lru_cache

from harness.defenses.schedules import NoiseSchedule, Policy, Space
from harness.papers.ordering import AGREES, DIFFERS
from harness.privacy import (
    Accountant,
    Composition,
    GaussianRelease,
    compose,
    effective_sigma,
    make_accountant,
)
from harness.privacy.rdp import Renyi
from harness.reproduction.fed_acdp.paper_accounting import CLIENT_RATE, DELTA, EXAMPLE_RATE, LOCAL_STEPS, ROUNDS, SIGMA

TOLERANCE = 1e-3
IRREPRODUCIBLE = "irreproducible"

# Weight tensors of the released networks, each clipped to C on its own: sigma is worth sigma / sqrt(3).
LAYERS = 3

CONVENTION = (
    "epsilon: moments accountant, Mironov conversion, the released script's orders, Poisson sampling, add/remove, "
    "sigma as printed"
)
PLD_NOTE = "PLD: the tight epsilon of the same releases (privacy loss distributions); RDP improved: today's conversion"


def moments_accountant() -> Accountant:
    """The accountant behind the paper's printed epsilons, every sigma computed exactly."""
    return Renyi("mironov", "paper", grid=None)


def local_steps(rounds: int, sigma: float = SIGMA, rate: float = EXAMPLE_RATE, layers: int = 1) -> GaussianRelease:
    """Fed-CDP: ``rounds`` rounds of L local steps on examples."""
    return GaussianRelease(effective_sigma(sigma, layers), rate, "poisson", count=rounds * LOCAL_STEPS)


def client_rounds(rounds: int, layers: int = 1) -> GaussianRelease:
    """Fed-SDP: ``rounds`` releases of the clients' sum."""
    return GaussianRelease(effective_sigma(SIGMA, layers), CLIENT_RATE, "poisson", count=rounds)


def decaying_rounds(policy: Policy, data: str, space: Space = "eps") -> tuple[Composition, ...]:
    """Fed-αCDP[σ]: one event per round of the dataset's T rounds, sigma_0 = 15, sigma_T = 4.85."""
    return _decaying(policy, ROUNDS[data], space)


@lru_cache(maxsize=64)
def _decaying(policy: Policy, rounds: int, space: Space) -> tuple[Composition, ...]:
    schedule = NoiseSchedule(policy, space, 15.0, 4.85, rounds, LOCAL_STEPS)
    return tuple(
        compose(GaussianRelease(schedule.sigma(number, step), EXAMPLE_RATE, "poisson") for step in range(LOCAL_STEPS))
        for number in range(rounds)
    )


def epsilon_columns(event: GaussianRelease | Composition) -> dict[str, float]:
    """Our numbers for an event: by the paper's convention, by today's conversion, and tight."""
    return {
        "ε": epsilon_of(moments_accountant(), event),
        "RDP improved": epsilon_of(make_accountant("rdp"), event),
        "PLD": epsilon_of(make_accountant("pld"), event),
    }


def epsilon_of(accountant: Accountant, event: GaussianRelease | Composition) -> float:
    """Epsilon at the paper's delta."""
    return accountant.epsilon(event, DELTA).epsilon


def verdict(ours: float, paper: float, known: bool = False) -> str:
    """Whether our number is the paper's; ``known`` marks a cell that no reading of the paper reproduces."""
    if abs(ours - paper) < TOLERANCE:
        return AGREES
    return IRREPRODUCIBLE if known else DIFFERS
