"""Privacy cost of a run: events, accountants, budgets, views, statements and the audit's bound."""

from harness.privacy import pld, rdp  # imported to register
from harness.privacy.accountant import ACCOUNTANTS, Accountant, make_accountant
from harness.privacy.budget import rounds_within, sigma_for, steps_within
from harness.privacy.contradictions import lineup_p_value, strict_p_value
from harness.privacy.distributed_noise import PoissonBinomialSum, SkellamSum, skellam_sum
from harness.privacy.events import Composition, Event, GaussianRelease, MechanismRelease, NoEvent, NonPrivate, compose
from harness.privacy.mechanism import GaussianNoise, Repeated, Sampled, TakingPart
from harness.privacy.reconstruction import GaussianLimit, Limit, NoLimit, PureLimit, RenyiLimit, RunLimit, combined
from harness.privacy.several import several_targets
from harness.privacy.views import (
    GUARANTEES,
    FederationFacts,
    Statement,
    View,
    claimed_epsilon,
    client_views,
    effective_sigma,
    example_views,
    kept_place,
    make_statement,
    repeatable,
    sum_multiplier,
    valid_epsilon,
    what_holds,
    without_guarantee,
)
