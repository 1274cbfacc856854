"""Every check of ``harness.testing`` finds the mistake that it is for, and passes what is right."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.attacks import Attack, validated_attack
from harness.attacks.adam import Adam
from harness.attacks.attack import Dummy
from harness.defenses.hooks import Defense, LocalStep
from harness.defenses.registry import validated_defense
from harness.errors import UsageError
from harness.evaluation.noise_law import law_p_value
from harness.federation.context import RoundContext, State
from harness.federation.examples import ExampleGradients
from harness.federation.privacy_facts import PrivacyFacts
from harness.federation.taps import TAPS_AFTER_SENDING, TAPS_AFTER_STEP, Hook, Tap
from harness.noise_level import NoiseLevel
from harness.observation import Chosen, Clipping, Noise, Observation
from harness.privacy import Statement
from harness.testing import (
    assert_attack_contract,
    assert_defense_contract,
    attacks,
    clipping,
    defenses,
    digits,
    noise,
    undefended,
)
from harness.vectors.clipping import clip, clip_factors
from harness.vectors.layout import Layout, spread

Keys = list[tuple[int | str, ...]]
SHAPE = 10, 400


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
class InPlace(Defense):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update.mul_(0.5).clone()


@validated_defense
class StepInPlace(Defense):
    def client_step(self, examples: ExampleGradients, context: RoundContext) -> LocalStep:
        return LocalStep(examples.materialise().mul_(0.5).mean(1))


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


@validated_defense
class Clips(Defense):
    """Of updates, rightly."""

    bound: float = 100.0

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return clip(update, self.bound, (update.shape[1],))

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return Clipping(self.bound / learning_rate, "whole", "update") if tap in TAPS_AFTER_SENDING else None


@validated_defense
class RoundsAway(Clips):
    """To nothing, even of large updates."""

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return super().client_message(update, context).div(1e3).round()

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return None


@validated_defense
class ClipsExamples(Defense):
    """Rightly too."""

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        factors = self.factors(per_example.norms().square().sum(-1, keepdim=True).sqrt())
        return LocalStep(per_example.weighted_sum(factors.expand_as(per_example.norms())) / context.cohort.batch_size)

    def factors(self, norms: Tensor) -> Tensor:
        return clip_factors(norms, 4.0)

    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return Clipping(4.0, "whole", "example") if tap in TAPS_AFTER_STEP else None


@validated_defense
class ClipsInSilence(Clips):
    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return None


@validated_defense
class ClipsExamplesInSilence(ClipsExamples):
    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return super().clipping_at(tap, learning_rate, server) if tap is Tap.STEP else None


@validated_defense
class CutsInSilence(Right):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update.clamp(-0.5, 0.5) + context.gaussian("client_message", update)


@validated_defense
class CutsAtAnother(CutsInSilence):
    def cut_at(self, tap: Tap) -> float | None:
        return 0.1 if tap in TAPS_AFTER_SENDING else None


@validated_defense
class Chooses(Right):
    """Sends every other coordinate of each tensor, not the largest."""

    most: int = 192
    choice: Literal["unknown", "largest"] = "unknown"

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        kept = torch.arange(update.shape[1], device=update.device) % 2 == 0
        return update.where(kept, 0.0)

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return None

    def sparse_at(self, tap: Tap) -> bool:
        return tap in TAPS_AFTER_SENDING

    def chosen_at(self, tap: Tap, layout: Layout) -> Chosen | None:
        return Chosen((self.most, 64), "layer", self.choice)


@validated_defense
class SendsMore(Chooses):
    most: int = 191


@validated_defense
class SendsOthers(Chooses):
    choice: Literal["unknown", "largest"] = "largest"


@validated_defense
class ForgetsTheRate(Clips):
    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        return super().clipping_at(tap, 1.0, server)


@validated_defense
class NamesLayers(Clips):
    def clipping_at(self, tap: Tap, learning_rate: float, server: State | None = None) -> Clipping | None:
        known = super().clipping_at(tap, learning_rate, server)
        return known and replace(known, grouping="layer")


@validated_defense
class ClipsNothing(Clips):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update


@validated_defense
class ClipsByTheLongestRow(Clips):
    """Where no row is longer than the bound, nobody sees it."""

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update * clip_factors(update.norm(dim=1).max(), self.bound)


@validated_defense
class ClipsByTheLongestExample(ClipsExamples):
    def factors(self, norms: Tensor) -> Tensor:
        return clip_factors(norms.amax(1, keepdim=True), 4.0).expand_as(norms)


@validated_defense
class ClipsTheMean(ClipsExamples):
    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        mean = per_example.mean()
        return LocalStep(clip(mean, 4.0, (mean.shape[1],)))


@validated_defense
class LaplaceAsGaussian(Right):
    """Of the very size that it states."""

    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update + 0.5**0.5 * context.laplace("client_message", update)


@validated_defense
class LaplaceAsGaussianOfNoLevel(LaplaceAsGaussian):
    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return Noise("gaussian", None) if hook == Hook.CLIENT_MESSAGE else None


@validated_defense
class GaussianAsLaplace(Right):
    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        return Noise("laplace", 1.0) if hook == Hook.CLIENT_MESSAGE else None


@validated_defense
class SignsAsGaussian(Right):
    def client_message(self, update: Tensor, context: RoundContext) -> Tensor:
        return update + context.gaussian("client_message", update).sign()


@validated_defense
class Follows(Defense):
    """Noise as long as each tensor of the batch's gradient."""

    def client_step(self, per_example: ExampleGradients, context: RoundContext) -> LocalStep:
        mean = per_example.mean()
        level = NoiseLevel(1.0, "each").deviations(mean, context.layout.sizes)
        return LocalStep(mean + spread(level, context.layout.sizes).float() * context.gaussian("client_step", mean))

    def noise_of(self, hook: Hook, context: RoundContext) -> Noise | None:
        if hook != Hook.CLIENT_STEP:
            return None
        return Noise("gaussian", None, "layer", self.level() if context.cohort.batch_size == 1 else None)

    def level(self) -> NoiseLevel:
        return NoiseLevel(1.0, "each")


@validated_defense
class FollowsOtherwise(Follows):
    def level(self) -> NoiseLevel:
        return NoiseLevel(0.7, "whole")


def follow_batches_of_one(defense: Defense) -> None:
    noise.assert_declares_noise(defense, batch=1)


@pytest.mark.parametrize(
    ("wrong", "check", "why"),
    [
        (Narrow, defenses.assert_shapes, "client_message returns a tensor .* let it return a tensor"),
        (InPlace, defenses.assert_shapes, "client_message changes what it is given in place"),
        (StepInPlace, defenses.assert_shapes, "client_step changes the examples' gradients in place"),
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
        (LaplaceAsGaussian, noise.assert_declares_noise, "the noise at T1.out is not gaussian"),
        (LaplaceAsGaussianOfNoLevel, noise.assert_declares_noise, "the noise at T1.out is not gaussian"),
        (GaussianAsLaplace, noise.assert_declares_noise, "the noise at T1.out is not laplace"),
        (SignsAsGaussian, noise.assert_declares_noise, "the noise at T1.out is not gaussian"),
        (FollowsOtherwise, follow_batches_of_one, "the noise at T.* does not follow the gradient as noise_of"),
        (ClipsInSilence, clipping.assert_declares_clipping, "T1.out shows gradients cut to a length of 2000, of which"),
        (ClipsExamplesInSilence, clipping.assert_declares_clipping, "T1.raw shows gradients cut to a length of 4, of"),
        (ForgetsTheRate, clipping.assert_declares_clipping, "lengths of 2000 to 2000 per whole, .* cut to 100;"),
        (NamesLayers, clipping.assert_declares_clipping, "lengths of .* per layer, clipping_at"),
        (ClipsNothing, clipping.assert_declares_clipping, "T1.out shows lengths of .* cut to 2000"),
        (CutsInSilence, clipping.assert_declares_cuts, "T1.out shows have the magnitude 0.5, of which cut_at"),
        (CutsAtAnother, clipping.assert_declares_cuts, "T1.out shows magnitudes of up to 0.5, cut_at.. says .* at 0.1"),
        (SendsMore, clipping.assert_declares_what_is_sent, "T1.out shows 192 coordinates of a layer, .* says 191"),
        (SendsOthers, clipping.assert_declares_what_is_sent, "T1.out leaves out larger coordinates than it sends"),
        (ClipsByTheLongestRow, defenses.assert_rows_apart, "T1.out depends on the other clients"),
        (ClipsByTheLongestExample, clipping.assert_bounds_examples, "changes the sum of its batch by 5"),
        (ClipsTheMean, clipping.assert_bounds_examples, "each example has to be clipped by itself"),
    ],
)
def test_a_wrong_defense_is_found(wrong: type[Defense], check: Callable[[Defense], object], why: str) -> None:
    for right in (Right(), Clips(), RoundsAway(), ClipsExamples(), Chooses(), Follows()):
        check(right)
    with pytest.raises((AssertionError, UsageError), match=why):
        check(wrong())


def test_the_whole_contract_of_a_defense() -> None:
    assert_defense_contract(Right())
    for wrong in (Mixing, ClipsInSilence, LaplaceAsGaussian, ClipsTheMean):
        with pytest.raises(AssertionError):
            assert_defense_contract(wrong())


LAWS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "gaussian": lambda random: random.normal(size=SHAPE),
    "laplace": lambda random: random.laplace(scale=0.5**0.5, size=SHAPE),
    "uniform": lambda random: random.uniform(-(3**0.5), 3**0.5, SHAPE),
    "skellam": lambda random: (random.poisson(2.0, SHAPE) - random.poisson(2.0, SHAPE)) / 2,
    "poisson_binomial": lambda random: (random.binomial(64, 0.5, SHAPE) - 32) / 4,
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("known", [True, False])
def test_the_law_is_doubted_as_often_as_stated(law: str, known: bool) -> None:
    """Of samples of the right law one in twenty is doubted at 5%, where the level is estimated fewer."""
    random, layout = np.random.default_rng(5), Layout(("a", "b"), ((300,), (100,)))
    declared = Noise(law, 1.0 if known else None, "whole" if known else "layer")  # type: ignore[arg-type]
    there = torch.ones(SHAPE, dtype=torch.bool)
    drawn = [torch.from_numpy(LAWS[law](random)) for _ in range(200)]
    doubted = sum((law_p_value(one, declared, there, layout) or 0) < 0.05 for one in drawn)
    assert doubted < 22  # of 200, by chance once in a thousand
    if known and law in ("gaussian", "laplace", "uniform"):
        assert doubted > 2
    unlike = Noise("gaussian" if law == "laplace" else "laplace", 1.0)
    assert max(law_p_value(one, unlike, there, layout) or 1 for one in drawn[:20]) < 0.05


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
