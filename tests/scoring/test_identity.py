"""Images told apart by an attack's own probabilities: the same test, an honest p-value, and words of its own."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.datasets import load_digits

from harness.attacks.identify import Identify
from harness.models import RowModel
from harness.observation import Noise, Observation
from harness.results import Control, Identified, Lineup
from harness.scoring import identity_test, judge_identity, lineup_test
from harness.scoring.lineup_pool import Answer, Compare, one_by_one
from harness.scoring.success import clopper_pearson
from harness.scoring.verdict import identified_of

_digits = load_digits()
IMAGES = torch.tensor(_digits.images / 16.0, dtype=torch.float32)[:, None]
LABELS = torch.tensor(_digits.target, dtype=torch.int64)
CLASS_MEANS = torch.stack([IMAGES[label == LABELS].mean(0) for label in range(10)])
HELD = (Control(name="positive", held=True), Control(name="swap", held=True))
LEVEL, VICTIMS = 0.01, 24


def read(shown: torch.Tensor, labels: torch.Tensor, deviation: float, seed: int) -> Observation:
    """The noisy gradients of softmax regression at zero weights on images (V, 1, 8, 8)."""
    model = RowModel("logistic", (1, 8, 8), 10)
    weights = torch.zeros(len(labels), model.layout.total)
    clean = model.gradient(weights, shown[:, None], labels[:, None])
    noise = deviation * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
    keys = tuple((seed, row) for row in range(len(labels)))
    return Observation(model, weights, clean + noise, 1, keys, noise=Noise("gaussian", deviation))


def by_likelihood(observation: Observation) -> Compare:
    def answer(victims: NDArray[np.int64], items: NDArray[np.int64], label: int) -> Answer:
        candidates = IMAGES[torch.from_numpy(items)].expand(len(victims), -1, 1, 8, 8)
        seen = observation.take(torch.from_numpy(victims))
        found = Identify().distances(seen, candidates, torch.full((len(victims),), label), 2_000).numpy()
        return found, np.zeros(found.shape, dtype=bool)

    return one_by_one(answer)


def drawn(seed: int) -> torch.Tensor:
    return torch.randperm(len(IMAGES), generator=torch.Generator().manual_seed(seed))[:VICTIMS, None]


def among_victims(observation: Observation, indices: torch.Tensor, seed: int) -> float:
    """A wrong p-value: is the truth more probable than the truths of others, whatever their class?"""
    truths = IMAGES[indices[:, 0]].expand(VICTIMS, -1, 1, 8, 8)
    distances = Identify().distances(observation, truths, LABELS[indices[:, 0]], 2_000).numpy()
    first = distances == distances.min(1, keepdims=True)
    random = np.random.default_rng(seed)
    null = [first[np.arange(VICTIMS), random.permutation(VICTIMS)].sum() for _ in range(299)]
    return float((1 + (np.array(null) >= first.trace()).sum()) / 300)


@pytest.mark.parametrize("runs", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_p_values_are_honest_where_nothing_but_the_label_shows(runs: int) -> None:
    """What is read is the gradient of the class's mean, or noise alone; the same rejects a wrong p-value."""
    honest, wrong = [], []
    for seed in range(runs):
        indices = drawn(seed)
        own = LABELS[indices[:, 0]]
        shown = CLASS_MEANS[own] if seed % 2 else torch.zeros(VICTIMS, 1, 8, 8)
        observation = read(shown, own, 0.05, seed)
        ranking, _ = identity_test(by_likelihood(observation), indices, LABELS, seed, 299, max_decoys=20)
        honest.append(ranking.lineup.p_value)
        if seed % 2 and seed < 24:
            wrong.append(among_victims(observation, indices, seed))
    p_values = np.array(honest)
    for level in (LEVEL, 0.05, 0.1, 0.3):
        assert (p_values <= level).sum() <= binom.ppf(0.999, runs, level)
    # Not for lack of sharpness: twice the smaller of two p-values is at most half as frequent as it may be.
    assert (p_values <= 0.3).mean() >= 0.05
    assert (np.array(wrong) <= LEVEL).mean() > 0.5


@pytest.mark.parametrize(("deviation", "identifies"), [(0.05, True), (5.0, False)])
def test_it_tells_what_the_noise_lets_through(deviation: float, identifies: bool) -> None:
    indices = drawn(0)
    own = LABELS[indices[:, 0]]
    observation = read(IMAGES[indices[:, 0]], own, deviation, 0)
    ranking, swapped = identity_test(by_likelihood(observation), indices, LABELS, 0)
    assert identified_of(ranking.first, ranking.sizes, ranking.lineup).identifies is identifies
    assert swapped is not None and (swapped.lineup.p_value or 0) > 0.001


def test_ranks_are_those_of_the_lineup_of_pixels() -> None:
    """With RMSE as the distance it is the lineup test: same pools, ranks and p-value."""
    indices = drawn(3)
    guesses = 0.3 * IMAGES[indices] + 0.7 * torch.rand(VICTIMS, 1, 1, 8, 8, generator=torch.Generator().manual_seed(3))

    def answer(victims: NDArray[np.int64], items: NDArray[np.int64], label: int) -> Answer:
        made, there = guesses[torch.from_numpy(victims)].double(), IMAGES[torch.from_numpy(items)].double()
        found = (made - there[None]).square().flatten(2).mean(2).sqrt().numpy()
        return found, np.zeros(found.shape, dtype=bool)

    ranking, _ = identity_test(one_by_one(answer), indices, LABELS, 3)
    pixels = lineup_test(guesses, indices, IMAGES, LABELS, 3)
    np.testing.assert_array_equal(ranking.ranks, pixels.ranks)
    assert ranking.lineup.p_value == pixels.lineup.p_value


def found(hits: int, n: int = 64, size: int = 100, p: float = 0.4) -> Identified:
    first = np.arange(n)[:, None] < hits
    return identified_of(first, np.full((n, 1), size), Lineup(rate=hits / n, mean_rank=0.5, p_value=p))


WORDS = {
    "identifies": (found(40, p=2e-4), None, HELD, "inconclusive", "identifies: 62.5% of truths are the most probable"),
    "whatever its controls say": (found(40, p=2e-4), None, (), "inconclusive", "identifies: "),
    "not told": (found(0), None, HELD, "resilient", "not identified among look-alikes; at most 3.7% of victims"),
    "too few": (
        found(0, n=32),
        None,
        HELD,
        "inconclusive",
        "0.0% of truths are the most probable of their look-alikes",
    ),
    "among two, guesses hide much": (found(32, size=2), None, HELD, "inconclusive", "of them are too few"),
    "no positive control": (found(0), None, HELD[1:], "inconclusive", "no positive control"),
    "noise as it is not": (found(0), "twice the noise", HELD, "inconclusive", "twice the noise"),
    "no decoys": (Identified(reason="none there"), None, HELD, "inconclusive", "none there"),
}


@pytest.mark.parametrize("case", WORDS)
def test_the_words(case: str) -> None:
    identified, doubt, controls, verdict, words = WORDS[case]
    judged = judge_identity(identified, doubt, controls)
    assert judged.verdict == verdict and words in judged.reason and judged.reason != "leaks"


def test_numbers_of_the_document() -> None:
    told = found(10)
    assert (told.rate, told.n, told.chance) == (10 / 64, 64, pytest.approx(0.01))
    upper = 1 - 0.05 ** (1 / 64)  # one-sided, without any first place
    assert found(0).beyond_chance == pytest.approx((upper - 0.01) / 0.99)
    # Of twelve victims with eight images each one image has no look-alikes: the others still share their victims' fate.
    sizes = np.full((12, 8), 40)
    sizes[0, 0] = 1
    nobody = identified_of(np.zeros((12, 8), bool), sizes, Lineup(p_value=0.5))
    assert nobody.n == 95 and nobody.ci95 == pytest.approx(clopper_pearson(0, 12))
    assert nobody.beyond_chance == pytest.approx((1 - 0.05 ** (1 / 12) - 1 / 40) / (1 - 1 / 40))
    left_out = identified_of(np.array([[True], [False]]), np.array([[4], [1]]), Lineup(p_value=0.5))
    assert (left_out.n, left_out.rate, left_out.chance) == (1, 1.0, 0.25)
