"""Attacks on a large network: neither the chunk nor the number of threads changes a bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import harness.models.rows as ways
from harness.attacks import ATTACKS, Reconstruction, engine, run_attack
from harness.base.building import build
from harness.observation import Observation


def attacked(name: str, settings: dict[str, Any], seen: Observation, chunk: int, threads: int) -> Reconstruction:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        return run_attack(build(ATTACKS, name, settings), seen, chunk)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("inverting_gradients", {"max_iterations": 4}),
        pytest.param("gradinversion", {"max_iterations": 4, "restarts": 2, "warm_up": 1}, marks=pytest.mark.slow),
        pytest.param("cpl", {"max_iterations": 1}, marks=pytest.mark.slow),
    ],
)
def test_neither_chunk_nor_threads_change_a_bit(
    name: str, settings: dict[str, Any], victims: Callable[..., Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "_LARGE", 0)
    seen = victims(3, 1, model="resnet8+group_norm")
    assert seen.model.evaluates_alone
    whole = attacked(name, settings, seen, 128, 1)
    for chunk, threads in ((1, 1), (2, 2), (128, 3)):
        other = attacked(name, settings, seen, chunk, threads)
        assert torch.equal(whole.images, other.images) and torch.equal(whole.loss, other.loss)
    last = attacked(name, settings, seen.take(torch.tensor([2])), 128, 2)
    assert torch.equal(whole.images[2:], last.images)
    assert (whole.loss < whole.initial_loss).any()


def test_threads_share_what_is_large_and_take_a_victim_each_of_what_is_small(
    victims: Callable[..., Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "_LARGE", 0)
    seen, apart = victims(2, 1, model="resnet8+group_norm"), []
    ordinary = engine.side_by_side
    monkeypatch.setattr(
        engine, "side_by_side", lambda work, things, own: apart.append(own) or ordinary(work, things, own)
    )
    for worth in (2**16, 1):
        monkeypatch.setattr(engine, "_WORTH_SHARING", worth)
        run_attack(build(ATTACKS, "inverting_gradients", {"max_iterations": 1}), seen)
    assert set(apart[:1]) == {True} and set(apart[-2:]) == {False}
