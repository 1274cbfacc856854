"""Whole audits: as many right guesses as theory says, valid defenses left alone, planted flaws found."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.audit import federation

WHOLE = {"clipping": "whole"}
ALONE = {"design": "alone"}
SHARE = {"noise_at": "client", "noise_split": "share"}


@pytest.mark.parametrize(
    ("defense", "arguments", "settings", "gap"),
    [
        ("fed_cdp", {**WHOLE, "sigma": 2}, {"steps": 4}, 1.0),
        ("fed_cdp", {**WHOLE, "sigma": 2}, {"rounds": 2, "steps": 2}, 1.0),
        # 4 tensors, 4 steps: 2 * 2 / 4
        pytest.param("fed_cdp", {"sigma": 4}, {**ALONE, "steps": 4}, 1.0, marks=pytest.mark.slow),
        ("fed_sdp", {**WHOLE, "sigma": 1}, {}, 1.0),
        pytest.param("fed_sdp", {"sigma": 2}, ALONE, 1.0, marks=pytest.mark.slow),
        ("fed_sdp", {**WHOLE, "sigma": 1, **SHARE}, {"view": "third party"}, 1.0),
        pytest.param(
            "fed_sdp", {**WHOLE, "sigma": 2, "noise_at": "client"}, {"rounds": 4}, 1.0, marks=pytest.mark.slow
        ),
    ],
)
def test_the_audit_sees_all_there_is(
    audited: Callable,
    expected_correct: Callable[..., float],
    defense: str,
    arguments: dict[str, Any],
    settings: dict[str, Any],
    gap: float,
) -> None:
    """Neither more nor less than the known gap allows; a fifth less noise would be noticed."""
    right = [audited(defense, arguments, seed=seed, **settings).correct for seed in range(6)]
    # The standard deviation of one run is 5.
    assert sum(right) / len(right) == pytest.approx(expected_correct(gap), abs=3 * 5 / 6**0.5)
    assert expected_correct(1.25 * gap) - expected_correct(gap) > 3 * 5 / 6**0.5


@pytest.mark.parametrize(("defense", "settings"), [("fed_cdp", {"steps": 1}), ("fed_sdp", {"steps": 3})])
def test_sampling_hides_canaries(
    audited: Callable, expected_correct: Callable[..., float], defense: str, settings: dict[str, Any]
) -> None:
    arguments, count = {**WHOLE, "sigma": 0.5}, 6
    right = [audited(defense, arguments, seed=seed, sampling_rate=0.5, **settings).correct for seed in range(count)]
    assert sum(right) / count == pytest.approx(expected_correct(2.0, 0.5), abs=3 * 5 / count**0.5)
    assert expected_correct(2.0) - expected_correct(2.0, 0.5) > 3 * 5 / count**0.5


VALID = [
    ("fed_cdp", {**WHOLE, "sigma": 1}, {"steps": 1}),
    ("fed_cdp", {**WHOLE, "sigma": 1}, {"steps": 4, "sampling_rate": 0.5}),
    ("fed_cdp", {"sigma": 3}, {**ALONE, "steps": 2}),
    # A third party sees the sum of one client, not each of all canaries' clients.
    ("fed_cdp", {**WHOLE, "sigma": 1}, {**ALONE, "steps": 1, "view": "third party", "canaries": 100, "guesses": 40}),
    ("fed_cdp", {**WHOLE, "sigma": 1 / 32, "convention": "per_example"}, {"steps": 1}),
    ("fed_sdp", {**WHOLE, "sigma": 1}, {"rounds": 4, "sampling_rate": 0.5}),
    ("quantile", {"sigma": 1.5}, {"rounds": 3}),
    ("quantile", {"unit": "example", "sigma": 1.5}, {"steps": 3}),
    ("adaclip", {"sigma": 1.5}, {"steps": 3}),
    ("global_dp", {"sigma": 2}, {"rounds": 4}),
]


def test_valid_defenses_keep_their_guarantee(audited: Callable) -> None:
    results = [
        audited(defense, arguments, seed=seed, **settings)
        for defense, arguments, settings in VALID
        for seed in range(2)
    ]
    assert sum(result.lower_bound > result.epsilon for result in results) <= 2
    assert all(3 < result.epsilon < 7 for result in results)
    assert sum(result.lower_bound > 1 for result in results) > len(results) / 2


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    ("defense", "arguments", "settings", "verdict"),
    [
        ("fed_cdp", {**WHOLE, "sigma": 2}, {"steps": 1, "noise_scale": 0}, "violates its guarantee"),
        ("fed_sdp", {**WHOLE, "sigma": 2}, {"noise_scale": 0}, "violates its guarantee"),
        ("fed_cdp", {"sigma": 0}, {"steps": 1}, "violates its claim"),
        ("fed_sdp", {"sigma": 0}, {}, "violates its claim"),
        ("fed_acdp", {}, {"design": "norm", "steps": 1}, "violates its claim"),
        ("fed_acdp", {"s_mode": "example_mean"}, {"steps": 1}, "violates its claim"),
        ("global_dp", {"bound": "median"}, {"design": "norm", "rounds": 2, "canaries": 300}, "violates its claim"),
        ("fed_cdp", {"sigma": 0}, {"steps": 1, "claimed_epsilon": 4.5}, "consistent"),
        ("none", {}, {"steps": 1}, "claims nothing"),
    ],
)
def test_planted_flaws_are_found_every_time(
    audited: Callable, seed: int, defense: str, arguments: dict[str, Any], settings: dict[str, Any], verdict: str
) -> None:
    assert audited(defense, arguments, seed=seed, **settings).verdict == verdict


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_half_the_noise_is_found(audited: Callable, seed: int) -> None:
    settings = {**ALONE, "steps": 1, "canaries": 20_000, "seed": seed}
    right = audited("fed_cdp", {**WHOLE, "sigma": 4 / 3}, **settings)
    half = audited("fed_cdp", {**WHOLE, "sigma": 4 / 3}, noise_scale=0.5, **settings)
    assert (right.verdict, half.verdict) == ("consistent", "violates its guarantee")
    assert right.epsilon == half.epsilon == pytest.approx(3.15, abs=0.01)


def test_a_claim_that_ignores_the_tensors_is_found(audited: Callable) -> None:
    """Four tensors clipped to C each have twice the sensitivity that the paper accounts for."""
    result = audited("fed_cdp", {"sigma": 2.0}, **ALONE, steps=1, canaries=40_000, delta=1e-6, claimed_epsilon=2.26)
    assert result.claimed_epsilon < result.epsilon
    assert result.verdict == "violates its claim"


def test_the_crafted_case_is_all_right_or_nothing(audited: Callable) -> None:
    """100 of 100 right prove 3.49 (docs/accounting.md); a fixed bound hides the same canaries."""
    crafted = {"design": "norm", "steps": 1, "canaries": 200, "guesses": 100, "delta": 1e-12}
    found = audited("fed_acdp", {}, **crafted)
    assert found.correct == 100
    assert found.lower_bound == pytest.approx(3.49, abs=0.01)
    assert audited("fed_cdp", {}, **crafted).lower_bound < 0.5


@pytest.mark.parametrize(
    "defense", ["fed_cdp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fed_sdp", "quantile"))]
)
def test_a_function_of_the_seed(audited: Callable, monkeypatch: pytest.MonkeyPatch, defense: str) -> None:
    arguments, settings = {"sigma": 2}, {"steps": 2, "rounds": 2, "canaries": 200, "guesses": 100}
    for design in ("together", "alone"):
        first = audited(defense, arguments, design=design, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(federation, "_CHUNK", 61)
            assert audited(defense, arguments, design=design, **settings) == first
        assert audited(defense, arguments, design=design, seed=1, **settings).correct != first.correct
