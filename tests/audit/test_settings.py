"""What is claimed is claimed for what ran: the sampler, the steps, the tensors, the view."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from harness.audit import AuditResult, audit_settings
from harness.audit.run import claim_of, unit_of
from harness.base.errors import UsageError
from harness.defenses import ClipUpdate, Cohort, Custom, Defense, GaussianNoise, Operation, validated_defense
from harness.privacy import GaussianRelease, compose, valid_epsilon

QUICK = {"canaries": 50, "others": 4, "guesses": 10}
WHOLE = {"clipping": "whole"}


@pytest.mark.parametrize(
    ("defense", "arguments", "settings", "release", "view"),
    [
        ("fed_cdp", {**WHOLE, "sigma": 2}, {"rounds": 2, "steps": 3}, GaussianRelease(2, count=6), "server"),
        ("fed_cdp", {"sigma": 2}, {"steps": 3, "design": "alone"}, GaussianRelease(1, count=3), "server"),
        (
            "fed_cdp", {**WHOLE, "sigma": 2}, {"steps": 3, "sampling_rate": 0.25},
            GaussianRelease(2, 0.25, "poisson", count=3), "server",
        ),
        ("fed_sdp", {**WHOLE, "sigma": 2}, {"rounds": 3, "steps": 7}, GaussianRelease(2, count=3), "third party"),
        pytest.param(
            "fed_sdp", {**WHOLE, "sigma": 2}, {"sampling_rate": 0.5, "design": "alone"},
            GaussianRelease(2, 0.5, "poisson"), "third party", marks=pytest.mark.slow,
        ),
        (
            "fed_sdp", {**WHOLE, "sigma": 2, "noise_at": "client"}, {},
            GaussianRelease(1, adjacency="replace"), "server",
        ),
    ],
)  # fmt: skip
def test_epsilon_of_what_ran(
    audited: Callable, defense: str, arguments: dict[str, Any], settings: dict[str, Any], release: Any, view: str
) -> None:
    result: AuditResult = audited(defense, arguments, **QUICK, **settings)
    assert result.epsilon == pytest.approx(valid_epsilon(compose([release]), 1e-5)[0], rel=1e-6)
    assert (result.view, result.sampler, result.sampling_rate) == (view, release.sampler, release.q)


def test_noise_scale_is_not_told_to_the_statements(audited: Callable) -> None:
    assert audited("fed_cdp", noise_scale=0.5, **QUICK).epsilon == audited("fed_cdp", **QUICK).epsilon


def test_a_clip_and_research_code_protect_clients_without_a_guarantee() -> None:
    @validated_defense
    class Doubled(Defense):
        def operations(self, cohort: Cohort) -> list[Operation]:
            return [ClipUpdate(1.0, "whole"), Custom(lambda rows, context: 2 * rows), GaussianNoise(1.0)]

    settings = audit_settings(defense="none", claimed_epsilon=1.0, **QUICK)
    unit = unit_of(Doubled(), settings)
    claim = claim_of(Doubled(), settings, unit, settings.facts(unit, 1))
    assert (unit, claim.statement.epsilon, claim.claimed) == ("client", None, 1.0)


@pytest.mark.parametrize("defense", ["fed_cdp", "fed_sdp", "fed_acdp"])
def test_without_noise_the_paper_s_claim_is_tested(audited: Callable, defense: str) -> None:
    silent, usual = audited(defense, {"sigma": 0}, **QUICK), audited(defense, **QUICK)
    assert silent.epsilon is None or defense == "fed_acdp"
    assert silent.claimed_epsilon == usual.claimed_epsilon
    assert "sigma=6" in silent.notes


def test_a_claim_of_ones_own() -> None:
    settings = audit_settings(defense="fed_cdp", claimed_epsilon=0.5)
    defense = settings.build_defense()
    unit = unit_of(defense, settings)
    assert claim_of(defense, settings, unit, settings.facts(unit, 4)).claimed == 0.5


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"defense": "fed_cpd"}, "did you mean 'fed_cdp'"),
        ({"defense_args": {"sigma": -1}}, "sigma"),
        ({"design": "apart"}, "choose together, alone, norm"),
        ({"canaries": 10}, "at least 20"),
        ({"guesses": 7}, "even number"),
        ({"guesses": 2000}, "from 2 to the 1000 canaries"),
        ({"rounds": 0}, "--rounds must be at least 1"),
        ({"steps": 0}, "--steps must be at least 1"),
        ({"others": -1}, "--others must be at least 0"),
        ({"seed": -1}, "--seed must be at least 0"),
        ({"sampling_rate": 0.0}, "--sampling-rate must lie in"),
        ({"sampling_rate": 1.5}, "--sampling-rate must lie in"),
        ({"delta": 0.0}, "delta must lie in"),
        ({"confidence": 1.0}, "--confidence must lie in"),
        ({"noise_scale": -1.0}, "--noise-scale must be"),
        ({"claimed_epsilon": float("nan")}, "--claimed-epsilon must be"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0"),
        ({"view": "client"}, "choose server or 'third party'"),
        ({"view": "message"}, "choose --view server"),
        ({"clients_per_round": 0}, "must be 1 to 10000"),
        ({"clients_per_round": 10_001}, "must be 1 to 10000"),
        ({"clients_per_round": 4, "view": "server"}, "drop --clients-per-round"),
        ({"colluders": 1}, "raise --clients-per-round"),
        ({"clients_per_round": 4, "colluders": -1}, "choose 0 and more"),
        ({"clients_per_round": 4, "colluders": 4}, "raise --clients-per-round"),
        ({"defense": "secagg_ddp", "clients_per_round": 1}, "take --clients-per-round 2 or more"),
        ({"defense": "secagg_ddp", "clients_per_round": 10, "colluders": 1, "view": "message"}, "clients of a sum"),
        ({"defense": "secagg_ddp", "defense_args": {"dropouts": 10}}, "raise --clients-per-round"),
        ({"canaries": np.True_}, "canaries: a Boolean is no number"),
        ({"claimed_epsilon": (3.0,)}, "claimed_epsilon: Input should be a valid number"),
        ({"design": ["alone"]}, "design: Input should be a valid string"),
        ({"canari": 100}, "use 'canaries'"),
    ],
)
def test_mistakes_name_their_fix(wrong: dict[str, Any], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        audit_settings(**wrong)


def test_numbers_of_numpy_are_plain_ones() -> None:
    plain = {"canaries": 100, "seed": 1, "sampling_rate": 0.5, "claimed_epsilon": 3.0, "defense_args": {"sigma": 2.0}}
    given = {
        "canaries": np.int64(100), "seed": 1.0, "sampling_rate": np.float32(0.5), "claimed_epsilon": "3",
        "defense_args": {"sigma": np.float64(2.0)}, "model": None, "guesses": None, "view": None,
    }  # fmt: skip
    assert repr(audit_settings(**given)) == repr(audit_settings(**plain))


@pytest.mark.parametrize("noises", [(2, 1, 1), np.array([2, 1, 1]), [np.int64(2), 1, 1], torch.tensor([2, 1, 1])])
def test_lists_of_python_and_of_arrays_are_plain_ones(noises: Any) -> None:
    own = {"sigma": 1.0, "mechanism": "gaussian", "mode": "paper"}
    made = audit_settings(defense="secagg_ddp", defense_args={**own, "noises": noises}, clients_per_round=3)
    assert made.defense_args == {**own, "noises": [2, 1, 1]}
