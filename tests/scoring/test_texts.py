"""ROUGE of tokens beside the public library, and how crowded a batch of texts is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness.base.words import PAD, images_of
from harness.scoring.texts import crowding, rouge


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_rouge_is_that_of_the_library_given_the_same_tokens() -> None:
    scorer: Any = pytest.importorskip("rouge_score.rouge_scorer")
    random = torch.Generator().manual_seed(0)
    truth, made = torch.randint(1, 7, (2, 40, 12), generator=random)
    made[::2] = truth[::2].roll(2, 1)
    truth[:, 9:], made[::3, 5:] = PAD, PAD
    words = SimpleNamespace(tokenize=lambda text: [one for one in text.split() if one != "0"])
    library = scorer.RougeScorer(["rouge1", "rouge2"], tokenizer=words)
    for length in (1, 2):
        theirs = [
            library.score(*(" ".join(map(str, text.tolist())) for text in pair))[f"rouge{length}"].fmeasure
            for pair in zip(truth, made, strict=True)
        ]
        assert min(theirs) < 0.5 < max(theirs)
        np.testing.assert_allclose(rouge(truth, made, length), theirs)


def test_rouge_of_short_and_empty_texts() -> None:
    truth = torch.tensor([[5, 0], [5, 0], [0, 0], [0, 0], [5, 6]])
    made = torch.tensor([[5, 0], [6, 0], [0, 0], [5, 0], [0, 0]])
    for length in (1, 2):
        assert rouge(truth, made, length).tolist() == [1, 0, 1, 0, 0]


def test_a_pair_counts_once_and_places_apart() -> None:
    texts = torch.tensor([[[5, 6, 7, PAD], [5, 7, 6, PAD]], [[5, 5, 5, 5], [5, PAD, PAD, PAD]]])
    told = crowding(images_of(texts), np.array([5.0, 5.0]))
    assert told["pairs"].tolist() == [5, 4]
    assert told["crowded"].tolist() == [1, 0]
