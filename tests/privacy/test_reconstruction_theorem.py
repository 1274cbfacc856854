"""Successes beyond a theorem are found, and chance that look-alikes share is not taken for them."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from harness.privacy import GaussianLimit, lineup_p_value, strict_p_value
from harness.results import Bound, Ceiling, CellResult, Rate
from harness.scoring import blind_strict
from harness.scoring.verdict import CONTRADICTION_P, fault_of

BLIND = GaussianLimit(1e-9)
PLACE: dict[str, Any] = {
    "dataset": "d", "model": "m", "defense": "fed_cdp", "attack": "identify", "tap": "T2.step", "seeds": [0],
    "victims": 5,
}  # fmt: skip


def column(*values: int) -> NDArray[Any]:
    return np.array(values)[:, None]


def same_class(first: NDArray[np.bool_], decoys: int, limit: GaussianLimit = BLIND) -> float:
    ones = np.ones(first.shape, dtype=np.int64)
    found = lineup_p_value(first, (decoys + 1) * ones, 0 * ones, limit)
    assert found is not None
    return found


def cell(p_value: float | None, theorem: str = "Gaussian noise, mu = 0.5") -> CellResult:
    measured = Rate(rate=0.9, successes=9, n=10)
    event = Ceiling(event="first in its lineup", measured=measured, kappa=0.1, ceiling=0.2, p_value=p_value)
    return CellResult(**PLACE, bound=Bound(theorem=theorem, events=[event]))


@pytest.mark.parametrize(("truths", "decoys"), [(1, 9), (5, 3), (40, 9), (64, 200)])
def test_one_guess_for_a_class_is_first_as_often_as_counting_says(truths: int, decoys: int) -> None:
    """Of truths and decoys in random order, so many truths come before any decoy."""
    exact = np.cumprod([(truths - j) / (truths + decoys - j) for j in range(truths)])
    for hits in {1, math.ceil(truths / 3), truths}:
        if exact[hits - 1] > 1e-9:
            found = same_class(column(*[1] * hits, *[0] * (truths - hits)).astype(bool), decoys)
            assert exact[hits - 1] * 0.999 <= found <= exact[hits - 1] * 1.1
    assert same_class(column(*[0] * truths).astype(bool), decoys) == pytest.approx(1.0)


def test_classes_are_independent_and_slots_without_a_lineup_do_not_count() -> None:
    first, sizes = column(1, 1, 1, 0).astype(bool), column(10, 10, 10, 1)
    alone = lineup_p_value(first, sizes, column(0, 1, 2, 3), BLIND)
    assert alone == pytest.approx(0.1**3, rel=0.02)
    assert lineup_p_value(first, sizes, column(0, 0, 0, 0), BLIND) == pytest.approx(1 / math.comb(12, 3), rel=0.05)
    assert lineup_p_value(first, np.ones_like(sizes), column(0, 1, 2, 3), BLIND) is None


def test_places_of_a_batch_cost_no_more_than_twice_their_number() -> None:
    """One place that is hit alone counts as before, times two; hits all over count together."""
    first = np.zeros((12, 8), dtype=bool)
    first[:9, 3] = True
    sizes, labels = np.full((12, 8), 10), np.tile(np.arange(12)[:, None], (1, 8))
    for limit in (BLIND, GaussianLimit(1.0)):
        alone = lineup_p_value(first[:, 3:4], sizes[:, 3:4], labels[:, 3:4], limit)
        found = lineup_p_value(first, sizes, labels, limit)
        assert alone is not None and found is not None and found <= min(1.0, 16 * alone) * (1 + 1e-9)
    strict = strict_p_value(first, np.full((12, 8), 0.1), GaussianLimit(1.0))
    ceiling = GaussianLimit(1.0).ceiling(0.1)
    assert strict == pytest.approx(16 * float(stats.binom.sf(8, 12, ceiling)))


def test_hits_all_over_a_batch_are_found_where_no_place_alone_shows_them() -> None:
    """Three of 64 victims at each of eight places: no place is remarkable, and all together are."""
    random, limit = np.random.default_rng(4), GaussianLimit(0.1)
    first = np.zeros((64, 8), dtype=bool)
    for place in range(8):
        first[random.choice(64, 3, replace=False), place] = True
    sizes, labels = np.full((64, 8), 201), random.integers(0, 10, (64, 8))
    each = [lineup_p_value(*(one[:, [place]] for one in (first, sizes, labels)), limit) for place in range(8)]
    together = lineup_p_value(first, sizes, labels, limit)
    assert min(value for value in each if value is not None) * 8 > 0.02
    assert together is not None and together < CONTRADICTION_P < 0.02


def test_a_class_s_luck_is_shared_by_all_places() -> None:
    """Where look-alikes of the one class happen to lie far out, a blind guess is first everywhere."""
    random, found = np.random.default_rng(5), []
    for _ in range(60):
        truths, decoys = random.standard_normal((32, 4)) ** 2, random.standard_normal(4) ** 2
        value = lineup_p_value(truths < decoys.min(), np.full((32, 4), 5), np.zeros((32, 4), dtype=np.int64), BLIND)
        found.append(cell(value))
    assert fault_of(found) is None


def test_more_is_less_probable_and_a_higher_limit_allows_more() -> None:
    found = [same_class(column(*[1] * hits, *[0] * (20 - hits)).astype(bool), 9) for hits in range(21)]
    assert all(later < earlier for earlier, later in pairwise(found))
    ten = column(*[1] * 10, *[0] * 10).astype(bool)
    allowed = [same_class(ten, 50, GaussianLimit(mu)) for mu in (0.1, 1.0, 3.0)]
    assert allowed[0] < 1e-4 and allowed == sorted(allowed) and allowed[-1] > 0.5


def identified(random: np.random.Generator, mu: float, victims: int, classes: int, decoys: int) -> dict[str, Any]:
    """First places of the optimal identifier, whose victims see their own image at norm ``mu`` under unit noise."""
    dimension, labels = 40, random.integers(classes, size=victims)
    means = random.standard_normal((classes, dimension))
    pools = means[:, None] + 0.3 * random.standard_normal((classes, decoys, dimension))
    truths = means[labels] + 0.3 * random.standard_normal((victims, dimension))

    def clipped(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return mu * rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    seen = clipped(truths) + random.standard_normal(truths.shape)
    own = np.linalg.norm(seen - clipped(truths), axis=1)
    others = np.linalg.norm(seen[:, None] - clipped(pools)[labels], axis=2).min(1)
    first = (own < others)[:, None]
    return {"first": first, "sizes": np.full(first.shape, decoys + 1), "labels": labels[:, None]}


def test_no_honest_gaussian_cell_of_two_hundred_contradicts_its_theorem_and_a_misstated_one_does() -> None:
    random, honest, misstated = np.random.default_rng(1), [], []
    for _ in range(200):
        mu, classes, decoys = random.uniform(0.05, 6), int(random.integers(1, 11)), int(random.integers(1, 60))
        seen = identified(random, mu, 64, classes, decoys)
        honest.append(cell(lineup_p_value(limit=GaussianLimit(mu), **seen)))
    assert fault_of(honest) is None
    for _ in range(20):
        # Without the noise that is declared, at mu = 0.5, the truth is as good as known.
        seen = identified(random, 10.0, 64, 10, 60)
        misstated.append(cell(lineup_p_value(limit=GaussianLimit(0.5), **seen)))
    assert all(fault_of([*honest, one]) for one in misstated)


def test_two_hundred_cells_of_one_guess_per_class_stay_clean_where_plain_counting_would_not() -> None:
    """A class mean is nearer to all truths than to look-alikes that happen to lie far out."""
    random, cells, plain = np.random.default_rng(2), [], []
    for _ in range(200):
        truths, decoys = random.standard_normal(64) ** 2, random.standard_normal(4) ** 2
        first = (truths < decoys.min())[:, None]
        cells.append(cell(same_class(first, 4)))
        plain.append(float(stats.binom.sf(first.sum() - 1, 64, 1 / 5)))
    assert fault_of(cells) is None
    assert min(plain) < CONTRADICTION_P / 200


@pytest.mark.parametrize(
    ("p_values", "contradicted"),
    [((None,), False), ((9e-5,), True), ((1.1e-4,), False), ((9e-5, 0.5), False), ((4e-5, 0.5, None), True)],
)
def test_one_contradiction_among_so_many_cells_makes_a_run_unusable(
    p_values: tuple[float | None, ...], contradicted: bool
) -> None:
    found = fault_of([cell(value) for value in p_values])
    assert (found is not None) == contradicted
    if found:
        assert "identify against fed_cdp at T2.step did what no attacker can: first in its lineup 9 of 10" in found
        assert "Gaussian noise, mu = 0.5 allows a share of 0.2" in found


def test_a_blind_guess_is_accurate_for_the_fullest_ball_of_the_class() -> None:
    levels = torch.tensor([0.0, 0.15, 0.19, 0.9, 0.0, 0.5])
    images = levels[:, None, None, None].expand(-1, 1, 2, 2)
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    assert blind_strict(images, labels, torch.tensor([[0, 1]])).tolist() == [[0.75, 0.5]]


def test_of_a_large_class_the_fullest_ball_is_counted_whole() -> None:
    """The fullest ball lies around one image, which a sample of the class leaves out."""
    draws = torch.rand(3001, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    images = torch.where(draws < 0.5, draws * 0.6, 0.35 + draws).clamp(0, 2)
    rows = images.flatten().double()
    fullest = ((rows[:, None] - rows).abs() <= 0.2).double().mean(1).max()
    found = blind_strict(images, torch.zeros(3001, dtype=torch.int64), torch.tensor([[0]]))
    assert found.item() == pytest.approx(float(fullest), abs=2e-3)
