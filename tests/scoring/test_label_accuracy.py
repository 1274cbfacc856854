import numpy as np
import pytest
import torch

from harness.scoring import label_accuracy, label_summary

SPLIT = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)


def draw(victims: int, batch: int, seed: int) -> torch.Tensor:
    return SPLIT[torch.randint(len(SPLIT), (victims, batch), generator=torch.Generator().manual_seed(seed))]


def test_accuracy_counts_labels_whatever_their_order() -> None:
    truth = torch.tensor([[1, 1, 2, 3], [1, 1, 2, 3], [1, 1, 2, 3], [1, 1, 2, 3]])
    inferred = torch.tensor([[3, 1, 2, 1], [1, 2, 2, 3], [0, 0, 0, 0], [-1, 1, 1, 1]])
    assert label_accuracy(inferred, truth).tolist() == [1.0, 0.75, 0.0, 0.5]


@pytest.mark.parametrize("batch", [1, 4])
def test_chance_is_what_random_guessing_reaches(batch: int) -> None:
    truth = draw(40, batch, seed=0)
    chance = label_summary(truth, truth, SPLIT, seed=0, permutations=1).chance
    repeated = truth.repeat(500, 1)
    assert chance == pytest.approx(label_accuracy(draw(20_000, batch, seed=1), repeated).mean(), abs=0.01)


@pytest.mark.parametrize("batch", [1, 4])
def test_perfect_inference_is_significant(batch: int) -> None:
    truth = draw(40, batch, seed=0)
    result = label_summary(truth, truth, SPLIT, seed=0, permutations=999)
    assert result.accuracy == 1.0 and result.p_value == 0.001


def test_the_same_answer_for_everybody_is_not_significant_though_it_beats_chance() -> None:
    truth = draw(200, 1, seed=0)
    result = label_summary(torch.zeros_like(truth), truth, SPLIT, seed=0, permutations=99)
    assert result.accuracy > result.chance and result.p_value == 1.0


def test_false_alarms_of_random_guesses_are_rare() -> None:
    p_values = [
        label_summary(draw(30, 3, 2 * seed), draw(30, 3, 2 * seed + 1), SPLIT, seed=0, permutations=99).p_value
        for seed in range(200)
    ]
    assert np.mean(np.array(p_values) <= 0.05) <= 0.10
    assert np.mean(np.array(p_values) <= 0.50) >= 0.30


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        label_accuracy(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64))
