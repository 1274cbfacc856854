"""Every check of ``harness.testing`` finds the mistake that it is for, and passes what is right."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.attacks import Attack, validated_attack
from harness.attacks.adam import Adam
from harness.attacks.attack import Dummy
from harness.base.errors import UsageError
from harness.base.vectors import Layout, clip, clip_factors, spread
from harness.defenses import (
    ClipUpdate,
    Cohort,
    Custom,
    Defense,
    Operation,
    Point,
    RoundContext,
    State,
    validated_defense,
)
from harness.federation.declared_noise import law_p_value
from harness.federation.operations import UNKNOWN, StepState, states_nothing
from harness.federation.privacy_facts import PrivacyFacts
from harness.observation import Chosen, Clipping, Noise, NoiseLevel, Observation
from harness.privacy import Statement
from harness.testing import (
    assert_attack_contract,
    assert_defense_contract,
    attacks,
    defenses,
    digits,
    undefended,
)

Keys = list[tuple[int | str, ...]]
SHAPE = 10, 400


def made(*operations: Operation) -> Defense:
    """A defense of these."""

    @validated_defense
    class Made(Defense):
        def operations(self, cohort: Cohort) -> list[Operation]:
            return list(operations)

    return Made()


def research(function: Callable[[Tensor, RoundContext], Tensor], **facts: Any) -> Defense:
    """One of research code at the message, which adds no noise unless it says so."""
    return made(Custom(function, **({"adds": None, "at": Point.MESSAGE} | facts)))


GAUSSIAN, LAPLACE = Noise("gaussian", 1.0), Noise("laplace", 1.0)


def noisy(update: Tensor, context: RoundContext) -> Tensor:
    return update + context.gaussian("client_message", update)


def laplacian(update: Tensor, context: RoundContext) -> Tensor:
    return update + 0.5**0.5 * context.laplace("client_message", update)


def signs(update: Tensor, context: RoundContext) -> Tensor:
    return update + context.gaussian("client_message", update).sign()


def cut(update: Tensor, context: RoundContext) -> Tensor:
    return clip(update, 100.0, (update.shape[1],))


def cut_by_the_longest_row(update: Tensor, context: RoundContext) -> Tensor:
    """Where no row is longer than the bound, nobody sees it."""
    return update * clip_factors(update.norm(dim=1).max(), 100.0)


def rounded_away(update: Tensor, context: RoundContext) -> Tensor:
    """To nothing, even of large updates."""
    return cut(update, context).div(1e3).round()


def clamped(update: Tensor, context: RoundContext) -> Tensor:
    return noisy(update.clamp(-0.5, 0.5), context)


def cut_examples(gradients: Tensor, context: RoundContext) -> Tensor:
    return gradients * clip_factors(gradients.norm(dim=-1, keepdim=True), 4.0)


def cut_by_the_longest_example(gradients: Tensor, context: RoundContext) -> Tensor:
    return gradients * clip_factors(gradients.norm(dim=-1, keepdim=True).amax(1, keepdim=True), 4.0)


def cut_mean(mean: Tensor, context: RoundContext) -> Tensor:
    return clip(mean, 4.0, (mean.shape[1],))


def every_other(update: Tensor, context: RoundContext) -> Tensor:
    """Sends every other coordinate of each tensor, not the largest."""
    return update.where(torch.arange(update.shape[1], device=update.device) % 2 == 0, 0.0)


def sends(most: int = 192, choice: Literal["unknown", "largest"] = "unknown") -> Defense:
    return research(every_other, keeps=lambda layout: Chosen((most, 64), "layer", choice))


def as_long_as_each_tensor(mean: Tensor, context: RoundContext) -> Tensor:
    level = NoiseLevel(1.0, "each").deviations(mean, context.layout.sizes)
    return mean + spread(level, context.layout.sizes).float() * context.gaussian("client_step", mean)


def follows(level: NoiseLevel) -> Defense:
    """Noise as long as each tensor of the batch's gradient."""

    def said(context: RoundContext) -> Noise:
        return Noise("gaussian", None, "layer", level if context.cohort.batch_size == 1 else None)

    return research(as_long_as_each_tensor, at=Point.STEP, adds=said)


def remembering(total: Tensor, context: RoundContext) -> Tensor:
    context.server["last"] = total
    return total


def telling(update: Tensor, context: RoundContext) -> Tensor:
    context.sent["norms"] = update.norm(dim=1)
    return update


@dataclass(frozen=True)
class CountsPlaces(Operation):
    points = (Point.STEP,)

    def on_step(self, state: StepState, context: RoundContext) -> None:
        state.direction = state.gradients().mean(1)


@dataclass(frozen=True)
class SparesEmptyBatches(Operation):
    points = (Point.STEP,)

    def on_step(self, state: StepState, context: RoundContext) -> None:
        mean = state.mean()
        state.direction = mean + context.gaussian("client_step", mean) * state.examples.present.any(1, keepdim=True)
        state.louder(1.0)


@dataclass(frozen=True)
class Promises(Operation):
    def statements(self, facts: PrivacyFacts) -> list[Statement]:
        return [replace(statement, epsilon=1.0) for statement in states_nothing("nothing")]


@dataclass(frozen=True)
class ForgetsTheRate(ClipUpdate):
    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return super().clipping(1.0, server)


@dataclass(frozen=True)
class NamesLayers(ClipUpdate):
    def clipping(self, learning_rate: float, server: State) -> Clipping | None:
        return Clipping(self.bound / learning_rate, "layer", "update")


@dataclass(frozen=True)
class ClipsNothing(ClipUpdate):
    def on_rows(self, rows: Tensor, context: RoundContext) -> Tensor:
        return rows


RIGHT = (
    research(noisy, adds=GAUSSIAN), research(cut, cuts=(100.0, "whole")), research(rounded_away),
    research(cut_examples, at=Point.EXAMPLES, cuts=(4.0, "whole")), sends(), follows(NoiseLevel(1.0, "each")),
    research(telling, beside=("norms",)), research(noisy, adds=UNKNOWN),
    research(cut, cuts=(100.0, "whole"), adds=UNKNOWN),
)  # fmt: skip


SHAPES, KEYED, APART = defenses.assert_shapes, defenses.assert_keyed, defenses.assert_rows_apart
PLACES, MEMORY = defenses.assert_empty_places_change_nothing, defenses.assert_declares_memory_and_plans
CLIPPING, CUTS, IS_SENT = (
    defenses.assert_declares_clipping, defenses.assert_declares_cuts,
    defenses.assert_declares_what_is_sent,
)  # fmt: skip
NOISE = defenses.assert_declares_noise


def follow_batches_of_one(defense: Defense) -> None:
    defenses.assert_declares_noise(defense, batch=1)


@pytest.mark.parametrize(
    ("wrong", "check", "why"),
    [
        (research(lambda update, _: update[:, :-1]), SHAPES, "at message returns a tensor .* let it ret"),
        (research(lambda update, _: update.float()), SHAPES, "float32 on cpu; let it return a tensor .*64"),
        (research(lambda update, _: update.mul_(0.5).clone()), SHAPES, "message changes what it is given"),
        (
            research(lambda gradients, _: gradients.mul_(0.5), at=Point.EXAMPLES), SHAPES,
            "at examples changes what it is given in place",
        ),
        (research(lambda update, _: update + torch.randn_like(update)), KEYED, "when the round is played"),
        (research(lambda update, _: update - update.mean(0)), APART, "depends on the other clients"),
        (made(CountsPlaces()), PLACES, "empty places of a batch count"),
        (made(SparesEmptyBatches()), PLACES, "gets no noise"),
        (research(noisy, said="no clipping,\nno noise"), defenses.assert_statements, "one line"),
        (made(Promises()), defenses.assert_statements, "epsilon"),
        (research(remembering, at=Point.AGGREGATE), MEMORY, "remembers"),
        (research(telling), MEMORY, "clients send .'norms'. beside their updates"),
        (research(noisy), NOISE, "T1.out shows noise of which"),
        (research(noisy, adds=Noise("gaussian", 0.9)), NOISE, "not of the stated size"),
        (
            made(Custom(noisy, adds=None), Custom(lambda mean, _: mean, at=Point.STEP, adds=GAUSSIAN)),
            NOISE, "T2.step shows no noise",
        ),
        (research(laplacian, adds=GAUSSIAN), NOISE, "the noise at T1.out is not gaussian"),
        (
            research(laplacian, adds=Noise("gaussian", None)), NOISE,
            "the noise at T1.out is not gaussian",
        ),
        (research(noisy, adds=LAPLACE), NOISE, "the noise at T1.out is not laplace"),
        (research(signs, adds=GAUSSIAN), NOISE, "the noise at T1.out is not gaussian"),
        (follows(NoiseLevel(0.7, "whole")), follow_batches_of_one, "the noise at T.* does not follow the gradient"),
        (research(cut), CLIPPING, "T1.out shows gradients cut to a length of 2000, of which"),
        (
            research(cut_examples, at=Point.EXAMPLES), CLIPPING,
            "T2.examples shows gradients cut to a length of 4, of",
        ),
        (made(ForgetsTheRate(100.0, "whole")), CLIPPING, "2000 to 2000 per whole, .* cut to 100;"),
        (made(NamesLayers(100.0, "whole")), CLIPPING, "lengths of .* per layer, an operation"),
        (made(ClipsNothing(100.0, "whole")), CLIPPING, "T1.out shows lengths of .* cut to 2000"),
        (research(clamped), CUTS, "T1.out shows have the magnitude 0.5, of which cuts_at"),
        (research(clamped, cuts_at=0.1), CUTS, "shows magnitudes of up to 0.5, .* says .* at 0.1"),
        (sends(191), IS_SENT, "T1.out shows 192 coordinates of a layer, .* says 191"),
        (sends(choice="largest"), IS_SENT, "T1.out leaves out larger coordinates than it"),
        (
            research(cut_by_the_longest_row, cuts=(100.0, "whole")), APART,
            "T1.out depends on the other clients",
        ),
        (
            research(cut_by_the_longest_example, at=Point.EXAMPLES, cuts=(4.0, "whole")),
            defenses.assert_bounds_examples, "changes the sum of its batch by 5",
        ),
        (
            research(cut_mean, at=Point.STEP, cuts=(4.0, "whole")), defenses.assert_bounds_examples,
            "each example has to be clipped by itself",
        ),
    ],
)  # fmt: skip
def test_a_wrong_defense_is_found(wrong: Defense, check: Callable[[Defense], object], why: str) -> None:
    with pytest.raises((AssertionError, UsageError), match=why):
        check(wrong)


@pytest.mark.parametrize("right", RIGHT)
def test_a_right_defense_passes_every_check(right: Defense) -> None:
    assert_defense_contract(right)


def test_the_whole_contract_of_a_defense() -> None:
    for wrong in (
        research(lambda update, _: update - update.mean(0)),
        research(cut),
        research(laplacian, adds=GAUSSIAN),
    ):
        with pytest.raises(AssertionError):
            assert_defense_contract(wrong)


LAWS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "gaussian": lambda random: random.normal(size=SHAPE),
    "laplace": lambda random: random.laplace(scale=0.5**0.5, size=SHAPE),
    "uniform": lambda random: random.uniform(-(3**0.5), 3**0.5, SHAPE),
    "skellam": lambda random: (random.poisson(2.0, SHAPE) - random.poisson(2.0, SHAPE)) / 2,
    "poisson_binomial": lambda random: (random.binomial(64, 0.5, SHAPE) - 32) / 4,
}


@pytest.mark.parametrize("law", [
    pytest.param(law, marks=pytest.mark.slow if law in ("uniform", "poisson_binomial") else ()) for law in LAWS
])  # fmt: skip
@pytest.mark.parametrize("known", [pytest.param(True, marks=pytest.mark.slow), False])
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
