"""From scores to a bound, against mechanisms whose epsilon is known."""

import math

import pytest
import torch

from harness.audit import audit_settings
from harness.audit.run import Claim, audit_result, guess
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.privacy import GaussianRelease, Statement, valid_epsilon


def statement(epsilon: float | None) -> Statement:
    return Statement(view="server", epsilon=epsilon, delta=1e-5, unit="example", guarantee="none", notes="as tested")


def bound(scores: torch.Tensor, included: torch.Tensor, claim: Claim, **settings: object) -> tuple[float, str]:
    result = audit_result(audit_settings(canaries=len(scores), **settings), claim, scores, included)
    return result.lower_bound, result.verdict


def test_guesses_by_hand() -> None:
    scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    included = torch.tensor([True, False, True, False, True, False])
    assert guess(scores, included, 2) == 2
    assert guess(scores, included, 4) == 2  # in: 5 and 4, out: 0 and 1
    assert guess(scores, included, 6) == 4


def test_scores_without_information_leave_the_coins_alone() -> None:
    included = torch.rand(1000, generator=generator("coins")) < 0.5
    assert 60 < guess(torch.zeros(1000), included, 200) < 140


def test_diverged_training_is_told() -> None:
    with pytest.raises(UsageError, match="not finite"):
        guess(torch.tensor([1.0, math.nan]), torch.tensor([True, False]), 2)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_gaussian_scores_keep_below_epsilon_and_have_power(sigma: float) -> None:
    """One Gaussian release per canary: a mechanism whose epsilon is known."""
    epsilon, _ = valid_epsilon(GaussianRelease(sigma), 1e-5)
    claim, bounds = Claim("example", statement(epsilon), None), []
    for run in range(20):
        random = generator("gaussian", run)
        included = torch.rand(1000, generator=random) < 0.5
        found, verdict = bound(included + sigma * torch.randn(1000, generator=random), included, claim)
        assert (found > epsilon) == (verdict == "violates its guarantee")
        bounds.append(found)
    assert sum(found > epsilon for found in bounds) <= 3
    assert sorted(bounds)[10] > epsilon / 4


def test_randomised_response_reaches_its_epsilon() -> None:
    """The one mechanism for which the bound is tight: at 95% it is above epsilon rarely, and close below often."""
    epsilon, bounds = 1.0, []
    for run in range(20):
        random = generator("response", run)
        included = torch.rand(1000, generator=random) < 0.5
        truthful = torch.rand(1000, generator=random) < 1 / (1 + math.exp(-epsilon))
        answers = torch.where(truthful, included, ~included).float()
        found, _ = bound(answers, included, Claim("example", statement(epsilon), None), guesses=1000, delta=1e-9)
        bounds.append(found)
    assert sum(found > epsilon for found in bounds) <= 3
    assert sorted(bounds)[10] > 0.75


@pytest.mark.parametrize(
    ("epsilon", "claimed", "found", "verdict"),
    [
        (4.0, 2.0, 1.0, "consistent"),
        (4.0, 2.0, 3.0, "violates its claim"),
        (4.0, 2.0, 5.0, "violates its guarantee"),
        (4.0, None, 3.0, "consistent"),
        (None, 2.0, 3.0, "violates its claim"),
        (None, 2.0, 1.0, "consistent"),
        (None, None, 4.0, "claims nothing"),
    ],
)
def test_verdicts(epsilon: float | None, claimed: float | None, found: float, verdict: str) -> None:
    assert Claim("example", statement(epsilon), claimed).verdict(found) == verdict
