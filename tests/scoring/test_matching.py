import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.scoring import Pairs, match, measured, pairwise_mse
from harness.scoring.images import best_first, draws_of, repeats_of


def matched_metrics(truth: torch.Tensor, reconstruction: torch.Tensor) -> dict[str, list[float]]:
    assignment = match(truth, reconstruction)
    guesses = torch.stack([row[chosen] for row, chosen in zip(reconstruction, assignment, strict=True)])
    return {
        name: values.tolist() for name, values in measured(Pairs(truth.flatten(0, 1), guesses.flatten(0, 1)))[0].items()
    }


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_the_order_of_reconstructions_changes_no_matched_metric(seed: int, order: list[int]) -> None:
    random = torch.Generator().manual_seed(seed)
    truth = torch.rand(3, 4, 1, 12, 12, generator=random)
    reconstruction = torch.rand(3, 4, 1, 12, 12, generator=random) * 3 - 1
    assert matched_metrics(truth, reconstruction[:, order]) == matched_metrics(truth, reconstruction)


def test_match_undoes_a_shuffle_of_exact_copies() -> None:
    truth = torch.rand(2, 5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 4, 1, 2])
    assignment = match(truth, truth[:, order])
    assert torch.equal(order[assignment], torch.arange(5).expand(2, 5))


def test_match_minimises_the_total_not_each_image_in_turn() -> None:
    # Greedy matching would give image 0 its nearest guess (0.5) and leave image 1 with 0.0, at a total of 0.34.
    truth = torch.tensor([0.4, 0.55]).view(1, 2, 1, 1, 1)
    guesses = torch.tensor([0.5, 0.0]).view(1, 2, 1, 1, 1)
    assert match(truth, guesses).tolist() == [[1, 0]]


def test_pairwise_mse_clamps_and_agrees_with_plain_loops() -> None:
    random = torch.Generator().manual_seed(1)
    truth = torch.rand(2, 3, 1, 5, 5, generator=random)
    guesses = torch.randn(2, 3, 1, 5, 5, generator=random)
    costs = pairwise_mse(truth, guesses)
    for victim in range(2):
        for image in range(3):
            for guess in range(3):
                expected = (truth[victim, image] - guesses[victim, guess].clamp(0, 1)).square().mean()
                assert costs[victim, image, guess].item() == pytest.approx(expected.item(), rel=1e-5)
    assert pairwise_mse(truth, truth)[:, torch.arange(3), torch.arange(3)].eq(0).all()


def test_one_dummy_serves_the_whole_batch() -> None:
    assert match(torch.rand(2, 3, 1, 4, 4), torch.rand(2, 1, 1, 4, 4)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_other_numbers_of_reconstructions_are_refused() -> None:
    with pytest.raises(ValueError, match="2 reconstructions for batches of 3"):
        match(torch.rand(2, 3, 1, 4, 4), torch.rand(2, 2, 1, 4, 4))
    with pytest.raises(ValueError, match="shapes do not fit"):
        match(torch.rand(2, 3, 1, 4, 4), torch.rand(2, 3, 1, 4, 5))


def test_an_image_in_several_places_counts_in_the_first_of_them_by_its_nearest_reconstruction() -> None:
    indices = np.array([[7, 3, 7, 7], [1, 2, 3, 4]])
    assert repeats_of(indices).tolist() == [[False, False, True, True], [False] * 4]
    truth = torch.zeros(2, 4, 1, 2, 2)
    guesses = torch.tensor([0.4, 0.0, 0.1, 0.3]).reshape(1, 4, 1, 1, 1).expand(2, 4, 1, 2, 2)
    order = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    assert best_first(order, truth, guesses, indices).tolist() == [[2, 1, 3, 0], [0, 1, 2, 3]]
    values = np.array([[True, True, True, False], [False, True, False, False]])
    for groups, shape in ((None, (2, 4)), (np.array([0, 0]), (1, 8))):
        drawn, counted = draws_of(values, 2, groups, repeats_of(indices))
        assert drawn.shape == shape and counted is not None
        assert (int(counted.sum()), int(drawn[counted].sum())) == (6, 3)
