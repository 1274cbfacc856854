"""Distances between gradients, against their definitions written out in loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.attacks import objectives
from harness.attacks.objectives import (
    RAW,
    SCALE_FREE,
    cosine,
    gaussian_distance,
    l2,
    l2_scale_free,
    observed_only,
    row_lengths,
    total_variation,
)  # fmt: skip
from harness.base.vectors import LONG, group_products, group_sums, inner_products

GROUPS = (3, 1, 5)


def gradients(rows: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, rows, sum(GROUPS), generator=random, dtype=torch.float64)
    return draw[0], draw[1]


def pieces(vector: Tensor, groups: tuple[int, ...]) -> list[list[float]]:
    values = vector.tolist()
    ends = [sum(groups[: number + 1]) for number in range(len(groups))]
    return [values[end - size : end] for end, size in zip(ends, groups, strict=True)]


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def l2_by_hand(candidate: Tensor, target: Tensor) -> float:
    return sum((a - g) ** 2 for a, g in zip(candidate.tolist(), target.tolist(), strict=True))


def scale_free_by_hand(candidate: Tensor, target: Tensor, groups: tuple[int, ...]) -> float:
    total = 0.0
    for a, g in zip(pieces(candidate, groups), pieces(target, groups), strict=True):
        scale = max(0.0, dot(a, g) / dot(a, a))
        total += sum((scale * x - y) ** 2 for x, y in zip(a, g, strict=True))
    return total


def cosine_by_hand(candidate: Tensor, target: Tensor, groups: tuple[int, ...]) -> float:
    pairs = list(zip(pieces(candidate, groups), pieces(target, groups), strict=True))
    return sum(1 - dot(a, g) / math.sqrt(dot(a, a) * dot(g, g)) for a, g in pairs) / len(pairs)


def test_distances_follow_their_definitions() -> None:
    candidate, target = gradients()
    for row in range(len(candidate)):
        a, g = candidate[row], target[row]
        assert float(l2(candidate, target)[row]) == pytest.approx(l2_by_hand(a, g), rel=1e-12)
        for groups in (GROUPS, (sum(GROUPS),)):
            assert float(l2_scale_free(candidate, target, groups)[row]) == pytest.approx(
                scale_free_by_hand(a, g, groups)
            )
            assert float(cosine(candidate, target, groups)[row]) == pytest.approx(cosine_by_hand(a, g, groups))


@pytest.mark.parametrize("objective", [*RAW, "l2_scale_free", "cosine_scale_free"])
def test_long_gradients_are_passed_over_once_with_the_same_result(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distance = SCALE_FREE[objective.removesuffix("_scale_free")] if objective.endswith("free") else RAW[objective]
    candidate, target = gradients()
    candidate[1], candidate[2, 3:] = -target[1], 0.0  # of another sign, and with groups of no length
    target[3] = 0.0
    found = []
    for long in (2**60, 1):
        monkeypatch.setattr(objectives, "LONG", long)
        leaf = candidate.clone().requires_grad_()
        value = distance(leaf, target, GROUPS)
        (slope,) = torch.autograd.grad((value * torch.arange(1.0, 5.0, dtype=torch.float64)).sum(), leaf)
        found.append((value.detach(), slope))
    torch.testing.assert_close(*(value for value, _ in found))
    torch.testing.assert_close(*(slope.nan_to_num() for _, slope in found))


def test_inner_products_of_millions_are_exact_to_a_few_parts_in_a_million() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3_000_001, generator=random)
    truth = values.double().square().sum(1)
    assert ((inner_products(values, values).double() - truth) / truth).abs().max() < 5e-6


def test_products_of_groups_of_all_lengths() -> None:
    random = torch.Generator().manual_seed(1)
    groups = (5, 200_000, 1, 65_536, 70_001)
    left, right = torch.randn(2, 2, sum(groups), generator=random, dtype=torch.float64)
    for made, (one, other) in zip(
        group_products(left, right, groups), ((left, right), (left, left), (right, right)), strict=True
    ):
        torch.testing.assert_close(made, group_sums(one * other, groups))


def test_raw_distances_ignore_the_groups() -> None:
    candidate, target = gradients()
    assert torch.equal(RAW["l2"](candidate, target, GROUPS), l2(candidate, target))
    assert torch.equal(RAW["cosine"](candidate, target, GROUPS), cosine(candidate, target, (sum(GROUPS),)))


@pytest.mark.parametrize("objective", ["l2", "cosine"])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (0.01, 30.0, 2.0), (1e3, 1e3, 1e3)])
def test_scale_free_distance_vanishes_for_any_positive_rescaling_of_the_groups(
    objective: str, scales: tuple[float, ...]
) -> None:
    _, target = gradients()
    factors = torch.tensor(scales, dtype=torch.float64).repeat_interleave(torch.tensor(GROUPS))
    distance = SCALE_FREE[objective](target * factors, target, GROUPS)
    assert distance.abs().max() < 1e-12


@pytest.mark.parametrize("objective", ["l2", "cosine"])
def test_scale_free_distance_does_not_vanish_for_another_direction_or_sign(objective: str) -> None:
    _, target = gradients()
    one_group = SCALE_FREE[objective](target * -1.0, target, (sum(GROUPS),))
    assert torch.allclose(one_group, target.square().sum(1) if objective == "l2" else torch.full_like(one_group, 2.0))
    for group in range(len(GROUPS)):  # one wrong sign among right ones is enough
        signs = torch.ones(len(GROUPS), dtype=torch.float64)
        signs[group] = -3.0
        wrong = target * signs.repeat_interleave(torch.tensor(GROUPS))
        assert SCALE_FREE[objective](wrong, target, GROUPS).min() > 1e-3
    turned = target.clone()
    turned[:, :3] = target[:, :3].roll(1, 1)
    assert SCALE_FREE[objective](turned, target, GROUPS).min() > 1e-3
    whole = target * torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64).repeat_interleave(torch.tensor(GROUPS))
    assert SCALE_FREE[objective](whole, target, (sum(GROUPS),)).min() > 1e-3  # one scale cannot fix three


@pytest.mark.parametrize("objective", ["l2", "cosine"])
def test_the_gradient_is_that_of_the_distance_at_the_best_scale(objective: str) -> None:
    candidate, target = gradients(rows=3)
    # Every sign of the best scale occurs, so the clamp at zero is differentiated too.
    inner = torch.stack([piece.sum(1) for piece in (candidate * target).split(GROUPS, 1)])
    assert (inner < 0).any() and (inner > 0).any()
    leaf = candidate.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(SCALE_FREE[objective](leaf, target, GROUPS).sum(), leaf)
    step = 1e-6
    for row in range(3):
        for column in range(sum(GROUPS)):
            nudge = torch.zeros_like(candidate)
            nudge[row, column] = step
            up, down = (SCALE_FREE[objective](candidate + sign * nudge, target, GROUPS)[row] for sign in (1, -1))
            assert float(gradient[row, column]) == pytest.approx(float((up - down) / (2 * step)), abs=1e-7)


@pytest.mark.parametrize("objective", ["l2", "cosine"])
@pytest.mark.parametrize("vanishing", ["candidate", "target"])
def test_a_vanishing_group_gives_a_finite_distance_and_gradient(objective: str, vanishing: str) -> None:
    candidate, target = gradients()
    (candidate if vanishing == "candidate" else target)[:, :3] = 0.0
    leaf = candidate.requires_grad_(True)
    distance = SCALE_FREE[objective](leaf, target, GROUPS)
    (gradient,) = torch.autograd.grad(distance.sum(), leaf)
    assert distance.isfinite().all() and gradient.isfinite().all()


def test_total_variation_by_hand() -> None:
    image = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 0.0]])
    # Horizontal steps 1, 2, 0, 2 (mean 1.25); vertical steps 2, 1, 3 (mean 2).
    images = torch.stack([image, torch.zeros(2, 3)])[:, None, None]
    assert total_variation(images).tolist() == pytest.approx([3.25, 0.0])
    batch = torch.stack([image, torch.zeros(2, 3)])[None, :, None]
    assert total_variation(batch).tolist() == pytest.approx([1.625])


def test_a_table_row_has_no_total_variation() -> None:
    rows = torch.rand(3, 2, 1, 1, 7, requires_grad=True)
    assert torch.equal(total_variation(rows), torch.zeros(3))


# The group (1,) is left out in some rows: then it has neither scale nor direction.
OBJECTIVES = [*((RAW, name) for name in RAW), *((SCALE_FREE, name) for name in SCALE_FREE)]


@pytest.mark.parametrize(("kind", "name"), OBJECTIVES)
def test_a_mask_changes_nothing_where_nothing_is_zero(kind: dict, name: str) -> None:
    candidate, target = gradients()
    assert torch.equal(
        kind[name](observed_only(candidate, target), target, GROUPS), kind[name](candidate, target, GROUPS)
    )


@given(st.lists(st.booleans(), min_size=sum(GROUPS), max_size=sum(GROUPS)), st.integers(0, 100))
def test_a_masked_distance_is_that_of_the_observed_coordinates_alone(observed: list[bool], seed: int) -> None:
    candidate, target = gradients(rows=1, seed=seed)
    kept = torch.tensor(observed)
    target = target * kept
    masked = observed_only(candidate, target)
    sizes = tuple(int(piece.sum()) for piece in kept.split(GROUPS))
    left, right = candidate[:, kept], target[:, kept]
    assert float(l2(masked, target)) == pytest.approx(l2_by_hand(left[0], right[0]))
    present = tuple(size for size in sizes if size)
    if present:
        by_hand = scale_free_by_hand(left[0], right[0], present)
        assert float(l2_scale_free(masked, target, GROUPS)) == pytest.approx(by_hand)
        # A group of which nothing is observed is neither near nor far: its cosine counts as 0.
        directions = cosine_by_hand(left[0], right[0], present) * len(present) + sizes.count(0)
        assert float(cosine(masked, target, GROUPS)) == pytest.approx(directions / len(GROUPS))


def test_what_is_left_out_has_no_gradient() -> None:
    candidate, target = gradients()
    target[:, 2:5] = 0.0
    leaf = candidate.clone().requires_grad_(True)
    for kind, name in OBJECTIVES:
        (slope,) = torch.autograd.grad(kind[name](observed_only(leaf, target), target, GROUPS).sum(), leaf)
        assert slope.isfinite().all() and torch.equal(slope[:, 2:5], torch.zeros_like(slope[:, 2:5]))
        assert (slope[:, :2] != 0).any()


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("numbers", [5, LONG + 3])
def test_a_gaussian_distance_is_that_of_autograd(numbers: int, each: bool) -> None:
    random = torch.Generator().manual_seed(0)
    target = torch.randn(3, numbers, generator=random)
    candidates = [(target + torch.randn(3, numbers, generator=random)).requires_grad_() for _ in range(2)]
    for one in candidates:
        one.data.copy_(candidates[0].data)
        one.data[2] = target[2]  # found
    deviation = torch.rand(3, numbers if each else 1, generator=random) + 0.1
    known = torch.linalg.vector_norm((target - candidates[1]) / deviation, dim=1, dtype=torch.float64).square() / 2
    made = gaussian_distance(candidates[0], target, deviation)
    # Nats of millions are told apart by single ones.
    assert torch.allclose(made, known, rtol=1e-7, atol=0) and made[2] == 0
    weights = torch.tensor([1.0, 0.3, 2.0], dtype=torch.float64)
    (slope,), (known_slope,) = (
        torch.autograd.grad((weights * loss).sum(), one) for loss, one in zip((made, known), candidates, strict=True)
    )
    assert torch.allclose(slope, known_slope, rtol=1e-6, atol=0) and slope[0].any() and not slope[2].any()


@pytest.mark.parametrize("numbers", [5, LONG + 3])
def test_lengths_of_rows_are_summed_in_double_precision(numbers: int) -> None:
    rows = torch.randn(3, numbers, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e3], [1.0], [0.0]])
    torch.testing.assert_close(row_lengths(rows), rows.double().norm(dim=1), rtol=1e-13, atol=0)
    leaf = rows.clone().requires_grad_()
    (slope,) = torch.autograd.grad(row_lengths(leaf).sum(), leaf)
    assert slope.isfinite().all() and not slope[2].any()  # a row of zeros, too
