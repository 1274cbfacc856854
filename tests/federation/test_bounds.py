"""Between which numbers those lay that were written in a coarser form, for who knows the form."""

from typing import Any

import pytest
import torch

from harness.base.building import build
from harness.base.coding import Coding, Kind, Largest
from harness.base.vectors import Layout
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.federation.knowledge import coding_at
from harness.federation.taps import Tap

LAYOUT = Layout(("a", "b", "c"), ((5000,), (7, 9), (64,)))
ROWS = torch.randn(4, LAYOUT.total, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
KINDS: list[tuple[Kind, float]] = [
    ("float16", 7e-4), ("bfloat16", 5.5e-3), ("int8", 0.04), ("normfloat4", 0.7), ("float4", 0.9), ("blockwise8", 0.09),
    ("adaquant", 0.2),
]  # fmt: skip


def _ends() -> torch.Tensor:
    """The smallest and the largest of each tensor, and of magnitudes the largest of each 64 numbers."""
    parts = []
    for part in ROWS.split(LAYOUT.sizes, 1):
        blocks = torch.nn.functional.pad(part.abs(), (0, -part.shape[1] % 64)).unflatten(1, (-1, 64))
        largest = (blocks == blocks.amax(-1, keepdim=True)).flatten(1)[:, : part.shape[1]]
        parts.append(largest | (part == part.amin(1, keepdim=True)) | (part == part.amax(1, keepdim=True)))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("unit", [1.0, -0.05])
@pytest.mark.parametrize(("kind", "wide"), KINDS)
def test_bounds_hold_the_numbers_and_no_more_than_are_written_so(kind: Kind, wide: float, unit: float) -> None:
    coding = Coding(kind, unit)
    read = coding.of(ROWS, LAYOUT.sizes)
    found = coding.bounds(read, LAYOUT)
    assert found is not None
    low, high = found
    rounding = 1e-6 * ROWS.abs() + 1e-9
    assert bool((low <= ROWS + rounding).all()) and bool((high + rounding >= ROWS).all())
    assert bool((low <= read + rounding).all()) and bool((read <= high + rounding).all())
    assert float((high - low).median()) < wide
    # Within its bounds any number is written alike, if what steps go by is left as it is: no bounds could be closer.
    inside = low + (high - low) * torch.rand(ROWS.shape, generator=torch.Generator().manual_seed(2)).double()
    again = coding.of(torch.where(_ends(), ROWS, inside), LAYOUT.sizes)
    assert float(((again - read).abs() <= 1e-5 * read.abs() + 1e-9).double().mean()) > 0.99


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_integers_of_any_bits(bits: int) -> None:
    coding = Coding("int8", -0.1, bits)
    read = coding.of(ROWS, LAYOUT.sizes)
    for part in read[0].split(LAYOUT.sizes, -1):
        assert len(part.unique()) <= 2**bits - 1
    found = coding.bounds(read, LAYOUT)
    assert found is not None
    part = slice(0, LAYOUT.sizes[0])
    width = (found[1] - found[0])[:, part]
    step = ROWS[:, part].abs().amax(1) / (2 ** (bits - 1) - 1)
    torch.testing.assert_close(width.amax(1), step)
    # The largest number of a tensor is known to one side: nothing lies beyond it.
    assert bool((found[1][:, part].amax(1) <= ROWS[:, part].abs().amax(1) + 1e-9).all())


@pytest.mark.parametrize("unit", [1.0, -0.05])
@pytest.mark.parametrize("kind", ["sign", "mean_sign"])
def test_a_sign_is_a_half_line(kind: Kind, unit: float) -> None:
    coding = Coding(kind, unit)
    found = coding.bounds(coding.of(ROWS, LAYOUT.sizes), LAYOUT)
    assert found is not None
    assert torch.equal(found[0] == 0, ROWS > 0) and torch.equal(found[1] == 0, ROWS < 0)
    assert bool((found[1] - found[0]).isinf().all())


@pytest.mark.parametrize("kind", ["length", "adapters"])
def test_forms_that_bound_nothing_say_so(kind: Kind) -> None:
    assert Coding(kind).bounds(ROWS, LAYOUT) is None


@pytest.mark.parametrize(("grouping", "groups"), [("whole", (LAYOUT.total,)), ("layer", LAYOUT.sizes)])
def test_what_was_left_out_is_no_larger_than_the_least_that_was_sent(grouping: Any, groups: tuple[int, ...]) -> None:
    kept = torch.cat([
        part.where(part.abs() > part.abs().quantile(0.9, dim=1, keepdim=True), 0.0) for part in ROWS.split(groups, 1)
    ], 1)  # fmt: skip
    low, high = Largest(grouping=grouping).bounds(kept, LAYOUT)
    assert torch.equal(low[kept != 0], ROWS[kept != 0]) and torch.equal(high[kept != 0], ROWS[kept != 0])
    assert bool((low <= ROWS).all()) and bool((high >= ROWS).all())
    for own, most in zip(kept.split(groups, 1), high.split(groups, 1), strict=True):
        least = own.abs().where(own != 0, torch.inf).amin(1)
        assert torch.equal(most.where(own == 0, 0.0).amax(1), least)


@pytest.mark.parametrize(
    ("name", "settings", "form", "feedback"),
    [
        ("quantization", {"bits": 4}, Coding, False),
        ("paper:signSGD", {}, Coding, False),
        ("paper:signSGD", {"error_feedback": True}, Coding, True),
        ("paper:top-k", {"error_feedback": False}, Largest, False),
        ("paper:top-k", {}, Largest, True),
        ("pruning", {}, Largest, False),
        ("pruning+quantization", {}, Coding, False),
        ("pruning+noise", {}, Largest, False),
        ("none", {}, type(None), False),
    ],
)  # fmt: skip
def test_what_attackers_are_told(name: str, settings: dict[str, Any], form: type, feedback: bool) -> None:
    here = RoundContext(0, 0, 0.1, Cohort(), LAYOUT, tuple((0, row) for row in range(4)))
    coding = coding_at(build(DEFENSES, name, settings), Tap.SENT, here, 1)
    assert type(coding) is form
    assert coding is None or coding.feedback == feedback
