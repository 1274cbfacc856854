"""What a run costs in privacy: events, accountants, budgets, views, statements and the audit's bound."""

from harness.privacy import composition, pld, rdp  # noqa: F401  (imported to register)
from harness.privacy.accountant import ACCOUNTANTS, Accountant, AdditiveAccountant, Epsilon, make_accountant
from harness.privacy.audit_bound import audit_lower_bound, audit_p_value
from harness.privacy.budget import Stop, rounds_within, sigma_for, steps_within
from harness.privacy.distributed_noise import PoissonBinomialSum, SkellamSum, skellam_sum
from harness.privacy.events import (
    Composition,
    Event,
    GaussianRelease,
    MechanismRelease,
    NoEvent,
    NonPrivate,
    compose,
)
from harness.privacy.mechanism import GaussianNoise, Mechanism, Repeated, Sampled, TakingPart
from harness.privacy.reconstruction import GaussianLimit, Limit, NoLimit, PureLimit, RenyiLimit, RunLimit
from harness.privacy.statement import (
    GUARANTEES,
    Statement,
    claimed_epsilon,
    make_statement,
    repeatable,
    valid_epsilon,
    what_holds,
    without_guarantee,
)
from harness.privacy.views import (
    FederationFacts,
    View,
    client_views,
    effective_sigma,
    example_views,
    kept_place,
    sum_multiplier,
)

__all__ = [
    "ACCOUNTANTS",
    "GUARANTEES",
    "Accountant",
    "AdditiveAccountant",
    "Composition",
    "Epsilon",
    "Event",
    "FederationFacts",
    "GaussianLimit",
    "GaussianNoise",
    "GaussianRelease",
    "Limit",
    "Mechanism",
    "MechanismRelease",
    "NoEvent",
    "NoLimit",
    "NonPrivate",
    "PoissonBinomialSum",
    "PureLimit",
    "RenyiLimit",
    "Repeated",
    "RunLimit",
    "Sampled",
    "SkellamSum",
    "Statement",
    "Stop",
    "TakingPart",
    "View",
    "audit_lower_bound",
    "audit_p_value",
    "claimed_epsilon",
    "client_views",
    "compose",
    "effective_sigma",
    "example_views",
    "kept_place",
    "make_accountant",
    "make_statement",
    "repeatable",
    "rounds_within",
    "sigma_for",
    "skellam_sum",
    "steps_within",
    "sum_multiplier",
    "valid_epsilon",
    "what_holds",
    "without_guarantee",
]
