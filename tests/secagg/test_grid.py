"""Rotation, rounding, scale and ring: each keeps what it should keep."""

import numpy as np
import pytest
from scipy import linalg

from harness.base.errors import UsageError
from harness.secagg import (
    FixedPoint,
    SkellamGrid,
    clip_rows,
    from_ring,
    grid_scale,
    inflated_norm,
    l1_norm,
    local_noise,
    numbers,
    random_signs,
    refuse_overflow,
    rotate,
    stochastic_round,
    to_ring,
    unrotate,
)
from harness.secagg.integers import hadamard


def unit_rows(count: int, dimension: int) -> np.ndarray:
    rows = numbers("unit", count, dimension).standard_normal((count, dimension))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_hadamard_is_scipys() -> None:
    rows = unit_rows(3, 64)
    assert np.allclose(hadamard(rows), rows @ linalg.hadamard(64) / 8, atol=1e-14)


@pytest.mark.parametrize("dimension", [1, 2, 5, 64, 1000])
def test_rotation_keeps_norms_and_comes_back(dimension: int) -> None:
    rows, signs = unit_rows(4, dimension), random_signs(dimension, 0)
    turned = rotate(rows, signs)
    assert np.allclose(np.linalg.norm(turned, axis=1), 1) and turned.shape[1] >= dimension
    assert np.allclose(unrotate(turned, signs, dimension), rows, atol=1e-13)


def test_rotation_spreads_one_large_coordinate() -> None:
    spike = np.zeros((1, 1000))
    spike[0, 17] = 1
    assert np.abs(rotate(spike, random_signs(1000, 0))).max() == pytest.approx(1 / 32)


def test_rounding_is_unbiased() -> None:
    repeats = 20_000
    row = np.array([0.0, 0.25, 0.5, -0.1, 3.9, -2.5])
    rounded = stochastic_round(np.tile(row, (repeats, 1)), 1e9, numbers("unbiased"))
    assert np.abs(rounded.mean(axis=0) - row).max() < 4 * np.sqrt(0.25 / repeats)
    assert np.abs(rounded - row).max() < 1
    # Rounding to the nearest is not.
    assert np.abs(np.rint(row) - row).max() > 4 * np.sqrt(0.25 / repeats)


def test_rounding_keeps_the_inflated_norm() -> None:
    # One half everywhere, where rounding lengthens a vector most.
    rows = np.full((5000, 36), 0.5)
    bound = inflated_norm(3.0, 36)
    free = np.linalg.norm(stochastic_round(rows, 1e9, numbers("free")), axis=1)
    kept = stochastic_round(rows, bound, numbers("kept"))
    assert 0 < (free > bound).mean() <= np.exp(-0.5)
    assert np.linalg.norm(kept, axis=1).max() <= bound
    assert np.abs(kept).sum(axis=1).max() <= l1_norm(bound, 36) * (1 + 1e-12)
    with pytest.raises(UsageError, match="cannot be rounded to norm 1"):
        stochastic_round(rows[:5], 1.0, numbers("never"))


@pytest.mark.parametrize(("norm", "dimension"), [(1e6, 256), (1.0, 4)])
def test_inflation_vanishes_on_a_fine_grid(norm: float, dimension: int) -> None:
    assert norm < inflated_norm(norm, dimension) <= norm + np.sqrt(dimension)
    if norm > 1e3:
        assert inflated_norm(norm, dimension) == pytest.approx(norm, rel=1e-5)


def test_the_scale_is_the_formula() -> None:
    # s^2 = (4^b - N k^2) / (4 k^2 (C^2 N^2 / d + N mu)), by hand for b=8, N=4, k=3, C=2, d=16, mu=0.25
    assert grid_scale(8, 16, 2.0, 4, 4 * 0.25) ** 2 == pytest.approx((65536 - 36) / (36 * (4 + 1)))
    with pytest.raises(UsageError, match="raise bits"):
        grid_scale(2, 16, 1.0, 100, 1.0)


@pytest.mark.parametrize("clients", [2, 10, 100])
@pytest.mark.parametrize("bits", [12, 20, 32])
def test_the_ring_does_not_wrap_at_three_deviations(clients: int, bits: int) -> None:
    grid = SkellamGrid(500, 1.0, 1 / np.sqrt(clients), clients, bits, random_signs(500, 1))
    rows = unit_rows(clients, 500)
    summands = np.stack([grid.encode(row[None], numbers("wrap", client)) for client, row in enumerate(rows)])
    words = to_ring(summands, bits).astype(np.uint64).sum(axis=0) & np.uint64(2**bits - 1)
    # Three deviations for vectors that all point the same way; these point anywhere, so noise alone fills the ring.
    wrapped = np.abs(summands.sum(axis=0)) >= 2 ** (bits - 1)
    assert wrapped.mean() < 1e-2
    if not wrapped.any():
        refuse_overflow(from_ring(words, bits), summands, bits)


@pytest.mark.parametrize("bits", [1, 8, 31, 32, 33, 64])
def test_the_ring_gives_signed_numbers_back(bits: int) -> None:
    half = 2 ** (bits - 1)
    values = np.array([-half, -1, 0, half - 1, -half // 2], dtype=object).astype(np.int64)
    words = to_ring(values, bits)
    assert words.dtype == (np.uint32 if bits <= 32 else np.uint64) and int(words.max()) < 2**bits
    assert np.array_equal(from_ring(words, bits), values)


@pytest.mark.parametrize("bits", [8, 32, 64])
def test_an_overflow_is_refused_and_the_edge_is_not(bits: int) -> None:
    largest = 2 ** (bits - 1) - 1
    fitting, beyond = np.array([[largest - 5], [5]]), np.array([[largest], [1]])
    for summands, wraps in ((fitting, False), (-fitting - 0, False), (beyond, True)):
        words = to_ring(summands, bits)
        total = from_ring((words.sum(axis=0, dtype=words.dtype)) & words.dtype.type(2**bits - 1), bits)
        if wraps:
            with pytest.raises(UsageError, match="overflows the ring"):
                refuse_overflow(total, summands, bits)
        else:
            refuse_overflow(total, summands, bits)
            assert total[0] == summands.sum()


def test_fixed_point_sums_are_right_to_half_a_step_each() -> None:
    rows = numbers("fixed").uniform(-3, 3, (7, 1000))
    encoding = FixedPoint.fitting(32, 3.0, 7)
    words = encoding.encode(rows).sum(axis=0, dtype=np.uint32)
    assert np.abs(encoding.decode(words) - rows.sum(axis=0)).max() <= 7 / (2 * encoding.scale)
    extreme = encoding.encode(np.full((7, 1), 3.0)).sum(axis=0, dtype=np.uint32)
    assert encoding.decode(extreme) == pytest.approx(21.0)


@pytest.mark.parametrize("value", [3.01, -4.0, float("nan"), float("inf")])
def test_fixed_point_refuses_what_lies_beyond_its_bound(value: float) -> None:
    with pytest.raises(UsageError, match="beyond its bound"):
        FixedPoint.fitting(32, 3.0, 7).encode(np.array([[value]]))


@pytest.mark.parametrize(("bits", "bound", "clients"), [(4, 1.0, 10), (32, 0.0, 2), (32, float("inf"), 2)])
def test_fixed_point_refuses_a_ring_without_room(bits: int, bound: float, clients: int) -> None:
    with pytest.raises(UsageError, match=r"raise bits|positive and finite"):
        FixedPoint.fitting(bits, bound, clients)


def test_clipping_shortens_only_long_rows() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert np.allclose(clip_rows(rows, 1.0), [[0.6, 0.8], [0.3, 0.4], [0, 0]])


def test_local_noise_adds_up_to_the_total_without_those_who_cannot_be_relied_on() -> None:
    assert local_noise(2.0, 10) * np.sqrt(10) == pytest.approx(2.0)
    assert local_noise(2.0, 10, colluders=3, dropouts=2) * np.sqrt(5) == pytest.approx(2.0)
    for colluders, dropouts in ((5, 5), (11, 0), (-1, 0)):
        with pytest.raises(UsageError, match="nobody's noise is left"):
            local_noise(2.0, 10, colluders, dropouts)
