"""What the server of a secure sum sees: shares of noise add up to what is stated, and mistakes in them are found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.audit import AuditResult, audit_settings
from harness.audit.planted import deal
from harness.audit.run import claim_of
from harness.base import limits
from harness.base.errors import UsageError
from harness.defenses import Cohort, PrivacyFacts, secagg_ddp
from harness.privacy import GaussianRelease, valid_epsilon
from harness.secagg import PoissonBinomial

GAUSSIAN = {"mechanism": "gaussian", "mode": "paper"}
TOSSES = {"mechanism": "poisson_binomial", "trials": 2}
AWAY = {"colluders": 1, "dropouts": 1}
FEW = {"canaries": 300, "guesses": 100, "others": 4, "clients_per_round": 2}
# Of 304 vectors, each rotated into 2,048 coordinates, tossed for as for one of twice its size.
TOSSED = 2048**0.5 * 0.25 * 2**0.5 / 304**0.5
ONE, COUNT = {"steps": 1}, 6
SLOW = pytest.mark.slow
FOUR, TWO = {**ONE, "clients_per_round": 4}, {**ONE, "clients_per_round": 2}


@pytest.fixture
def right(audited: Callable) -> Callable[..., float]:
    """Right guesses of the sum of ``COUNT`` audits, on average."""

    def mean(arguments: dict[str, Any], settings: dict[str, Any], defense: str = "secagg_ddp") -> float:
        return sum(audited(defense, arguments, seed=seed, **settings).correct for seed in range(COUNT)) / COUNT

    return mean


def expected(expected_correct: Callable[..., float], gap: float, settings: dict[str, Any]) -> tuple[float, float]:
    """Right guesses at a gap, and how far the mean of ``COUNT`` runs may be off."""
    counts = {name: settings[name] for name in ("canaries", "guesses") if name in settings}
    # The standard deviation of one run is 5 at most.
    return expected_correct(gap, settings.get("sampling_rate", 1.0), **counts), 3 * 5 / COUNT**0.5


@pytest.mark.parametrize(
    ("defense", "arguments", "settings", "gap"),
    [
        ("secagg_ddp", {"sigma": 1}, FOUR, 1.0),
        pytest.param("secagg_ddp", {"sigma": 1, **AWAY}, {**ONE, "clients_per_round": 6}, 1.0, marks=SLOW),
        pytest.param("secagg_ddp", {"sigma": 2, "protocol": "sum"}, {**FOUR, "rounds": 4}, 1.0, marks=SLOW),
        pytest.param("secagg_ddp", {"sigma": 0.5}, {**FOUR, "sampling_rate": 0.5}, 2.0, marks=SLOW),
        pytest.param("secagg_ddp", {"sigma": 1, **GAUSSIAN}, FOUR, 1.0, marks=SLOW),
        pytest.param("secagg_ddp", {"sigma": 1, **GAUSSIAN, **AWAY}, {**ONE, "clients_per_round": 5}, 1.0, marks=SLOW),
        pytest.param("secagg_ddp", {"sigma": 2**0.5, **GAUSSIAN}, {**FOUR, "steps": 2}, 1.0, marks=SLOW),
        ("secagg_ddp", {"sigma": 0.5**0.5, **GAUSSIAN, "noises": (2, 1, 1)}, {**ONE, "clients_per_round": 3}, 1.0),
        ("secagg_ddp", TOSSES, {**ONE, **FEW}, TOSSED),
        ("fed_cdp", {"sigma": 0.5, "clipping": "whole"}, FOUR, 1.0),
    ],
)
def test_the_sum_shows_all_there_is(
    right: Callable,
    expected_correct: Callable[..., float],
    defense: str,
    arguments: dict[str, Any],
    settings: dict[str, Any],
    gap: float,
) -> None:
    """Neither more nor less than the noise of all clients that count allows."""
    mean, tolerance = expected(expected_correct, gap, settings)
    assert right(arguments, settings, defense) == pytest.approx(mean, abs=tolerance)


def _shares_of_one_over_k(patch: pytest.MonkeyPatch) -> None:
    shared = secagg_ddp._shared
    patch.setattr(
        secagg_ddp, "_shared",
        lambda plan, cohort, *rest: shared(
            replace(plan, noise=plan.noise / cohort.clients_per_round**0.5), cohort, *rest
        ),
    )  # fmt: skip


def _shares_of_twice_the_clients(patch: pytest.MonkeyPatch) -> None:
    shared = secagg_ddp._shared
    patch.setattr(
        secagg_ddp, "_shared",
        lambda plan, cohort, *rest: shared(
            plan, replace(cohort, clients_per_round=2 * cohort.clients_per_round), *rest
        ),
    )  # fmt: skip


def _absent_vectors_toss_no_coins(patch: pytest.MonkeyPatch) -> None:
    encode = PoissonBinomial.encode
    patch.setattr(PoissonBinomial, "encode", lambda one, *inputs: encode(replace(one, slots=1), *inputs))


def _one_client_s_noise_is_known(patch: pytest.MonkeyPatch) -> None:
    """As if it were not there; told by the setting."""


@pytest.mark.parametrize(
    ("flaw", "arguments", "settings", "gap"),
    [
        *(
            pytest.param(flaw, {"sigma": 1, **mechanism}, {**TWO, **beside}, 1.0, marks=SLOW if mechanism else ())
            for flaw, beside in (
                (_shares_of_one_over_k, {}),
                (_shares_of_twice_the_clients, {}),
                (_one_client_s_noise_is_known, {"colluders": 1}),
            )
            for mechanism in ({}, GAUSSIAN)
        ),
        pytest.param(_one_client_s_noise_is_known, TOSSES, {**ONE, **FEW, "colluders": 1}, TOSSED / 2**0.5, marks=SLOW),
        (_absent_vectors_toss_no_coins, TOSSES, {**ONE, **FEW}, TOSSED),
    ],
)
def test_shares_that_do_not_add_up_are_seen(
    right: Callable,
    expected_correct: Callable[..., float],
    monkeypatch: pytest.MonkeyPatch,
    flaw: Callable,
    arguments: dict[str, Any],
    settings: dict[str, Any],
    gap: float,
) -> None:
    """Each leaves half of the variance: more guesses are right than the stated noise allows."""
    flaw(monkeypatch)
    mean, tolerance = expected(expected_correct, gap, settings)
    assert right(arguments, settings) > mean + tolerance


MANY = {**ONE, "clients_per_round": 16, "delta": 1e-4, "canaries": 500, "guesses": 100}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    ("arguments", "settings", "verdict"),
    [
        ({"sigma": 2}, {**MANY, "noise_scale": 1 / 4}, "violates its guarantee"),
        ({"sigma": 2}, {**MANY, "colluders": 15}, "violates its guarantee"),
        ({"sigma": 2, **GAUSSIAN}, {**MANY, "noise_scale": 1 / 4}, "violates its claim"),
        ({**TOSSES, "trials": 1, "theta": 0.1}, {**ONE, **FEW, "noise_scale": 0.1}, "violates its guarantee"),
        ({"sigma": 2}, MANY, "consistent"),
        ({"sigma": 2, **GAUSSIAN}, MANY, "consistent"),
    ],
)
def test_large_flaws_refute_the_statement(
    audited: Callable, seed: int, arguments: dict[str, Any], settings: dict[str, Any], verdict: str
) -> None:
    result: AuditResult = audited("secagg_ddp", {"protocol": "sum", **arguments}, seed=seed, **settings)
    assert (result.verdict, result.view) == (verdict, "server")


VALID = [
    ({"sigma": 1}, FOUR),
    ({"sigma": 1, **AWAY}, {**ONE, "clients_per_round": 6}),
    ({"sigma": 1.5}, {**FOUR, "rounds": 2}),
    ({"sigma": 1}, {**FOUR, "sampling_rate": 0.5}),
    ({"sigma": 3}, {**ONE, "clients_per_round": 3, "steps": 2}),
    ({"sigma": 1}, {**FOUR, "design": "alone", "canaries": 40, "guesses": 20}),
    (TOSSES, {**ONE, **FEW}),
]


@pytest.mark.slow
def test_valid_sums_keep_their_guarantee(audited: Callable) -> None:
    results = [
        audited("secagg_ddp", {"protocol": "sum", **arguments}, seed=seed, **settings)
        for arguments, settings in VALID for seed in range(2)
    ]  # fmt: skip
    assert sum(result.lower_bound > result.epsilon for result in results) <= 2
    assert sum(result.lower_bound > 0.7 for result in results) > len(results) / 2


@pytest.mark.parametrize(
    ("arguments", "settings", "cohort"),
    [
        ({"sigma": 1}, FOUR, Cohort(4, 4, 1, 1, 14)),
        ({"sigma": 1, **AWAY}, {**ONE, "clients_per_round": 6}, Cohort(6, 6, 1, 1, 14)),
        ({"sigma": 1}, {**TWO, "rounds": 3, "sampling_rate": 0.5}, Cohort(2, 2, 3, 1, 14)),
        ({"sigma": 1, **GAUSSIAN}, {}, Cohort(10, 10, 1, 10, 6)),
        (TOSSES, {**TWO, "design": "alone"}, Cohort(2, 2, 1, 1, 1)),
    ],
)
def test_the_statement_is_of_the_federation_that_is_played(
    arguments: dict[str, Any], settings: dict[str, Any], cohort: Cohort
) -> None:
    chosen = audit_settings(defense="secagg_ddp", defense_args=arguments, canaries=50, others=4, guesses=10, **settings)
    defense, facts = chosen.build_defense(), chosen.facts("example", 4, 1510)
    rate = settings.get("sampling_rate", 1.0)
    assert facts == PrivacyFacts(cohort, 4, "none", "none" if rate == 1 else "poisson", rate, 1e-5, 1510)
    stated = {statement.view: statement for statement in defense.statements(facts)}
    claim = claim_of(defense, chosen, "example", facts)
    assert (claim.statement, claim.claimed) == (stated["server"], stated["server"].claimed_epsilon)


def test_steps_of_several_clients_are_stated_with_all_their_noise(audited: Callable) -> None:
    result = audited("fed_cdp", {"sigma": 0.5, "clipping": "whole"}, **FOUR, canaries=50, others=4, guesses=10)
    assert result.epsilon == pytest.approx(valid_epsilon(GaussianRelease(1.0), 1e-5)[0], rel=1e-6)
    assert (result.view, result.clients_per_round) == ("third party", 4)


def test_one_message_is_audited_too(audited: Callable) -> None:
    """A hundredth of the sum's noise variance hides next to nothing, and the statement says so."""
    settings = {**ONE, "view": "message", "clients_per_round": 100, "canaries": 200}
    result = audited("secagg_ddp", {"sigma": 1, "protocol": "sum"}, **settings)
    assert (result.view, result.correct, result.guesses) == ("message", 40, 40)
    assert result.epsilon > 50


@pytest.mark.parametrize(
    ("defense", "arguments", "adjacency"),
    [
        ("fed_sdp", {"clipping": "whole"}, "add/remove"),
        ("fed_sdp", {"clipping": "whole", "noise_at": "client"}, "replace"),
        ("secagg_ddp", {}, "add/remove"),
    ],
)
def test_what_a_bound_holds_for_is_said(
    audited: Callable, defense: str, arguments: dict[str, Any], adjacency: str
) -> None:
    result = audited(defense, arguments, steps=1, canaries=50, guesses=10, others=4)
    assert result.adjacency.startswith(f"{adjacency}: a canary, or")


def test_more_clients_than_memory_holds_are_refused(audited: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 10_000_000)
    with pytest.raises(UsageError, match="lower --clients-per-round"):
        audited("secagg_ddp", {}, **ONE, clients_per_round=1000)


def test_canaries_are_dealt_in_turn_to_those_who_have_examples() -> None:
    dealt = deal(torch.tensor([5, 6, 7, 8, 9]), holders=2, clients=3)
    assert [row[held].tolist() for row, held in zip(dealt.places, dealt.held, strict=True)] == [[5, 7, 9], [6, 8], []]
    assert deal(torch.arange(0), 2, 3).places.shape == (3, 0)
