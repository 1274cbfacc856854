"""Victims: deterministic, extendable, no image twice, distinct labels wherever they are possible."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.base.errors import UsageError
from harness.datasets import Dataset, load_dataset, select_victims

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any)


def with_counts(counts: list[int]) -> Dataset:
    """A dataset with counts[k] images of class k; the pixel of image i is i / 1000."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = (torch.arange(len(labels)) / 1000).reshape(-1, 1, 1, 1)
    return Dataset("made", images, labels, tuple(str(label) for label in range(len(counts))), "made for a test")


def most_by_greed(counts: list[int], examples: int) -> int:
    """The most victims with distinct labels: taking from the fullest classes is known to be optimal."""
    left, victims = sorted(counts, reverse=True), 0
    while len(left) >= examples and left[examples - 1] > 0:
        left = sorted([count - 1 for count in left[:examples]] + left[examples:], reverse=True)
        victims += 1
    return victims


@settings(deadline=None, max_examples=150)
@given(counts=COUNTS, examples=st.integers(2, 4), seed=st.integers(0, 5))
def test_distinct_labels_up_to_the_most_possible(counts: list[int], examples: int, seed: int) -> None:
    dataset, most = with_counts(counts), most_by_greed(counts, examples)
    if most:
        victims = select_victims(dataset, most, examples, seed, distinct_labels=True)
        check_consistent(dataset, victims.indices, victims.images, victims.labels)
        assert all(len(set(row)) == examples for row in victims.labels.tolist())
        fewer = select_victims(dataset, (most + 1) // 2, examples, seed, distinct_labels=True)
        assert torch.equal(fewer.indices, victims.indices[: (most + 1) // 2])
    with pytest.raises(UsageError, match=r"ask for .*fewer"):
        select_victims(dataset, most + 1, examples, seed, distinct_labels=True)


@settings(deadline=None, max_examples=50)
@given(counts=COUNTS, examples=st.integers(1, 4), seed=st.integers(0, 5), data=st.data())
def test_any_labels(counts: list[int], examples: int, seed: int, data: st.DataObject) -> None:
    dataset = with_counts(counts)
    most = sum(counts) // examples
    if most:
        victims = select_victims(dataset, most, examples, seed, distinct_labels=False)
        check_consistent(dataset, victims.indices, victims.images, victims.labels)
        number = data.draw(st.integers(1, most))
        fewer = select_victims(dataset, number, examples, seed, distinct_labels=False)
        assert torch.equal(fewer.indices, victims.indices[:number])
    with pytest.raises(UsageError, match=r"ask for .*fewer"):
        select_victims(dataset, most + 1, examples, seed, distinct_labels=False)


def check_consistent(dataset: Dataset, indices: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> None:
    assert indices.unique().numel() == indices.numel()
    assert torch.equal(images, dataset.images[indices])
    assert torch.equal(labels, dataset.labels[indices])
    assert images.shape == (*indices.shape, *dataset.image_shape)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_pure_function_of_dataset_and_seed(distinct: bool) -> None:
    dataset = load_dataset("mnist-sample", Path())
    first = select_victims(dataset, 20, 3, 0, distinct)
    torch.rand(7)
    assert torch.equal(first.indices, select_victims(dataset, 20, 3, 0, distinct).indices)
    assert not torch.equal(first.indices, select_victims(dataset, 20, 3, 1, distinct).indices)


def test_single_examples_do_not_depend_on_distinctness() -> None:
    dataset = with_counts([5, 9, 2])
    chosen = [select_victims(dataset, 16, 1, 3, distinct).indices for distinct in (False, True)]
    assert torch.equal(*chosen)


def test_labels_are_drawn_in_proportion_to_the_images() -> None:
    dataset = with_counts([450, 350, 200])
    firsts = Counter(select_victims(dataset, 1, 2, seed, True).labels[0, 0].item() for seed in range(600))
    assert [firsts[label] / 600 for label in range(3)] == pytest.approx([0.45, 0.35, 0.2], abs=0.08)


def test_a_hundred_unbalanced_victims_leave_decoys_of_every_class() -> None:
    faces = with_counts([530, 236, 144, 121, 109, *range(20, 77)])
    victims = select_victims(faces, 100, 3, 0, distinct_labels=True)
    left = faces.labels.bincount() - victims.labels.flatten().bincount(minlength=faces.num_classes)
    assert left.min() > 0


@pytest.mark.parametrize(
    ("victims", "examples", "message"),
    [
        (0, 1, "must be at least 1"),
        (1, 0, "must be at least 1"),
        (-1, -1, "must be at least 1"),
        (4, 3, "need 12 in all, but made has 10"),
        (1, 3, "at most 0 victims 3 distinct labels each, but 1 are asked; ask for fewer examples per victim"),
        (4, 2, "at most 3 victims 2 distinct labels .* ask for at most 3 victims, or fewer"),
    ],
)
def test_impossible_requests(victims: int, examples: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select_victims(with_counts([7, 3]), victims, examples, 0, distinct_labels=True)
