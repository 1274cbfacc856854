"""Each mechanism's sum is right on average and as noisy as it says; known wrong scales are not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from harness.base.errors import UsageError
from harness.secagg import Gaussian, PoissonBinomial, SkellamGrid, numbers, random_signs, skellam

DIMENSION = 8192


def right_scale(values: np.ndarray, deviation: float) -> bool:
    """Whether values are noise of that standard deviation, to two percent."""
    return abs(values.mean()) < 5 * deviation / np.sqrt(values.size) and abs(values.std() / deviation - 1) < 0.02 * 2


def grid_of(bits: int = 32, noise: float = 0.5, clients: int = 10) -> SkellamGrid:
    return SkellamGrid(DIMENSION, 2.0, noise, clients, bits, random_signs(DIMENSION, 0))


@pytest.mark.parametrize("bits", [16, 20, 32, 40])
def test_skellam_noise_is_sigma_times_clip(bits: int) -> None:
    grid = grid_of(bits)
    values = grid.decode(grid.encode(np.zeros((0, DIMENSION)), numbers("empty batch", bits)))
    assert right_scale(values, grid.deviation)
    if bits >= 20:
        assert grid.deviation == pytest.approx(0.5 * 2.0, rel=0.01)


def test_the_two_known_wrong_scales_are_rejected() -> None:
    """The paper's code: each Poisson's rate is the whole variance; and the scale enters to the fourth power."""
    grid = grid_of(bits=20)
    wrong = [2 * grid.variance, grid.scale**2 * grid.variance, grid.variance / grid.scale**2]
    for variance in wrong:
        noise = skellam(variance, (DIMENSION,), numbers("wrong scale"))
        assert not right_scale(grid.decode(noise), grid.deviation)


def test_a_skellam_sum_is_unbiased_and_closed_under_addition() -> None:
    grid = grid_of(noise=0.02)
    rows = numbers("rows").standard_normal((10, DIMENSION))
    rows *= 2.0 / np.linalg.norm(rows, axis=1, keepdims=True)
    total = sum(grid.encode(row[None], numbers("client", client)) for client, row in enumerate(rows))
    error = grid.decode(total) - rows.sum(axis=0)
    assert right_scale(error, np.sqrt(10) * grid.deviation)


def test_a_batch_is_the_sum_of_its_clipped_rows() -> None:
    grid = grid_of(noise=0.0)
    rows = numbers("rows").standard_normal((3, DIMENSION))
    clipped = rows * 2.0 / np.linalg.norm(rows, axis=1, keepdims=True)
    decoded = grid.decode(grid.encode(rows, numbers("batch")))
    assert np.abs(decoded - clipped.sum(axis=0)).max() < 1e-4


def test_sensitivities_are_those_of_the_grid() -> None:
    fine, coarse = grid_of(32), grid_of(8)
    assert fine.l2_sensitivity / fine.scale == pytest.approx(2.0, rel=1e-3)
    assert coarse.l2_sensitivity / coarse.scale > 2.0 * 1.1
    assert fine.l1_sensitivity == pytest.approx(np.sqrt(DIMENSION) * fine.l2_sensitivity)
    assert coarse.variance == pytest.approx((0.5 * coarse.l2_sensitivity) ** 2)


def test_gaussian_noise_is_sigma_times_clip() -> None:
    mechanism = Gaussian(DIMENSION, 2.0, 0.5)
    assert right_scale(mechanism.encode(np.zeros((0, DIMENSION)), numbers("gaussian")), 1.0)
    assert mechanism.deviation == 1.0


@pytest.mark.parametrize(("trials", "theta"), [
    (16, 0.1), pytest.param(64, 0.25, marks=pytest.mark.slow), (1, 0.25),
])  # fmt: skip
def test_poisson_binomial_is_unbiased_with_the_variance_of_its_tosses(trials: int, theta: float) -> None:
    mechanism = PoissonBinomial(4, 1.0, trials, theta)
    row, repeats = np.array([0.0, 0.3, -0.6, 0.7]), 20_000
    stream = numbers("tosses", trials)
    values = np.stack([mechanism.decode(mechanism.encode(row[None], stream)) for _ in range(repeats)])
    variance = (0.25 - theta**2 * row**2) / (trials * theta**2)
    assert (np.abs(values.mean(axis=0) - row) < 5 * np.sqrt(variance / repeats)).all()
    assert np.allclose(values.var(axis=0), variance, rtol=0.06)
    # Decoding with another theta, or half the tosses, is off.
    other = PoissonBinomial(4, 1.0, trials, theta / 2)
    wrong = other.decode(values * 2 * trials * theta)
    assert (np.abs(wrong.mean(axis=0) - row)[1:] > 5 * np.sqrt(variance[1:] / repeats)).all()


def test_absent_vectors_toss_fair_coins() -> None:
    mechanism = PoissonBinomial(DIMENSION, 1.0, 16, 0.25, random_signs(DIMENSION, 0), slots=4)
    counts = mechanism.encode(np.zeros((0, DIMENSION)), numbers("absent"))
    heads = (counts + 64) // 2
    assert heads.min() >= 0 and heads.max() <= 64
    assert stats.kstest(heads + numbers("jitter").random(heads.size) - 0.5, _jittered_binomial).pvalue > 1e-4
    assert right_scale(mechanism.decode(counts), mechanism.deviation)


def _jittered_binomial(values: np.ndarray) -> np.ndarray:
    below = np.floor(values + 0.5)
    return stats.binom.cdf(below - 1, 64, 0.5) + (values + 0.5 - below) * stats.binom.pmf(below, 64, 0.5)


def test_cutting_rotated_coordinates_costs_little() -> None:
    rows = np.zeros((1, DIMENSION))
    rows[0, :3] = 1 / np.sqrt(3)
    turned = PoissonBinomial(DIMENSION, 1.0, signs=random_signs(DIMENSION, 0))
    tight = PoissonBinomial(DIMENSION, 1.0, signs=random_signs(DIMENSION, 0), spread=0.5)
    assert turned.residual(rows) < 0.1 < tight.residual(rows)


def test_without_tosses_it_is_the_mean_of_what_is_tossed() -> None:
    """Cut just as that is: or what the cut takes away would look like noise."""
    row, repeats = numbers("row").normal(size=(1, DIMENSION)), 400
    tossed = PoissonBinomial(DIMENSION, 1.0, 64, 0.25, random_signs(DIMENSION, 0), spread=1.0)
    means = replace(tossed, trials=2**20, tossed=False)
    stream = numbers("tosses")
    drawn = np.mean([tossed.decode(tossed.encode(row, stream)) for _ in range(repeats)], axis=0)
    error = tossed.deviation / repeats**0.5
    quiet = means.decode(means.encode(row, stream))
    assert means.deviation == means.levels[1] == 0.0 and tossed.residual(row) > 0.2
    assert np.abs(drawn - quiet).max() < 5.5 * error
    assert np.abs(drawn - row[0] / np.linalg.norm(row)).max() > 8 * error


@pytest.mark.parametrize("settings", [{"theta": 0.3}, {"theta": 0.0}, {"trials": 0}, {"slots": 0}])
def test_impossible_tosses_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="Poisson-binomial takes"):
        PoissonBinomial(4, 1.0, **settings)


def test_a_ring_too_small_for_the_tosses_is_refused() -> None:
    mechanism = PoissonBinomial(4, 1.0, trials=64)
    mechanism.require_ring(11, 15)
    with pytest.raises(UsageError, match="raise bits"):
        mechanism.require_ring(11, 16)
