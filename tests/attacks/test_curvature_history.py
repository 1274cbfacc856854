"""The history of many rows gives each the direction of the textbook's two loops over its own last steps."""

import pytest
import torch
from torch import Tensor

from harness.attacks.lbfgs import CurvatureHistory

CAPACITY, LENGTH = 4, 6
Step = tuple[Tensor, Tensor]


def two_loops(steps: list[Step], gradient: Tensor, scale: float) -> Tensor:
    """Nocedal and Wright, algorithm 7.4, for one row."""
    direction, weights = gradient.clone(), []
    for change, gradient_change in reversed(steps):
        weights.append((change @ direction) / (change @ gradient_change))
        direction -= weights[-1] * gradient_change
    direction *= scale
    for (change, gradient_change), weight in zip(steps, reversed(weights), strict=True):
        direction += change * (weight - (gradient_change @ direction) / (change @ gradient_change))
    return -direction


def play(pattern: list[list[bool]], capacity: int = CAPACITY) -> tuple[CurvatureHistory, list[list[Step]]]:
    """A history after steps of which each row finds some useful, and each row's own."""
    random = torch.Generator().manual_seed(0)
    rows = len(pattern[0])
    hessian = torch.randn(LENGTH, LENGTH, generator=random, dtype=torch.float64)
    hessian = hessian @ hessian.T + torch.eye(LENGTH)
    history = CurvatureHistory.of(capacity, torch.zeros(rows, LENGTH, dtype=torch.float64))
    own: list[list[Step]] = [[] for _ in range(rows)]
    for useful in pattern:
        history.make_room(1)
        change = torch.randn(rows, LENGTH, generator=random, dtype=torch.float64)
        gradient_change = change @ hessian + 0.3 * torch.randn(rows, LENGTH, generator=random, dtype=torch.float64)
        history.append(change, gradient_change, (change * gradient_change).sum(1), torch.tensor(useful))
        for row in range(rows):
            if useful[row]:
                own[row].append((change[row], gradient_change[row]))
    return history, own


PATTERNS = {
    "all": [[True] * 3] * 3,
    "round and round": [[True] * 3] * 11,
    "one begins late": [[True, True, False]] * 3 + [[True] * 3] * 2,
    "one never": [[True, False, True]] * 7,
    "in turns": [[step % 2 == 0, step % 3 == 0, True] for step in range(13)],
    "none at first": [[False] * 3, [False] * 3, [True, False, True]],
}


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_each_row_has_the_direction_of_its_own_last_steps(pattern: list[list[bool]]) -> None:
    history, own = play(pattern)
    gradient = torch.randn(3, LENGTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scale = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    made = history.newton_direction(gradient, scale)
    for row in range(3):
        assert torch.allclose(made[row], two_loops(own[row][-CAPACITY:], gradient[row], float(scale[row])), rtol=1e-9)
        if len(own[row]) > CAPACITY:  # not by chance: with the steps that it has dropped it is another
            assert not torch.allclose(made[row], two_loops(own[row], gradient[row], float(scale[row])), rtol=1e-3)


def test_rows_that_are_taken_go_on_as_before() -> None:
    history, own = play(PATTERNS["in turns"])
    history.take(torch.tensor([2, 1]))
    gradient = torch.ones(2, LENGTH, dtype=torch.float64)
    made = history.newton_direction(gradient, gradient[:, 0])
    for place, row in enumerate((2, 1)):
        assert torch.allclose(made[place], two_loops(own[row][-CAPACITY:], gradient[0], 1.0), rtol=1e-9)


def test_without_a_step_it_goes_down_the_gradient() -> None:
    history = CurvatureHistory.of(3, torch.zeros(2, LENGTH))
    history.make_room(2)
    history.append(torch.ones(2, LENGTH), torch.ones(2, LENGTH), torch.ones(2), torch.tensor([False, False]))
    assert torch.equal(history.newton_direction(torch.ones(2, LENGTH), torch.tensor([1.0, 2.0]))[1], -2 * torch.ones(6))


def test_a_step_without_room_is_refused() -> None:
    history, step = CurvatureHistory.of(3, torch.zeros(2, LENGTH)), torch.ones(2, LENGTH)
    history.make_room(1)
    history.append(step, step, step[:, 0], torch.tensor([True, True]))
    with pytest.raises(IndexError, match="room"):
        history.append(step, step, step[:, 0], torch.tensor([False, True]))


@pytest.mark.parametrize("length", [6, 784])
def test_no_bit_depends_on_the_rows_beside(length: int) -> None:
    random = torch.Generator().manual_seed(0)
    steps = [torch.randn(2, 5, length, generator=random) for _ in range(9)]
    gradient = torch.randn(5, length, generator=random)

    def direction(rows: list[int]) -> Tensor:
        history = CurvatureHistory.of(6, torch.zeros(len(rows), length))
        for change, gradient_change in steps:
            history.make_room(2)
            curvature = (change * gradient_change).sum(1).abs() + 1
            history.append(
                change[rows], gradient_change[rows], curvature[rows], torch.ones(len(rows), dtype=torch.bool)
            )
        return history.newton_direction(gradient[rows], torch.ones(len(rows)))

    every = direction([0, 1, 2, 3, 4])
    for rows in ([3], [0, 4], [2, 1, 3]):
        assert torch.equal(direction(rows), every[rows])
