"""Client splits: what each promises about the classes and the examples of a client."""

import pytest
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.datasets.partition import SPLITS, most_copies, split_clients

LABELS = torch.arange(10).repeat(60)[torch.randperm(600, generator=torch.Generator().manual_seed(0))]


def classes_of(data: Tensor) -> list[Tensor]:
    return [torch.bincount(LABELS[row], minlength=10) for row in data]


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_is_a_function_of_its_seed(split: str) -> None:
    first, again, other = (split_clients(LABELS, 12, 20, split, 0.5, seed) for seed in (0, 0, 1))
    assert first.shape == (12, 20) and torch.equal(first, again) and not torch.equal(first, other)
    assert first.min() >= 0 and first.max() < 600


@pytest.mark.parametrize("split", ["iid", "shards"])
def test_clients_are_disjoint_while_the_data_lasts(split: str) -> None:
    assert len(split_clients(LABELS, 30, 20, split, 0, 0).unique()) == 600
    assert len(split_clients(LABELS, 60, 20, split, 0, 0).unique()) > 500


@pytest.mark.parametrize(
    ("split", "level", "held"), [("iid", 0, 70), ("shards", 0, 50), ("dirichlet", 5.0, 70), ("similarity", 0.5, 70)]
)
def test_no_client_holds_an_example_twice(split: str, level: float, held: int) -> None:
    """Though clients together hold every one several times; and their classes stay what they were."""
    data = split_clients(LABELS, 100, held, split, level, 0)
    assert most_copies(data) == 1
    raw = SPLITS[split](LABELS, 100, held, generator(0, "clients", split), level)
    assert most_copies(raw) > 1
    assert torch.equal(torch.stack(classes_of(raw)), torch.stack(classes_of(data)))
    kept = [row for row in range(100) if len(raw[row].unique()) == held]
    assert kept and torch.equal(raw[kept], data[kept])


def test_a_class_that_is_used_up_repeats() -> None:
    data = split_clients(LABELS, 10, 90, "similarity", 0.0, 0)
    assert most_copies(data) == 2 and {len(row.unique()) for row in data} == {60}


def test_shards_hold_two_classes_at_most() -> None:
    for counts in classes_of(split_clients(LABELS, 60, 20, "shards", 0, 0)):
        assert (counts > 0).sum() <= 2 and set(counts[counts > 0].tolist()) <= {10, 20}


def test_dirichlet_concentrates_as_its_level_falls() -> None:
    def largest_share(level: float) -> float:
        counts = torch.stack(classes_of(split_clients(LABELS, 60, 50, "dirichlet", level, 0))).double()
        return float((counts.amax(1) / 50).mean())

    # Expected largest shares: nearly 1, about 0.47 (simulated with numpy), and 0.1 plus sampling error.
    assert largest_share(0.01) > 0.85
    assert 0.35 < largest_share(0.5) < 0.6
    assert largest_share(1000.0) < 0.25


@pytest.mark.parametrize(("level", "own"), [(0.0, 40), (0.5, 20), (1.0, 0)])
def test_similarity_gives_the_rest_from_one_class(level: float, own: int) -> None:
    for client, counts in enumerate(classes_of(split_clients(LABELS, 20, 40, "similarity", level, 0))):
        assert counts[client % 10] >= own and counts.sum() == 40


@pytest.mark.parametrize(("level", "most", "fewest"), [(0.0, 2, 1), (0.5, 10, 5), (1.0, 10, 6)])
def test_sorted_clients_share_nothing_and_hold_runs_of_labels(level: float, most: int, fewest: int) -> None:
    data = split_clients(LABELS, 20, 30, "sorted", level, 0)
    assert len(data.unique()) == 600
    held = [int((counts > 0).sum()) for counts in classes_of(data)]
    assert max(held) <= most and min(held) >= fewest
    runs = LABELS[data[:, round(level * 30) :]]
    assert torch.equal(runs.flatten(), runs.flatten().sort().values)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ((10, 20, "rings", 0.5), "choose iid, shards"),
        ((10, 601, "iid", 0.5), "lower it"),
        ((10, 21, "shards", 0.5), "an even number of examples per client, at most 120, not 21; set --examples"),
        ((2, 140, "shards", 0.5), "at most 120"),
        ((31, 20, "sorted", 0.5), "gives none twice; lower clients or examples"),
        ((0, 20, "iid", 0.5), "at least one example"),
    ],
)
def test_mistakes(arguments: tuple[int, int, str, float], fix: str) -> None:
    with pytest.raises(UsageError, match=fix):
        split_clients(LABELS, *arguments, 0)
