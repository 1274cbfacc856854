"""The audit of the auditor: valid defenses are not caught more often than chance allows, planted flaws always."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from harness.audit import AuditResult, AuditSettings, audit, audit_settings

Expectation = Literal["holds", "violates its guarantee", "violates its claim"]

ALLOWED_EXCESSES = 4
"""Of 27 bounds at 95%: more would happen by chance in 1% of suites only, even if every bound were tight."""

_SUM = {"steps": 1, "clients_per_round": 4}
_GAUSSIAN = {"mechanism": "gaussian", "mode": "paper"}
_TOSSES = {"mechanism": "poisson_binomial", "trials": 1, "theta": 0.06}


@dataclass(frozen=True)
class Case:
    """A setting with what its audit must say.

    ``expected`` of ``holds`` means that the bound does not exceed the valid epsilon; it may well exceed a claim.
    """

    about: str
    expected: Expectation
    settings: AuditSettings

    def as_expected(self, result: AuditResult) -> bool:
        """Whether an audit said what it must."""
        if self.expected == "holds":
            return result.epsilon is not None and result.lower_bound <= result.epsilon
        return result.verdict == self.expected


def suite_cases() -> list[Case]:
    """27 audits of valid defenses, each with its own seed, and planted flaws of every kind with three seeds each."""
    valid = [_with_seed(case, seed) for seed, case in enumerate(_valid_cases())]
    return valid + [_with_seed(case, seed) for case in _planted_cases() for seed in range(3)]


def _with_seed(case: Case, seed: int) -> Case:
    return replace(case, settings=replace(case.settings, seed=seed))


def suite_summary(cases: list[Case], results: list[AuditResult]) -> dict[str, Any]:
    """Counts of both kinds, and whether they are as they must be."""
    judged = [(case.expected == "holds", case.as_expected(result)) for case, result in zip(cases, results, strict=True)]
    valid = [good for holds, good in judged if holds]
    planted = [good for holds, good in judged if not holds]
    exceeded = valid.count(False)
    return {
        "valid": len(valid), "exceeded": exceeded, "allowed": ALLOWED_EXCESSES,
        "planted": len(planted), "found": planted.count(True),
        "passed": exceeded <= ALLOWED_EXCESSES and all(planted),
    }  # fmt: skip


def _case(expected: Expectation, about: str, defense: str, settings: dict[str, Any], **arguments: Any) -> Case:
    return Case(about, expected, audit_settings(defense=defense, defense_args=arguments, **settings))


def _valid_cases() -> list[Case]:
    """Most of them at an epsilon of 4 to 5, where the audit has power."""

    def case(about: str, defense: str, settings: dict[str, Any], **arguments: Any) -> Case:
        return _case("holds", about, defense, settings, **arguments)

    whole, layer, alone = {"clipping": "whole"}, {"clipping": "layer"}, {"design": "alone"}
    share, away = {"noise_at": "client", "noise_split": "share"}, {"colluders": 1, "dropouts": 1}
    return [
        case("one step", "fed_cdp", {"steps": 1}, **whole, sigma=1),
        case("one step, small epsilon", "fed_cdp", {**alone, "steps": 1}, **whole, sigma=2),
        case("one step, large epsilon", "fed_cdp", {**alone, "steps": 1}, **whole, sigma=0.5),
        case("two rounds of two steps", "fed_cdp", {"rounds": 2, "steps": 2}, **whole, sigma=2),
        case("Poisson-sampled steps", "fed_cdp", {"steps": 4, "sampling_rate": 0.5}, **whole, sigma=1),
        case("the paper's sigma", "fed_cdp", {"steps": 36}, **whole, sigma=6),
        case("noise on each example", "fed_cdp", {"steps": 1}, **whole, sigma=1 / 32, convention="per_example"),
        case("clipped per tensor", "fed_cdp", {"steps": 2}, **layer, sigma=3),
        case("clipped per tensor", "fed_cdp", {**alone, "steps": 2}, **layer, sigma=4),
        case("noise on the sum", "fed_sdp", {}, **whole, sigma=1),
        case("Poisson-sampled clients", "fed_sdp", {"rounds": 4, "sampling_rate": 0.5}, **whole, sigma=1),
        case("clipped per tensor", "fed_sdp", alone, **layer, sigma=3),
        case("every client its noise", "fed_sdp", {"rounds": 3}, **whole, sigma=2, noise_at="client"),
        case("every client a share", "fed_sdp", {"view": "third party"}, **whole, sigma=1, **share),
        case("adaptive bound of clients", "quantile", {"rounds": 3}, sigma=1.5),
        case("adaptive bound of clients", "quantile", {**alone, "rounds": 3}, sigma=1.5),
        case("adaptive bound of examples", "quantile", {"steps": 3}, unit="example", sigma=1.5),
        case("adaptive scales", "adaclip", {"steps": 3}, sigma=1.5),
        case("adaptive scales", "adaclip", {**alone, "steps": 3}, sigma=1.5),
        case("fixed bound", "global_dp", {"rounds": 4}, sigma=2),
        case("noise shared in a sum", "secagg_ddp", _SUM, sigma=1),
        case("one colludes, one leaves", "secagg_ddp", {**_SUM, "clients_per_round": 6}, sigma=1, **away),
        case("shared, Poisson-sampled steps", "secagg_ddp", {**_SUM, "sampling_rate": 0.5}, sigma=1),
        case("shared in two rounds", "secagg_ddp", {**_SUM, "rounds": 2}, sigma=1.5),
        case("Gaussian noise shared", "secagg_ddp", _SUM, **_GAUSSIAN, sigma=1),
        case("coin tosses shared", "secagg_ddp", _SUM, **_TOSSES),
        case("steps of several clients", "fed_cdp", {**_SUM, "view": "third party"}, **whole, sigma=0.5),
    ]


def _planted_cases() -> list[Case]:
    guarantee, claim = "violates its guarantee", "violates its claim"
    silent, alone = {"noise_scale": 0, "steps": 1}, {"design": "alone", "steps": 1}
    half = {**alone, "noise_scale": 0.5, "canaries": 20_000}
    norm = {"design": "norm", "steps": 1}
    # One run's bound is several times below the epsilon of the same noise: flaws must leave a fraction of it.
    many = {"steps": 1, "clients_per_round": 16, "delta": 1e-4}
    added, few = {"sigma": 2, "protocol": "sum"}, {**_TOSSES, "theta": 0.03}
    return [
        _case(guarantee, "noise switched off", "fed_cdp", silent, clipping="whole", sigma=2),
        _case(guarantee, "noise switched off", "fed_sdp", silent, clipping="whole", sigma=2),
        _case(guarantee, "half the noise", "fed_cdp", half, clipping="whole", sigma=4 / 3),
        _case(claim, "sigma=0 under the paper's claim", "fed_cdp", {"steps": 1}, sigma=0),
        _case(claim, "sqrt(M) left out", "fed_cdp", {**alone, "canaries": 5000}, sigma=1.2),
        _case(claim, "noise follows the data (l2-max)", "fed_acdp", norm),
        _case(claim, "noise follows the data (median)", "global_dp", {**norm, "rounds": 2}, bound="median"),
        _case(guarantee, "shares of 1/K, not 1/sqrt(K)", "secagg_ddp", {**many, "noise_scale": 1 / 4}, **added),
        _case(guarantee, "colluders that nobody counts", "secagg_ddp", {**many, "colluders": 15}, **added),
        _case(claim, "Gaussian shares of 1/K", "secagg_ddp", {**many, "noise_scale": 1 / 4}, **_GAUSSIAN, **added),
        _case(guarantee, "100 times the coin tosses", "secagg_ddp", {**_SUM, "noise_scale": 0.1}, **few),
    ]


def test_the_suite_is_27_valid_runs_and_every_flaw() -> None:
    cases = suite_cases()
    assert sum(case.expected == "holds" for case in cases) == 27
    assert len({case.about for case in cases if case.expected != "holds"}) >= 10
    assert len({(case.about, case.settings.seed, case.settings.defense) for case in cases}) == len(cases)


class _Said:
    """An audit's answer, as far as the suite looks at it."""

    def __init__(self, epsilon: float | None, lower_bound: float, verdict: str) -> None:
        self.epsilon, self.lower_bound, self.verdict = epsilon, lower_bound, verdict


@pytest.mark.parametrize(("excesses", "missed", "passed"), [(0, 0, True), (4, 0, True), (5, 0, False), (0, 1, False)])
def test_when_the_suite_passes(excesses: int, missed: int, passed: bool) -> None:
    cases = suite_cases()
    said: list[Any] = [
        _Said(1.0, 2.0 if number < excesses else 0.5, "consistent") if case.expected == "holds"
        else _Said(None, 4.0, case.expected)
        for number, case in enumerate(cases)
    ]  # fmt: skip
    for place in range(missed):
        said[-1 - place].verdict = "consistent"
    assert suite_summary(cases, said)["passed"] is passed


@pytest.mark.slow
def test_the_suite(tmp_path: Path) -> None:
    cases = suite_cases()
    counts = suite_summary(cases, [audit(case.settings, tmp_path) for case in cases])
    assert (counts["passed"], counts["valid"]) == (True, 27)
    assert counts["found"] == counts["planted"] == 33
