"""The lineup test on real images (scikit-learn's 8x8 digits): calibration, power, and agreement with its definition."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import binom, rankdata
from sklearn.datasets import load_digits

from harness.results import Lineup
from harness.scoring import Ranking, lineup, lineup_test, negative_control_failed, swap_control
from harness.scoring.lineup import lineup_ranks
from harness.scoring.lineup_pool import ClassPool

_digits = load_digits()
IMAGES = torch.tensor(_digits.images / 16.0, dtype=torch.float32)[:, None]
LABELS = torch.tensor(_digits.target, dtype=torch.int64)
CLASS_MEANS = torch.stack([IMAGES[label == LABELS].mean(0) for label in range(10)])
LEVEL, REPETITIONS = 0.01, 60
MOST_FALSE_ALARMS = int(binom.ppf(0.999, REPETITIONS, LEVEL))

Attack = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def draw_victims(random: torch.Generator, victims: int, batch: int) -> torch.Tensor:
    return torch.randperm(len(IMAGES), generator=random)[: victims * batch].view(victims, batch)


def class_mean(indices: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return CLASS_MEANS[LABELS[indices]]


def noise(indices: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return torch.randn(*indices.shape, *IMAGES.shape[1:], generator=random) + 0.5


def other_image_of_the_class(indices: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """The best-informed attack on labels alone: real images of the right class, the truth itself not excluded."""
    chosen = [np.flatnonzero(label == LABELS) for label in LABELS[indices].flatten()]
    picks = [rows[torch.randint(len(rows), (), generator=random)] for rows in chosen]
    return IMAGES[torch.tensor(picks)].view(*indices.shape, *IMAGES.shape[1:])


def results(attack: Attack, victims: int, batch: int, repetitions: int = REPETITIONS) -> list[Ranking]:
    found = []
    for seed in range(repetitions):
        random = torch.Generator().manual_seed(seed)
        indices = draw_victims(random, victims, batch)
        found.append(lineup_test(attack(indices, random), indices, IMAGES, LABELS, seed, permutations=299))
    return found


@pytest.mark.parametrize(("attack", "victims", "batch"), [
    pytest.param(class_mean, 32, 1, marks=pytest.mark.slow),
    (other_image_of_the_class, 12, 4),
    pytest.param(class_mean, 12, 4, marks=pytest.mark.slow),
    pytest.param(other_image_of_the_class, 32, 1, marks=pytest.mark.slow),
    pytest.param(noise, 32, 1, marks=pytest.mark.slow),
    pytest.param(noise, 12, 4, marks=pytest.mark.slow),
])  # fmt: skip
def test_knowing_only_the_labels_is_no_leak(attack: Attack, victims: int, batch: int) -> None:
    found = results(attack, victims, batch)
    p_values = np.array([result.lineup.p_value for result in found])
    assert (p_values <= LEVEL).sum() <= MOST_FALSE_ALARMS
    # Not for lack of sharpness: a test of no power at all would never come near the level.
    assert 0.05 <= (p_values <= 0.3).mean() <= 0.45
    assert np.mean([result.lineup.mean_rank for result in found]) == pytest.approx(0.5, abs=0.02)


def nearest_among_victims_p_value(guesses: torch.Tensor, indices: torch.Tensor, seed: int) -> float:
    """The plain test that peers use: is a guess nearer to its victim's truth than to other victims' truths?"""
    distances = torch.cdist(guesses.flatten(1), IMAGES[indices[:, 0]].flatten(1)).numpy()
    nearest = distances == distances.min(axis=1, keepdims=True)
    random = np.random.default_rng(seed)
    null = np.array([nearest[np.arange(len(nearest)), random.permutation(len(nearest))].sum() for _ in range(499)])
    return float((1 + (null >= nearest.trace()).sum()) / 500)


def test_the_plain_test_would_flag_class_means() -> None:
    """Shows that the calibration above is not empty: the class mean does fool a test with the wrong null."""
    flagged = 0
    for seed in range(20):
        indices = draw_victims(torch.Generator().manual_seed(seed), 32, 1)
        flagged += nearest_among_victims_p_value(CLASS_MEANS[LABELS[indices[:, 0]]], indices, seed) <= LEVEL
    assert flagged >= 15


@pytest.mark.parametrize(("victims", "batch"), [(64, 1), (24, 4)])
def test_a_blend_with_a_tenth_of_the_truth_is_found(victims: int, batch: int) -> None:
    def blend(indices: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        return 0.1 * IMAGES[indices] + 0.9 * CLASS_MEANS[LABELS[indices]]

    found = results(blend, victims, batch, repetitions=10)
    assert sum(result.lineup.p_value <= LEVEL for result in found) >= 9
    assert all(result.lineup.mean_rank < 0.5 for result in found)


def test_a_few_perfect_reconstructions_among_failures_are_found_by_the_hits() -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 64, 1)
    guesses = CLASS_MEANS[LABELS[indices]]
    guesses[:6] = IMAGES[indices[:6]]
    result = lineup_test(guesses, indices, IMAGES, LABELS, seed=0, permutations=1_999)
    assert result.first[:6].all() and result.lineup.p_value == pytest.approx(2 / 2_000)


def accurate(truth: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """A success rule as loose on digits as the strict one is on faces: 1 in 4 images is that near to its class mean."""
    return (truth - made).square().flatten(-3).mean(-1).sqrt() <= 0.22


@pytest.mark.parametrize(("victims", "repetitions"), [(64, 40), pytest.param(800, 12, marks=pytest.mark.slow)])
def test_what_sees_no_gradient_has_no_significant_number_of_accurate_images(victims: int, repetitions: int) -> None:
    """The mean of a class is accurate for some of its images, and nearer to two or more of them than to any decoy."""
    found, p_values = [], []
    for seed in range(repetitions):
        indices = draw_victims(torch.Generator().manual_seed(seed), victims, 1)
        guesses = CLASS_MEANS[LABELS[indices]]
        result = lineup_test(guesses, indices, IMAGES, LABELS, seed, permutations=999, strict=accurate)
        found.append((result.first & accurate(IMAGES[indices], guesses).numpy()).sum())
        p_values.append(result.lineup.confirmed_p_value)
    assert max(found) >= 2  # which used to say that the images leak
    assert (np.array(p_values) <= LEVEL).sum() <= int(binom.ppf(0.999, repetitions, LEVEL))


def test_two_images_that_came_back_among_failures_are_significant() -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 64, 1)
    guesses = 0.5 * torch.ones(64, 1, 1, 8, 8)
    assert lineup_test(guesses, indices, IMAGES, LABELS, seed=0).lineup.confirmed_p_value == 1
    guesses[:1] = IMAGES[indices[:1]]
    assert lineup_test(guesses, indices, IMAGES, LABELS, seed=0).lineup.confirmed_p_value > 0.001
    guesses[:2] = IMAGES[indices[:2]]
    assert lineup_test(guesses, indices, IMAGES, LABELS, seed=0).lineup.confirmed_p_value < 0.001


def test_truths_that_are_farther_than_chance_are_no_leak() -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 64, 1)
    result = lineup_test(1.0 - IMAGES[indices], indices, IMAGES, LABELS, seed=0, permutations=199)
    assert result.lineup.mean_rank > 0.95 and result.lineup.p_value == 1.0


def test_ranks_follow_the_definition() -> None:
    """Ranks, sizes and hits from plain loops over every unused image of the class (fewer than max_decoys)."""
    random = torch.Generator().manual_seed(3)
    indices = draw_victims(random, 10, 3)
    guesses = 0.3 * IMAGES[indices] + 0.7 * torch.randn(10, 3, 1, 8, 8, generator=random)
    result = lineup_test(guesses, indices, IMAGES, LABELS, seed=0, permutations=9)
    unused = set(range(len(IMAGES))) - set(indices.flatten().tolist())
    for victim in range(10):
        clamped = guesses[victim].clamp(0, 1)

        def distance(index: int, clamped: torch.Tensor = clamped) -> float:
            return min((guess - IMAGES[index]).double().square().mean().sqrt().item() for guess in clamped)

        for slot, truth in enumerate(indices[victim].tolist()):
            decoys = [index for index in unused if LABELS[index] == LABELS[truth]]
            own, others = distance(truth), np.array([distance(index) for index in decoys])
            rank = 1 + (others < own).sum() + 0.5 * (others == own).sum()
            assert result.ranks[victim, slot] == rank
            assert result.sizes[victim, slot] == len(decoys) + 1
            assert result.first[victim, slot] == (rank == 1)
    relative = (result.ranks - 1) / (result.sizes - 1)
    assert result.lineup.mean_rank == pytest.approx(relative.mean())
    assert result.lineup.rate == pytest.approx(result.first.mean())


@pytest.mark.parametrize("permutations", [99, 2_500])
def test_re_assignments_that_are_kept_are_those_that_are_not(
    permutations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 24, 1)
    guesses = 0.3 * IMAGES[indices] + 0.4

    def run() -> Ranking:
        return lineup_test(guesses, indices, IMAGES, LABELS, 0, permutations)

    kept, again = run(), run()
    monkeypatch.setattr(lineup, "_KEPT", 0)
    assert kept.lineup == again.lineup == run().lineup and 0 < kept.lineup.mean_rank < 0.5


def test_reassigned_ranks_count_only_items_not_chosen() -> None:
    random = np.random.default_rng(0)
    distances = random.integers(1, 6, size=(3, 9))  # few values: many ties
    slots, items = np.array([[0, 0], [1, 0], [2, 0]]), np.array([0, 1, 3])
    doubled_ranks = (2 * rankdata(distances, axis=1)).astype(np.int32)
    pool = ClassPool(
        label=0, images=np.arange(9), truths=4, slots=slots, items=items, ranks=doubled_ranks,
        strict=doubled_ranks < 6, closeness=np.ones((3, 4)),
    )  # fmt: skip
    chosen = random.permuted(np.tile(np.arange(9), (50, 1)), axis=1)[:, :4]
    computed = lineup_ranks(pool, chosen)
    for row, taken in enumerate(chosen):
        rest = np.setdiff1d(np.arange(9), taken)
        for slot, item in enumerate(items):
            own, others = distances[slot, taken[item]], distances[slot, rest]
            assert computed[row, slot] == 1 + (others < own).sum() + 0.5 * (others == own).sum()


def test_ties_are_not_hits() -> None:
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    images[1] = images[0]
    result = lineup_test(images[:1, None], torch.tensor([[0]]), images, torch.zeros(6, dtype=torch.int64), seed=0)
    assert result.ranks.tolist() == [[1.5]] and not result.first.any() and result.lineup.rate == 0.0


def test_who_always_makes_the_most_usual_image_knows_nothing() -> None:
    """Were decoys that equal a truth left out, its p-value would be the smallest."""
    random = torch.Generator().manual_seed(0)
    images = torch.rand(400, 1, 2, 4, generator=random)
    images[torch.rand(400, generator=random) < 0.3] = images[0].clone()
    indices, labels = torch.randperm(400, generator=random)[:64, None], torch.zeros(400).long()
    assert lineup_test(images[:1].repeat(64, 1, 1, 1)[:, None], indices, images, labels, seed=0).lineup.p_value > 0.1


def test_an_image_of_several_victims_that_a_decoy_equals_is_not_confirmed() -> None:
    """Whoever makes the most usual row of a table makes that of many."""
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    guesses, indices, labels = images[:1].repeat(3, 1, 1, 1, 1), torch.zeros(3, 1).long(), torch.zeros(6).long()
    assert lineup_test(guesses, indices, images, labels, seed=0).lineup.confirmed_p_value == 0.0
    images[1] = images[0]
    assert lineup_test(guesses, indices, images, labels, seed=0).lineup.confirmed_p_value >= 1 / 6


def test_without_decoys_nothing_is_claimed() -> None:
    images = torch.rand(3, 1, 4, 4)
    labels = torch.tensor([0, 0, 1])
    indices = torch.tensor([[0], [1]])
    result = lineup_test(images[indices], indices, images, labels, seed=0)
    assert result.sizes.tolist() == [[1], [1]] and not result.first.any()
    assert result.lineup == Lineup(reason="no victim has unused examples of its class as decoys")


def test_slots_without_decoys_are_left_out() -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 20, 1)
    images, labels = torch.cat([IMAGES, IMAGES[:1]]), torch.cat([LABELS, torch.tensor([10])])
    with_lone = torch.cat([indices, torch.tensor([[len(IMAGES)]])])
    guesses = 0.5 * images[with_lone] + 0.2
    plain = lineup_test(guesses[:-1], indices, images, labels, seed=0, permutations=99)
    extended = lineup_test(guesses, with_lone, images, labels, seed=0, permutations=99)
    assert extended.lineup == plain.lineup
    assert extended.sizes[-1] == 1


def test_decoys_are_limited_and_results_repeat() -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 16, 1)
    guesses = 0.1 * IMAGES[indices] + 0.4

    def run(seed: int) -> Ranking:
        return lineup_test(guesses, indices, IMAGES, LABELS, seed, permutations=99, max_decoys=20)

    assert (run(0).sizes == 21).all()
    np.testing.assert_array_equal(run(0).ranks, run(0).ranks)
    assert run(0).lineup == run(0).lineup
    assert (run(0).ranks != run(1).ranks).any()


def test_one_dummy_for_a_batch_and_images_used_by_two_victims() -> None:
    indices = torch.tensor([[0, 1, 2], [0, 3, 4]])
    dummy = IMAGES[indices].mean(1, keepdim=True)
    result = lineup_test(dummy, indices, IMAGES, LABELS, seed=0, permutations=99)
    assert result.ranks.shape == (2, 3) and 0 < result.lineup.p_value <= 1


def test_smallest_p_value() -> None:
    indices = draw_victims(torch.Generator().manual_seed(0), 16, 1)
    assert lineup_test(IMAGES[indices], indices, IMAGES, LABELS, 0, permutations=499).lineup.p_value == 2 / 500


def test_diverged_reconstructions_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        lineup_test(torch.full((1, 1, 1, 8, 8), torch.nan), torch.tensor([[0]]), IMAGES, LABELS, seed=0)


@pytest.mark.parametrize(("victims", "batch"), [pytest.param(64, 1, marks=pytest.mark.slow), (16, 4)])
def test_the_swap_control_holds_for_perfect_reconstructions(victims: int, batch: int) -> None:
    p_values = []
    for seed in range(40):
        indices = draw_victims(torch.Generator().manual_seed(seed), victims, batch)
        result = swap_control(IMAGES[indices], indices, IMAGES, LABELS, seed, permutations=499)
        assert not result.first[result.sizes == 1].any()
        p_values.append(result.lineup.p_value)
    assert (np.array(p_values) <= LEVEL).sum() <= int(binom.ppf(0.999, 40, LEVEL))


def test_the_swap_control_catches_reconstructions_that_belong_to_other_victims() -> None:
    """Two victims of a class, each given the other's image: the fault the control is there to find."""
    indices = torch.stack([torch.as_tensor(np.flatnonzero(label == LABELS)[:2]) for label in range(10)])
    crossed = indices.flip(1).reshape(-1, 1)
    result = swap_control(IMAGES[crossed], indices.reshape(-1, 1), IMAGES, LABELS, seed=0, permutations=29_999)
    assert result.lineup.rate == 1.0 and negative_control_failed(result.lineup.p_value)


def test_the_swap_control_never_uses_an_image_of_the_victim_itself() -> None:
    zeros = np.flatnonzero(LABELS == 0)
    shared = torch.tensor([[zeros[0], zeros[1]], [zeros[0], zeros[2]], [zeros[3], zeros[1]]])
    result = swap_control(IMAGES[shared], shared, IMAGES, LABELS, seed=0, permutations=99)
    assert result.sizes.min() > 1 and not result.first.any()
    lone = torch.tensor([[zeros[0], zeros[1]]])
    assert swap_control(IMAGES[lone], lone, IMAGES, LABELS, seed=0) is None
