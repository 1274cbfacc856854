"""What stacks may claim: guarantees survive only where a theorem carries them, and the reason is told."""

from dataclasses import replace
from typing import Any

import pytest

from harness.base.building import build
from harness.defenses import DEFENSES, Cohort, PrivacyFacts
from harness.privacy import Statement

FACTS = PrivacyFacts(Cohort(clients_per_round=4, batch_size=2, rounds=3, steps_per_round=10), tensors=2, rate=0.1)


def statements_of(name: str, settings: dict[str, Any] | None = None) -> list[Statement]:
    return build(DEFENSES, name, settings or {}).statements(FACTS)


def test_what_comes_before_a_mechanism_is_its_input() -> None:
    alone = statements_of("fed_sdp")
    stacked = statements_of("pruning+noise+fed_sdp")
    assert [(a.view, a.guarantee, a.epsilon) for a in alone] == [(b.view, b.guarantee, b.epsilon) for b in stacked]
    assert "pruning and noise before fed_sdp: part of its input" in stacked[0].notes


def test_what_comes_after_is_post_processing_but_noise_no_longer_adds_up() -> None:
    alone = {one.view: one for one in statements_of("fed_cdp")}
    stacked = {one.view: one for one in statements_of("fed_cdp+pruning")}
    assert stacked["server"].epsilon == alone["server"].epsilon
    assert stacked["third party"].epsilon == stacked["client"].epsilon == alone["server"].epsilon
    assert stacked["third party"].guarantee == alone["third party"].guarantee
    assert "post-processing" in stacked["server"].notes
    # A server that noises the sum leaves the messages alone.
    summed = {(one.view, one.unit): one for one in statements_of("fed_cdp+fed_sdp")}
    assert summed["server", "example"].epsilon == alone["server"].epsilon
    assert summed["third party", "client"].guarantee == "client-DP central"


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("quantile+pruning", {}, "pruning may act between the clipping and the noise of quantile"),
        ("quantile+noise", {}, "noise may act between the clipping and the noise of quantile"),
        ("global_dp+fed_sdp", {}, "may act between the clipping and the noise"),
        # The bits and norms of raw updates travel beside what dssgd protects.
        ("quantile+dssgd", {"dssgd.epsilon": 1}, "quantile may carry what it saw before dssgd past it"),
        ("global_dp+dssgd", {"dssgd.epsilon": 1, "global_dp.bound": "median"}, "global_dp may carry what it saw"),
        ("fed_sdp+global_dp+quantile", {"fed_sdp.noise_at": "receive"}, "may act between"),
        ("pruning+noise", {}, "noise: noise without clipping"),
        ("fed_acdp+pruning", {}, "the noise scale S is computed from the private batch"),
    ],
)
def test_otherwise_nothing_holds_and_the_reason_is_told(name: str, settings: dict[str, Any], reason: str) -> None:
    statements = statements_of(name, settings)
    assert {one.guarantee for one in statements} == {"none"}
    assert {(one.epsilon, one.mu, one.told_apart, one.conversion) for one in statements} == {(None,) * 4}
    assert any(reason in one.notes for one in statements)


def test_bits_counted_after_a_mechanism_do_not_harm_it() -> None:
    statements = statements_of("dssgd+quantile", {"dssgd.epsilon": 1})
    kept = [one for one in statements if one.epsilon == 3]
    assert {one.view for one in kept} == {"third party", "server", "client"}


def test_a_claim_that_does_not_hold_stays_visible() -> None:
    (statement,) = statements_of("pruning+fed_acdp")
    alone = statements_of("fed_acdp")[0]
    assert (statement.guarantee, statement.claimed_epsilon) == ("none", alone.claimed_epsilon)


@pytest.mark.parametrize("last", ["global_dp", "fed_sdp", "quantile"])
def test_what_pruning_keeps_leaves_samples_of_fixed_size_without_a_theorem(last: str) -> None:
    """A residual depends on who took part earlier; in a sample of fixed size that depends on everybody else."""

    def third_party(feedback: bool, sampler: str) -> Statement:
        facts = replace(FACTS, client_sampler=sampler, cohort=replace(FACTS.cohort, clients=12))
        made = build(DEFENSES, f"pruning+{last}", {"pruning.error_feedback": feedback}).statements(facts)
        return made[0]

    forgets, keeps = (third_party(feedback, "without-replacement") for feedback in (False, True))
    assert (forgets.sampler, keeps.sampler) == ("without-replacement", "none")
    assert forgets.epsilon < 0.7 * keeps.epsilon and "no theorem covers sampling" in keeps.notes
    # Samples by Poisson tie nobody's presence to another's.
    assert third_party(True, "poisson").epsilon == third_party(False, "poisson").epsilon
