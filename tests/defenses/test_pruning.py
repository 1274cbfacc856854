"""Pruning against hand computation, and the error feedback that loses nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, RoundContext, State

LAYOUT = Layout(("a", "b"), ((4,), (2,)))
UPDATE = torch.tensor([[0.1, -0.2, 3.0, 4.0, -0.3, 5.0]], dtype=torch.float64)


def context(client: State | None = None, round_index: int = 0, rows: int = 1) -> RoundContext:
    keys = tuple((0, row) for row in range(rows))
    return RoundContext(round_index, 0, 0.05, Cohort(), LAYOUT, keys, client={} if client is None else client)


def pruned(update: Tensor, settings: dict[str, Any], client: State | None = None) -> Tensor:
    return build(DEFENSES, "pruning", settings).client_message(update, context(client, rows=len(update)))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"threshold": 0.5}, [0.0, 0.0, 3.0, 4.0, 0.0, 5.0]),
        ({"threshold": 0.5, "mode": "layer"}, [0.0, 0.0, 3.0, 4.0, 0.0, 5.0]),
        ({"threshold": 0.75}, [0.0, 0.0, 0.0, 4.0, 0.0, 5.0]),  # floor(4.5) = 4 of 6
        ({"threshold": 0.75, "mode": "layer"}, [0.0, 0.0, 0.0, 4.0, 0.0, 5.0]),
        ({"threshold": 0.34}, [0.0, 0.0, 3.0, 4.0, -0.3, 5.0]),
        ({"threshold": 0.34, "mode": "layer"}, [0.0, -0.2, 3.0, 4.0, -0.3, 5.0]),
        ({"threshold": 0.01}, UPDATE[0].tolist()),
    ],
)
def test_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    assert pruned(UPDATE, settings)[0].tolist() == expected


def test_modes_differ_where_a_tensor_is_small() -> None:
    update = torch.tensor([[1.0, 2.0, 3.0, 4.0, 10.0, 11.0]])
    assert pruned(update, {"threshold": 0.5})[0].tolist() == [0, 0, 0, 4, 10, 11]
    assert pruned(update, {"threshold": 0.5, "mode": "layer"})[0].tolist() == [0, 0, 3, 4, 0, 11]


def test_ties_are_zeroed() -> None:
    update = torch.tensor([[1.0, -1.0, 1.0, 2.0, 3.0, -1.0]])
    assert pruned(update, {"threshold": 0.34})[0].tolist() == [0, 0, 0, 2, 3, 0]


@pytest.mark.parametrize("share", [0.1, 0.29, 0.5, 0.7, 0.99])
def test_the_share_of_zeros(share: float) -> None:
    layout = Layout(("a",), ((1000,),))
    update = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    where = RoundContext(0, 0, 0.05, Cohort(), layout, ((0, 0), (0, 1), (0, 2)))
    sent = build(DEFENSES, "pruning", {"threshold": share}).client_message(update, where)
    assert (sent == 0).sum(1).tolist() == [round(1000 * share)] * 3
    assert torch.equal(sent[sent != 0], update[sent != 0])


@pytest.mark.parametrize("mode", ["global", "layer"])
def test_error_feedback_sums_back_to_the_input_over_rounds(mode: str) -> None:
    updates = torch.randn(20, 2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings = {"threshold": 0.5, "mode": mode, "error_feedback": True}
    memory: State = {}
    sent = torch.stack([pruned(update, settings, memory) for update in updates])
    torch.testing.assert_close(sent.sum(0) + memory["residual"], updates.sum(0))
    forgetful = torch.stack([pruned(update, settings | {"error_feedback": False}) for update in updates])
    assert not torch.allclose(forgetful.sum(0), sent.sum(0))
    assert torch.equal(sent[0], forgetful[0])


def test_adversaries_are_told_where_zeros_mean_nothing() -> None:
    defense = build(DEFENSES, "pruning", {})
    taps = ("T2.raw", "T2.step", "T1.raw", "T1.out", "T0.in", "T0.post")
    assert [tap for tap in taps if defense.sparse_at(tap)] == ["T1.out", "T0.in", "T0.post"]
    assert not build(DEFENSES, "pruning", {"threshold": 0}).sparse_at("T1.out")
