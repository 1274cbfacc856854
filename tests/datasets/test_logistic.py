"""The generated heterogeneous users: their shape, their scaling, and how far apart they are."""

from pathlib import Path

import pytest
import torch

from harness.datasets import load_dataset

NOWHERE = Path("nowhere")


@pytest.mark.parametrize("name", ["logistic-0-0", "logistic-5-5"])
def test_a_hundred_users_of_unit_rows(name: str) -> None:
    train, test = load_dataset(name, NOWHERE), load_dataset(name, NOWHERE, "test")
    assert train.images.shape == (400_000, 1, 1, 40) and test.images.shape == (100_000, 1, 1, 40)
    assert torch.bincount(train.clients).tolist() == [4000] * 100
    lengths = test.images.flatten(1).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert train.num_classes == 10 and train.columns is not None and train.columns.width == 40
    assert torch.equal(train.images, load_dataset(name, NOWHERE).images)


def test_users_differ_more_where_alpha_and_beta_say_so() -> None:
    def mean_largest_share(name: str) -> float:
        data = load_dataset(name, NOWHERE)
        counts = torch.bincount(data.clients * 10 + data.labels, minlength=1000).reshape(100, 10).double()
        return float((counts.amax(1) / 4000).mean())

    # One class dominates a user whose features lie far from the origin.
    assert mean_largest_share("logistic-0-0") < mean_largest_share("logistic-5-5")


def test_users_keep_centres_of_their_own() -> None:
    """A common model can tell users apart; standardised user by user, it could not."""
    data = load_dataset("logistic-5-5", NOWHERE)
    centres = data.images.reshape(100, 4000, 40).mean(1)
    assert centres.norm(dim=1).min() > 0.5
    assert centres.mean(0).norm() < 0.2
