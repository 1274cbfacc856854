"""Fewer bits and signs: what is left of numbers, what is kept, and what attackers are told of it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.coding import ByChance, Coding, Kind, normal_signs
from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, ErrorFeedback, GaussianNoise, KeepLargest, RoundContext, Sign
from harness.federation.knowledge import coding_at, noise_at
from harness.federation.taps import Tap

LAYOUT = Layout(("a", "b"), ((100,), (7, 9)))
ROWS = torch.randn(3, LAYOUT.total, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def context(**memory: Any) -> RoundContext:
    return RoundContext(0, 0, 0.1, Cohort(), LAYOUT, tuple((0, row) for row in range(3)), **memory)


@pytest.mark.parametrize(
    ("kind", "levels", "error"),
    [("float16", None, 5e-4), ("bfloat16", None, 4e-3), ("int8", 255, None), ("normfloat4", 16, None)],
)
def test_numbers_of_fewer_bits(kind: Kind, levels: int | None, error: float | None) -> None:
    made = Coding(kind, -0.1).of(ROWS, LAYOUT.sizes)
    assert torch.equal(Coding(kind, -0.1).of(made, LAYOUT.sizes), made) or kind in ("int8", "float16", "normfloat4")
    off = (made - ROWS).abs()
    assert error is None or bool((off <= error * ROWS.abs() + 1e-6).all())
    for part, own in zip(made.split(LAYOUT.sizes, -1), ROWS.split(LAYOUT.sizes, -1), strict=True):
        if levels:
            assert max(len(row.unique()) for row in part.split(64, -1)[0]) <= levels
            torch.testing.assert_close(part.abs().amax(-1), own.abs().amax(-1))


def test_numbers_beyond_half_precision_are_cut() -> None:
    assert Coding("float16").of(torch.tensor([1e9, -1e9]), (2,)).tolist() == [65504.0, -65504.0]


def test_signs_and_their_size() -> None:
    values = torch.tensor([[0.0, -2.0, 4.0]], dtype=torch.float64)
    assert Coding("sign").of(values, (3,)).tolist() == [[1.0, -1.0, 1.0]]
    assert Coding("mean_sign").of(values, (3,)).tolist() == [[0.0, -2.0, 2.0]]
    assert Coding("sign", -0.1).of(values, (3,)).tolist() == [[-10.0, -10.0, 10.0]]


def test_rounding_by_chance_has_no_bias_and_keeps_zeros() -> None:
    defense = build(DEFENSES, "paper:QSGD", {"levels": 4})
    rows = torch.tensor([[0.0, 0.1, 0.5, -1.0, 3.0]], dtype=torch.float64).expand(20_000, -1)
    here = RoundContext(0, 0, 0.1, Cohort(), Layout(("a",), ((5,),)), tuple((0, row) for row in range(len(rows))))
    made = defense.client_message(rows, here)
    assert sorted(made.unique().tolist()) == [-1.0, 0.0, 1.0, 3.0]
    torch.testing.assert_close(made.mean(0), rows[0], rtol=0, atol=0.02)
    assert not made[:, 0].any()
    form = coding_at(defense, Tap.SENT, here, 1)
    assert isinstance(form, ByChance) and noise_at(defense, Tap.SENT, here) is None
    # What is read bounds the numbers, and both ways of rounding them have the chance that they have.
    low, high = form.bounds(made, here.layout)
    assert bool((low <= rows).all() and (rows <= high).all()) and not bool((low == high).any())
    chances = (-form.unlikely(rows, made, here.layout.sizes)).exp()
    for place, number in enumerate(rows[0].tolist()):
        for written in made[:, place].unique():
            there = made[:, place] == written
            assert float(chances[there, place][0]) == pytest.approx(float(there.double().mean()), abs=0.02), number


@pytest.mark.parametrize("inner", [Sign("mean_sign"), KeepLargest(0.5)])
def test_what_is_lost_is_sent_later(inner: Any) -> None:
    memory: dict[str, Tensor] = {}
    feedback, sent = ErrorFeedback(inner), []
    for _ in range(3):
        sent.append(feedback.on_rows(ROWS, context(client=memory)))
    torch.testing.assert_close(torch.stack(sent).sum(0) + memory["residual"], 3 * ROWS)
    assert list(feedback.clients_remember()) == ["residual"]


def test_noise_is_not_kept_for_later() -> None:
    with pytest.raises(UsageError, match="loses nothing that could be sent later"):
        ErrorFeedback(GaussianNoise(1.0))


@pytest.mark.parametrize(
    ("name", "known", "unread"),
    [
        ("paper:signSGD", True, False), ("paper:signSGD+noise", True, False), ("pruning+paper:signSGD", True, False),
        ("paper:signSGD+pruning", False, True), ("quantization+nvflare:PercentilePrivacy", False, True),
        ("none", False, False), ("paper:QSGD", True, False), ("paper:QSGD+noise", False, True),
        ("noise+paper:QSGD", False, True), ("fed_sdp+quantization", True, False),
    ],
)  # fmt: skip
def test_attackers_are_told_of_it_or_that_nobody_has_a_model(name: str, known: bool, unread: bool) -> None:
    defense = build(DEFENSES, name, {})
    coding, noise = coding_at(defense, Tap.SENT, context(), 2), noise_at(defense, Tap.SENT, context(), 2)
    assert (coding is not None) == known and (noise is not None and noise.unread) == unread
    assert coding is None or coding.unit == pytest.approx(-0.2)
    assert coding_at(defense, Tap.STEP, context(), 1) is None


def test_signs_of_normal_numbers() -> None:
    """The best line's gain and the mean, against draws."""
    mean, variance = torch.tensor([0.0, 0.5, -2.0, 0.0]).double(), torch.tensor([1.0, 4.0, 1.0, 0.0]).double()
    size = torch.full_like(mean, 3.0)
    gain, expected, power = normal_signs(mean, variance, size, -1.0)
    draws = mean + variance.sqrt() * torch.randn(200_000, 4, generator=torch.Generator().manual_seed(1)).double()
    signs = torch.where(draws == 0, -1.0, draws.sign()) * size
    torch.testing.assert_close(signs.mean(0), expected, rtol=0, atol=0.03)
    slope = ((draws - mean) * signs).mean(0)[:3] / variance[:3]
    torch.testing.assert_close(slope, gain[:3], rtol=0, atol=0.03)
    assert bool(gain.isfinite().all()) and float(gain[3]) == 0 and power.tolist() == [9.0] * 4
    assert math.isclose(float(expected[3]), -3.0)


def test_a_smooth_form_has_a_derivative() -> None:
    values = ROWS.clone().requires_grad_()
    for kind in ("sign", "mean_sign", "int8"):
        smooth = Coding(kind).smooth(values, LAYOUT.sizes)
        (slope,) = torch.autograd.grad(smooth.sum(), values)
        assert bool(slope.isfinite().all()) and bool(slope.any())
