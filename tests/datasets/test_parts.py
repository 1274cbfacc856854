"""Training and test parts: the publishers' own, or a split that is fixed, stratified and complete."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets import Dataset, load_dataset
from harness.datasets.load import take_part


def numbered(labels: list[int]) -> Dataset:
    """A dataset whose image k has the pixel k."""
    images = torch.arange(len(labels), dtype=torch.float32).reshape(-1, 1, 1, 1)
    return Dataset("numbered", images, torch.tensor(labels), tuple("abcde"), "made here")


def pixels(dataset: Dataset) -> list[int]:
    return dataset.images.flatten().long().tolist()


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=60), share=st.floats(0.05, 0.95))
def test_parts_are_disjoint_complete_and_stratified(labels: list[int], share: float) -> None:
    whole = numbered(labels)
    train, test = (take_part(whole, part, share) for part in ("train", "test"))
    assert sorted(pixels(train) + pixels(test)) == list(range(len(labels)))
    assert pixels(train) == sorted(pixels(train)) and pixels(test) == sorted(pixels(test))
    assert len(test.labels) == math.ceil(share * len(labels))
    assert test.labels.tolist() == [labels[pixel] for pixel in pixels(test)]
    for label in set(labels):
        # Each class is within one example of its share; rounding the total up may give it one more.
        assert abs(test.labels.tolist().count(label) - share * labels.count(label)) < 2
    assert pixels(take_part(whole, "test", share)) == pixels(test)


def test_every_natural_client_is_held_out_in_proportion() -> None:
    whole = replace(numbered([0, 1] * 50), clients=torch.tensor([0] * 20 + [1] * 80))
    test = take_part(whole, "test", 0.2)
    assert test.clients is not None and test.clients.bincount().tolist() == [4, 16]
    assert (test.clients * 2 + test.labels).bincount().tolist() == [2, 2, 8, 8]


def test_the_split_is_drawn_at_random() -> None:
    test = pixels(take_part(numbered([0] * 400), "test", 0.25))
    assert 150 < np.mean(test) < 250 and test != list(range(min(test), min(test) + 100))


@pytest.mark.parametrize(
    ("name", "train", "test"), [("mnist-sample", 800, 200), ("cifar10-sample", 400, 100), ("digits", 1437, 360)]
)
def test_bundled_data(tmp_path: Path, name: str, train: int, test: int) -> None:
    whole = load_dataset(name, tmp_path)
    parts = [load_dataset(name, tmp_path, part) for part in ("train", "test")]
    assert [len(part.labels) for part in parts] == [train, test]
    assert len(whole.labels) == train + test
    assert [part.origin for part in parts] == [f"{whole.origin}, train part", f"{whole.origin}, test part"]


def test_own_data(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, images=np.zeros((10, 4, 4), dtype=np.uint8), labels=np.arange(10) % 2)
    assert [len(load_dataset(str(path), tmp_path, part).labels) for part in ("train", "test")] == [8, 2]


REAL = [
    ("mnist", 60_000, 10_000), ("fashion-mnist", 60_000, 10_000), ("lfw", 2_267, 756),
    pytest.param("cifar10", 50_000, 10_000, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("name", "train", "test"), REAL)
def test_real_files(name: str, train: int, test: int, real: Callable[..., Any]) -> None:
    """The sizes that the papers print."""
    parts = [real(name, part) for part in ("train", "test")]
    assert [len(part.labels) for part in parts] == [train, test]
