"""The batched engine: a row's result is its own, restarts are chosen by loss, and every stop has its reason."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import Attack, Reconstruction, engine, run_attack, validated_attack
from harness.attacks.cpl import CPL
from harness.attacks.dlg import IDLG
from harness.attacks.engine import CAP, CONVERGED, DIVERGED, HOPELESS, choose_restarts
from harness.attacks.inverting_gradients import InvertingGradients
from harness.base.errors import UsageError
from harness.observation import Clipping, Observation
from harness.testing.attacks import assert_frozen, assert_same_bits

Victims = Callable[..., Observation]


def test_progress_counts_every_victim_once_as_chunks_are_done(victims: Victims) -> None:
    done: list[int] = []
    run_attack(CPL(max_iterations=1, restarts=2), victims(4), chunk=3, progress=done.append)
    assert done == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"max_iterations": 3}, {}),
        pytest.param(
            {"max_iterations": 3, "scale": "free"}, {"clipping": Clipping(1.0, "layer", "example")},
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_row_alone_gives_the_bits_it_gives_among_rows_that_stop_earlier(
    settings: dict[str, Any], facts: dict[str, Any], victims: Victims
) -> None:
    """Rows stop at different iterations and are compacted away, down to a single one."""
    attack, observation = IDLG(**settings), victims(3, **facts)
    together = run_attack(attack, observation)
    assert len(together.iterations.unique()) > 1
    for row in range(3):
        alone = run_attack(attack, observation.take(torch.tensor([row])))
        assert_same_bits(alone, [0], together, [row])


def test_less_memory_than_was_forecast_halves_the_chunk(
    victims: Victims, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a GPU does that others use too: work goes on, and no number is another one."""
    attack, observation, run, tried = CPL(max_iterations=2), victims(5), engine._ChunkRun.run, list[int]()

    def scarce(self: Any) -> Reconstruction:
        tried.append(len(self.victims))
        if len(self.victims) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self)

    whole = run_attack(attack, observation)
    monkeypatch.setattr(engine._ChunkRun, "run", scarce)
    assert_same_bits(run_attack(attack, observation, chunk=4), [*range(5)], whole, [*range(5)])
    assert tried == [4, 2, 1, 1, 1, 1, 1] and "goes on with 1 victims at a time" in caplog.text
    monkeypatch.setattr(engine._ChunkRun, "run", lambda _: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        run_attack(attack, observation)


def test_iterates_are_judged_by_matching_loss_not_by_the_last_one(victims: Victims) -> None:
    """A step that only makes things worse leaves the start as the best iterate."""

    @validated_attack
    class Vandal(CPL):
        def after_step(self, position: Tensor, keys: list[tuple[int | str, ...]], iteration: int) -> Tensor:
            return torch.full_like(position, 50.0)

    observation = victims(3)
    result = run_attack(Vandal(max_iterations=3), observation)
    steady = run_attack(CPL(max_iterations=1), observation)
    assert_same_bits(
        replace(result, iterations=steady.iterations, evaluations=steady.evaluations), [0, 1, 2], steady, [0, 1, 2]
    )


def test_choosing_restarts() -> None:
    loss = torch.tensor([3.0, 1.0, 2.0, torch.nan, torch.inf, 7.0, torch.inf, torch.nan, torch.inf])
    rows = torch.arange(9)
    starts = Reconstruction(
        images=rows.float(), labels=rows, loss=loss, initial_loss=loss, stop_reason=rows, iterations=rows,
        evaluations=torch.ones(9) * 10 ** (rows % 3), restart=rows % 3,
    )  # fmt: skip
    kept = choose_restarts(starts, 3)
    assert kept.labels.tolist()[:2] == [1, 5] and kept.restart.tolist()[:2] == [1, 2]
    assert kept.labels[2] in (6, 7, 8)  # no start has a loss; still counted, with one of its own starts
    assert kept.evaluations.tolist() == [111.0] * 3


def test_restarts_are_independent_starts_chosen_by_loss(victims: Victims) -> None:
    @validated_attack
    class From(CPL):
        number: int = 0

        def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
            return Attack.start(self, observation, [(*key[:-1], self.number) for key in keys])

    observation = victims(4)
    together = run_attack(CPL(max_iterations=1, restarts=3), observation)
    singles = [run_attack(From(max_iterations=1, number=number), observation) for number in range(3)]
    losses = torch.stack([single.loss for single in singles], dim=1)
    assert torch.equal(together.restart, losses.argmin(1)) and len(together.restart.unique()) > 1
    assert torch.equal(together.loss, losses.amin(1))
    assert torch.equal(together.evaluations, torch.stack([single.evaluations for single in singles]).sum(0))
    for row, kept in enumerate(together.restart.tolist()):
        assert torch.equal(together.images[row], singles[kept].images[row])


@pytest.mark.parametrize(("examples", "spoil"), [(2, torch.nan), (1, torch.inf)])
def test_an_observation_that_is_not_a_number_is_counted_as_diverged(
    examples: int, spoil: float, victims: Victims
) -> None:
    assert_frozen(CPL(max_iterations=2), victims(4, examples, model="mlp"), spoil)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"labels": lambda *_: None}, "labels.. gives None; let it infer them"),
    "one label for all": (
        {"labels": lambda *_: torch.zeros(1, 1, dtype=torch.long)},
        "labels.. gives a tensor .1, 1. of torch.int64; let it give .4, 1.",
    ),
    "a class that there is not": (
        {"labels": lambda _, seen: torch.full((seen.rows, 1), 99)},
        "gives 99, where there are",
    ),
    "half a class": (
        {"labels": lambda _, seen: torch.zeros(seen.rows, 1)},
        "of torch.float32; let it give .4, 1. of torch.long",
    ),
    "a list": ({"labels": lambda *_: [1, 2, 3, 4]}, "labels.. gives a list"),
    "one start for all": ({"start": lambda _, seen, keys: torch.zeros(1, 64)}, "start.. gives a tensor .1, 64"),
    "no start": ({"start": lambda *_: None}, "start.. gives a NoneType"),
}


@pytest.mark.parametrize(("methods", "told"), WRONG.values(), ids=WRONG)
def test_what_an_own_attack_gives_wrongly_is_named(methods: dict[str, Any], told: str, victims: Victims) -> None:
    wrong = validated_attack(type("Wrong", (InvertingGradients,), methods))
    with pytest.raises(UsageError, match=told):
        run_attack(wrong(max_iterations=1), victims(4))


def test_a_start_that_is_not_a_number_is_counted_as_diverged(victims: Victims) -> None:
    @validated_attack
    class Nowhere(CPL):
        def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
            made = Attack.start(self, observation, keys).clone()
            made[torch.tensor([key[1] == 1 for key in keys])] = torch.nan
            return made

    result, usual = (run_attack(kind(max_iterations=2), victims(4)) for kind in (Nowhere, CPL))
    assert result.stop_reason[1] == DIVERGED and result.images.isfinite().all()
    assert_same_bits(result, [0, 2, 3], usual, [0, 2, 3])


def test_a_huge_loss_is_no_divergence_but_a_thousandfold_one_is(victims: Victims) -> None:
    @validated_attack
    class Runaway(CPL):
        def after_step(self, position: Tensor, keys: list[tuple[int | str, ...]], iteration: int) -> Tensor:
            worse = position.clone()
            worse[:, 0] += torch.tensor([1e25 if key[1] == 1 and iteration == 2 else 0.0 for key in keys])
            return worse

        def distance(self, observation: Observation, candidate: Tensor) -> Tensor:
            return super().distance(observation, candidate) * 1e8

        def penalty(self, observation: Observation, dummy: Any, victims: Tensor) -> Tensor | float:
            return 0.0

        def matching(self, observation: Observation, dummy: Any) -> Tensor:
            far = dummy.images.flatten(1)[:, 0].abs() > 1e20
            return super().matching(observation, dummy) + far * 1e15

    observation = victims(3)
    result = run_attack(Runaway(max_iterations=4, loss_stop=0, patience=0), observation)
    assert (result.initial_loss > 1e4).all()
    assert result.stop_reason.tolist() == [CAP, DIVERGED, CAP]
    assert result.iterations.tolist() == [4, 3, 4]
    assert result.loss[1] < result.initial_loss[1]  # the best finite iterate is still handed out


def test_heavy_noise_is_given_up_after_patience_not_called_divergence(victims: Victims) -> None:
    observation = victims(3)
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    noisy = replace(observation, target=observation.target + 1e3 * noise)
    result = run_attack(CPL(patience=5, patience_window=2), noisy)
    assert (result.initial_loss > 1e9).all()
    assert result.stop_reason.tolist() == [HOPELESS] * 3 and result.iterations.tolist() == [5] * 3
    patient = run_attack(CPL(patience=0, max_iterations=7), noisy)
    assert patient.stop_reason.tolist() == [CAP] * 3 and patient.iterations.tolist() == [7] * 3


@pytest.mark.parametrize("loss_stop", [1e-2, 1e-6])
def test_a_row_whose_loss_is_small_enough_has_converged(loss_stop: float, victims: Victims) -> None:
    observation = victims(3)
    result = run_attack(CPL(loss_stop=loss_stop, max_iterations=20), observation)
    assert result.stop_reason.tolist() == [CONVERGED] * 3
    assert (result.loss <= loss_stop * observation.target.square().sum(1).clamp_min(1)).all()
    assert (result.iterations < 20).all()


@pytest.mark.parametrize("restarts", [1, 3])
def test_the_observer_sees_every_running_row_once(restarts: int, victims: Victims) -> None:
    seen: list[tuple[int, int, int]] = []

    def observer(rows: Tensor, starts: Tensor, iteration: int, images: Tensor) -> None:
        assert images.shape == (len(rows), 1, 1, 8, 8) and len(rows) == len(starts)
        seen.extend((iteration, row, start) for row, start in zip(rows.tolist(), starts.tolist(), strict=True))

    attack = CPL(max_iterations=3, restarts=restarts, loss_stop=1e-4)
    result = run_attack(attack, victims(3), chunk=restarts * 2, observer=observer)
    assert len(seen) == len(set(seen))
    kept = {(row, int(start)): int(steps) for row, (start, steps) in enumerate(zip(result.restart, result.iterations,
                                                                                   strict=True))}  # fmt: skip
    for (row, start), steps in kept.items():
        assert {iteration for iteration, *who in seen if who == [row, start]} == set(range(1, steps + 1))
    assert {tuple(who) for _, *who in seen} == {(row, start) for row in range(3) for start in range(restarts)}
