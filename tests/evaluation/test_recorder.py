"""The recorder's tau and snapshots, on hand-made iterations."""

import pytest
import torch
from torch import Tensor

from harness.evaluation.watching import AttackRecorder
from harness.scoring.success import STRICT_RMSE

CAP = 30


def images(rows: int, examples: int) -> Tensor:
    return torch.rand(rows, examples, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.5


def show(
    recorder: AttackRecorder, iteration: int, made: Tensor, restart: int = 0, rows: list[int] | None = None
) -> None:
    victims = torch.tensor(rows if rows is not None else range(len(made)))
    recorder(victims, torch.full_like(victims, restart), iteration, made)


def tau(recorder: AttackRecorder, restarts: list[int]) -> list[list[int]]:
    return recorder.tau(torch.tensor(restarts), CAP).tolist()


def test_tau_is_the_first_strict_iteration_or_the_cap() -> None:
    truth = images(3, 1)
    recorder = AttackRecorder(truth, restarts=1)
    far = truth + 0.3
    show(recorder, 1, far)
    show(recorder, 2, torch.stack([truth[0], far[1], far[2]]))
    show(recorder, 3, torch.stack([far[0], truth[1], far[2]]))
    show(recorder, 4, torch.stack([truth[0], truth[1], far[2]]))
    assert tau(recorder, [0, 0, 0]) == [[2], [3], [CAP]]


@pytest.mark.parametrize(("offset", "expected"), [(STRICT_RMSE - 1e-3, 5), (STRICT_RMSE + 1e-3, CAP)])
def test_the_strict_rule_decides(offset: float, expected: int) -> None:
    truth = images(1, 1)
    recorder = AttackRecorder(truth, restarts=1)
    show(recorder, 5, truth + offset)
    assert tau(recorder, [0]) == [[expected]]


def test_reconstructions_are_clamped_before_they_are_compared() -> None:
    recorder = AttackRecorder(torch.ones(1, 1, 1, 4, 4), restarts=1)
    show(recorder, 7, torch.full((1, 1, 1, 4, 4), 9.0))
    assert tau(recorder, [0]) == [[7]]


def test_batches_are_matched_before_they_are_compared() -> None:
    truth = images(2, 3)
    recorder = AttackRecorder(truth, restarts=1)
    show(recorder, 1, torch.stack([truth[0, [2, 0, 1]], truth[1, [0, 0, 0]]]))
    first, second = tau(recorder, [0, 0])
    assert first == [1, 1, 1]
    assert second == [1, CAP, CAP]


def test_only_the_kept_start_counts() -> None:
    truth = images(2, 1)
    recorder = AttackRecorder(truth, restarts=2)
    show(recorder, 3, truth, restart=0)
    show(recorder, 8, truth, restart=1)
    assert tau(recorder, [0, 1]) == [[3], [8]]
    assert tau(recorder, [1, 0]) == [[8], [3]]


def test_rows_may_be_reported_in_parts() -> None:
    truth = images(3, 1)
    recorder = AttackRecorder(truth, restarts=1)
    show(recorder, 1, truth[[2]], rows=[2])
    show(recorder, 4, truth[[0]], rows=[0])
    assert tau(recorder, [0, 0, 0]) == [[4], [CAP], [1]]


def test_snapshots_of_a_stopped_row_show_its_final_images() -> None:
    truth = images(2, 1)
    recorder = AttackRecorder(truth, restarts=1)
    show(recorder, 1, truth + 0.2)
    show(recorder, 2, truth[[1]] + 0.1, rows=[1])
    show(recorder, 3, truth)
    shots = recorder.snapshots(torch.tensor([0, 0]), final=truth)
    assert list(shots) == [1, 2]
    assert torch.equal(shots[1], truth + 0.2)
    assert torch.equal(shots[2], torch.stack([truth[0], truth[1] + 0.1]))
