"""Every check of ``harness.testing`` finds the mistake that it is for, and passes what is right."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.attacks import Attack, validated_attack
from harness.attacks.adam import Adam
from harness.attacks.attack import Dummy
from harness.defenses.hooks import Defense, LocalStep
from harness.defenses.registry import validated_defense
from harness.federation.context import RoundContext
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import Hook
from harness.observation import Noise, Observation
from harness.privacy import Statement
from harness.testing import (
    assert_attack_contract,
    assert_defense_contract,
    attacks,
    defenses,
    digits,
    noise,
    undefended,
)

Keys = list[tuple[int | str, ...]]


@validated_defense
class Right(Defense):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update + context.gaussian("client_message", update)

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return Noise("gaussian", 1.0) if hook == Hook.CLIENT_MESSAGE else None


@validated_defense
class Silent(Right):
    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return None


@validated_defense
class Understates(Right):
    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return Noise("gaussian", 0.9) if hook == Hook.CLIENT_MESSAGE else None


@validated_defense
class Misplaces(Right):
    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return Noise("gaussian", 1.0) if hook == Hook.CLIENT_STEP else None


@validated_defense
class Narrow(Defense):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update[:, :-1]


@validated_defense
class Unkeyed(Defense):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update + torch.randn_like(update)


@validated_defense
class Mixing(Defense):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update - update.mean(0)


@validated_defense
class CountsPlaces(Defense):
    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        return LocalStep(per_example.materialise().mean(1))


@validated_defense
class SparesEmptyBatches(Defense):
    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        mean = per_example.mean()
        noise = context.gaussian("client_step", mean) * per_example.present.any(1, keepdim=True)
        return LocalStep(mean + noise, noise=1.0)


@validated_defense
class TwoLines(Defense):
    def units(self) -> str:
        return "no clipping,\nno noise"


@validated_defense
class Promises(Defense):
    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        return [replace(statement, epsilon=1.0) for statement in super().statements(facts)]


@validated_defense
class Forgetful(Defense):
    def aggregate(self, total: Tensor, context: RoundContext) -> Tensor:
        context.server["last"] = total
        return super().aggregate(total, context)


@pytest.mark.parametrize(
    ("wrong", "check", "why"),
    [
        (Narrow, defenses.assert_shapes, "instead of"),
        (Unkeyed, defenses.assert_keyed, "differs when the round is played again"),
        (Mixing, defenses.assert_rows_apart, "depends on the other clients"),
        (CountsPlaces, defenses.assert_empty_places_change_nothing, "empty places of a batch count"),
        (SparesEmptyBatches, defenses.assert_empty_places_change_nothing, "gets no noise"),
        (TwoLines, defenses.assert_statements, "one line"),
        (Promises, defenses.assert_statements, "epsilon"),
        (Forgetful, defenses.assert_declares_memory_and_plans, "remembers"),
        (Silent, noise.assert_declares_noise, "T1.out shows noise of which"),
        (Understates, noise.assert_declares_noise, "not of the stated size"),
        (Misplaces, noise.assert_declares_noise, "T2.step shows no noise"),
    ],
)
def test_a_wrong_defense_is_found(wrong: type[Defense], check: Callable[[Defense], object], why: str) -> None:
    check(Right())
    with pytest.raises(AssertionError, match=why):
        check(wrong())


def test_the_whole_contract_of_a_defense() -> None:
    assert_defense_contract(Right())
    with pytest.raises(AssertionError):
        assert_defense_contract(Mixing())


@validated_attack
class Quick(Attack):
    max_iterations: int = 2
    box: bool = True

    def optimizer(self) -> Adam:
        return Adam(self.max_iterations, 0.1)


@validated_attack
class Unseeded(Quick):
    def start(self, observation: Observation, keys: Keys) -> Tensor:
        return torch.rand_like(super().start(observation, keys))


@validated_attack
class Neighbourly(Quick):
    def start(self, observation: Observation, keys: Keys) -> Tensor:
        start = super().start(observation, keys)
        return 0.5 * start + 0.5 * start.mean(0)


@validated_attack
class Boundless(Quick):
    def after_step(self, position: Tensor, keys: Keys, iteration: int) -> Tensor:
        return position

    def dummy(self, observation: Observation, position: Tensor, labels: Tensor | None) -> Dummy:
        return super().dummy(observation, position + 2.0, labels)


@validated_attack
class NeedsTheTruth(Quick):
    def labels(self, observation: Observation) -> Tensor:
        assert observation.labels is not None, "needs the labels"
        return observation.labels


@validated_attack
class Forgiving(Quick):
    def matching(self, observation: Observation, dummy: Dummy) -> Tensor:
        return super().matching(observation, dummy).nan_to_num(nan=1.0)


@pytest.mark.parametrize(
    ("wrong", "check", "why"),
    [
        (Boundless, attacks.assert_result, "leave the box"),
        (NeedsTheTruth, attacks.assert_result, "needs the labels"),
        (Unseeded, attacks.assert_rows_apart, "depend on the other victims"),
        (Neighbourly, attacks.assert_rows_apart, "depend on the other victims"),
        (Forgiving, attacks.assert_frozen, "went on with what is no number"),
    ],
)
def test_a_wrong_attack_is_found(wrong: type[Attack], check: Callable[..., object], why: str) -> None:
    observation = undefended(*digits(4), model="mlp")
    check(Quick(), observation)
    with pytest.raises(AssertionError, match=why):
        check(wrong(), observation)


def test_the_whole_contract_of_an_attack() -> None:
    assert_attack_contract(Quick())
    with pytest.raises(AssertionError):
        assert_attack_contract(Neighbourly())


def test_an_attack_is_checked_without_the_labels() -> None:
    told = replace(undefended(*digits(4), model="mlp"), labels=digits(4)[1])
    with pytest.raises(AssertionError, match="not told"):
        attacks.assert_result(Quick(), told)
