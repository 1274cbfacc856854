"""Stacks: the same as composing by hand, in order, with memories apart, and settings that reach it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build, parse_assignments
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, Defense, MaterialisedGradients, PrivacyFacts, RoundContext

K, P = 4, 200
LAYOUT = Layout(("a", "b"), ((150,), (50,)))
COHORT = Cohort(clients_per_round=K, batch_size=2, rounds=3, steps_per_round=10)
UPDATES = torch.randn(K, P, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FACTS = PrivacyFacts(COHORT, tensors=2, rate=0.1)


def new_context() -> RoundContext:
    return RoundContext(0, 0, 0.05, COHORT, LAYOUT, tuple((0, client) for client in range(K)))


def defense_of(name: str, settings: dict[str, Any] | None = None) -> Defense:
    return build(DEFENSES, DEFENSES.resolve(name), settings or {})


def round_of(defense: Defense, context: RoundContext) -> tuple[Tensor, Tensor, Tensor]:
    """Step, message as received, and aggregate of a round in which gradients are the updates."""
    gradients = MaterialisedGradients(UPDATES[:, None].expand(-1, 2, -1), LAYOUT.sizes)
    step = defense.client_step(gradients, context).step
    received = defense.server_receive(defense.client_message(step, context), context)
    sums = {name: values.sum(0) for name, values in context.sent.items()}
    return step, received, defense.aggregate(received.sum(0), replace(context, sent=sums))


def test_it_equals_composing_by_hand() -> None:
    settings = {"pruning.threshold": 0.5, "noise.amount": 0.1}
    message = defense_of("pruning+noise", settings).client_message(UPDATES, new_context())
    context = new_context()
    first = defense_of("pruning", {"threshold": 0.5}).client_message(UPDATES, context.part("pruning"))
    by_hand = defense_of("noise", {"amount": 0.1}).client_message(first, context.part("noise"))
    assert torch.equal(message, by_hand)


def test_order_matters() -> None:
    settings = {"pruning.threshold": 0.5, "noise.amount": 0.1}
    pruned_first = defense_of("pruning+noise", settings).client_message(UPDATES, new_context())
    noised_first = defense_of("noise+pruning", settings).client_message(UPDATES, new_context())
    assert (pruned_first != 0).all()
    assert (noised_first == 0).sum(1).tolist() == [P // 2] * K


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fed_cdp", {"sigma": 1}),
        ("fed_sdp", {"sigma": 1}),
        ("fed_sdp", {"sigma": 1, "noise_at": "receive"}),
        ("quantile", {"sigma": 1}),
        ("global_dp", {"sigma": 1, "bound": "median"}),
        ("noise", {"applies_to": "gradient"}),
    ],
)
@pytest.mark.parametrize("other", ["none+{}", "{}+none"])
def test_beside_no_defense_a_part_does_what_it_does_alone(name: str, settings: dict[str, Any], other: str) -> None:
    own, alone = new_context(), new_context()
    stack = defense_of(other.format(name), {f"{name}.{key}": value for key, value in settings.items()})
    for stacked, single in zip(
        round_of(stack, own), round_of(defense_of(name, settings), alone.part(name)), strict=True
    ):
        torch.testing.assert_close(stacked, single, rtol=1e-12, atol=0)
    assert own.server.keys() == alone.server.keys()


def test_aggregates_chain_as_sums() -> None:
    """Noise of two servers on one sum, divided once."""
    settings = {"fed_sdp.clip": 1e6, "fed_sdp.sigma": 1e-6, "global_dp.clip": 1e6, "global_dp.sigma": 2e-6}
    context = new_context()
    noises = [
        context.part("fed_sdp").server_gaussian("aggregate", UPDATES[0]),
        2 * context.part("global_dp").server_gaussian("aggregate", UPDATES[0]),
    ]
    expected = (UPDATES.sum(0) + sum(noises)) / K
    torch.testing.assert_close(defense_of("fed_sdp+global_dp", settings).aggregate(UPDATES.sum(0), context), expected)


def test_parts_do_not_share_memory_or_streams() -> None:
    context = new_context()
    one, other = context.part("one"), context.part("other")
    for memory in ("local", "client", "server", "sent"):
        getattr(one, memory)["x"] = torch.ones(1)
        assert "x" not in getattr(other, memory)
        assert list(getattr(context, memory)) == ["one.x"]
        assert dict(getattr(one, memory)) == {"x": torch.ones(1)}
        del getattr(one, memory)["x"]
        assert len(getattr(context, memory)) == 0
    for draw in ("gaussian", "laplace", "uniform"):
        first, second = (getattr(part, draw)("purpose", UPDATES) for part in (one, other))
        assert not torch.equal(first, second)
        assert torch.equal(getattr(context.part("one"), draw)("purpose", UPDATES), first)


def test_every_part_says_its_sentence_and_its_settings() -> None:
    stack = defense_of("pruning+fed_sdp", {"pruning.threshold": "0.5", "fed_sdp.noise_at": "client"})
    assert "pruning applies to updates: the 0.5 share" in stack.units() and "; then fed_sdp applies" in stack.units()
    assert stack.parameters()["pruning.threshold"] == 0.5
    assert stack.parameters()["fed_sdp.sigma"] == 6.0
    assert build(DEFENSES, "pruning+fed_sdp", stack.parameters()) == stack


def test_adversaries_know_of_every_part() -> None:
    stack = defense_of("fed_cdp+pruning", {"fed_cdp.clip": 2})
    clipping = stack.clipping_at("T1.out", 0.05)
    assert clipping is not None and (clipping.bound, clipping.grouping) == (2, "layer")
    assert stack.sparse_at("T1.out") and not stack.sparse_at("T2.step")
    both = defense_of("fed_cdp+global_dp").clipping_at("T0.post", 0.05)
    assert both is not None and both.grouping == "layer"
    assert defense_of("pruning+noise").clipping_at("T1.out", 0.05) is None


@pytest.mark.parametrize("name", ["fed_cdp+fed_sdp", "fed_sdp+fed_cdp"])
@pytest.mark.parametrize(("clip", "bound"), [(0.01, 0.2), (5.0, 4.0)])
def test_adversaries_know_the_tightest_clip_whatever_the_order(name: str, clip: float, bound: float) -> None:
    clipping = defense_of(name, {"fed_sdp.clip": clip, "fed_sdp.noise_at": "client"}).clipping_at("T1.out", 0.05)
    assert clipping is not None and clipping.grouping == "layer" and clipping.bound == pytest.approx(bound)


def test_clips_of_other_groups_leave_the_scale_of_the_finest_open() -> None:
    clipping = defense_of("adaclip+fed_sdp", {"fed_sdp.noise_at": "client"}).clipping_at("T1.out", 0.05)
    assert clipping is not None and (clipping.bound, clipping.grouping) == (None, "layer")


def test_it_stops_when_a_part_does() -> None:
    stack = defense_of("pruning+global_dp", {"global_dp.epsilon": 0.01})
    assert (stack.finished(FACTS) or "").startswith("global_dp: round 3 would spend epsilon")
    assert defense_of("pruning+global_dp").finished(FACTS) is None


def test_it_stops_by_what_its_statements_say() -> None:
    """What clients keep takes the sampling away from the statement, and so from the budget."""
    facts = replace(FACTS, cohort=Cohort(100, 10, 3, 2, 4), client_sampler="without-replacement")
    limited = {"global_dp.sigma": 3.0, "global_dp.epsilon": 4.0}
    keeps = defense_of("pruning+global_dp", limited | {"pruning.error_feedback": True})
    spent = [one.epsilon for one in keeps.statements(facts) if one.view == "third party"]
    assert spent[0] > 4 and "global_dp: round 3 would spend" in (keeps.finished(facts) or "")
    assert defense_of("pruning+global_dp", limited).finished(facts) is None


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fed_cdp+adaclip", {}, "fed_cdp and adaclip would both change the local step; stack only one"),
        ("fed_cdp+noise", {"noise.applies_to": "gradient"}, "fed_cdp and noise would both change the local step"),
        ("noise+noise", {}, "twice in the stack 'noise+noise'; name it once"),
        ("noise,pruning", {}, "name one alone"),
        ("fed_acdp+fed_alphacdp", {}, "'fed_acdp' is twice in the stack"),
        ("pruning+nosie", {}, "did you mean 'noise'?"),
        ("pruning+", {}, "'pruning+' lacks a name beside a plus sign"),
        ("pruning+noise", {"threshold": 0.5}, "write for example pruning.setting"),
        ("pruning+noise", {"pruning.thresold": 0.5}, "did you mean 'threshold'?"),
        ("pruning+noise", {"pruning.threshold": 5}, "defense 'pruning': threshold: Input should be less than 1"),
    ],
)
def test_mistakes(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        defense_of(name, settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_are_resolved_part_by_part() -> None:
    assert DEFENSES.resolve("geyer+fed_alphacdp") == "global_dp+fed_acdp"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("pruning.threshold=0.3", {"pruning+noise": {"pruning.threshold": "0.3"}, "noise": {}, "fed_sdp": {}}),
        ("amount=2", {"pruning+noise": {"noise.amount": "2"}, "noise": {"amount": "2"}, "fed_sdp": {}}),
        ("noise.amount=2", {"pruning+noise": {"noise.amount": "2"}, "noise": {"amount": "2"}, "fed_sdp": {}}),
        ("pruning+noise.amount=2", {"pruning+noise": {"noise.amount": "2"}, "noise": {}, "fed_sdp": {}}),
        ("sigma=1", {"pruning+noise": {}, "noise": {}, "fed_sdp": {"sigma": "1"}}),
    ],
)
def test_settings_reach_the_parts(assignment: str, expected: dict[str, dict[str, str]]) -> None:
    assert parse_assignments([assignment], ["pruning+noise", "noise", "fed_sdp"], DEFENSES) == expected


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("fed_cdp.sigma=1", "defense 'fed_cdp' is not part of this run; name it with --defense"),
        ("amuont=1", "did you mean 'amount'?"),
        ("sigma=1", "no named defense has a setting 'sigma'; choose "),
    ],
)
def test_settings_that_no_part_has(assignment: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        parse_assignments([assignment], ["pruning+noise"], DEFENSES)
