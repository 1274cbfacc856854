"""The noise a defense declares at a tap is the noise that is measured there."""

import pytest

from harness.defenses import DEFENSES
from harness.errors import UsageError
from harness.extensions.building import build
from harness.federation.context import Cohort, RoundContext
from harness.federation.known_noise import noise_at
from harness.federation.taps import Tap
from harness.observation import Noise
from harness.vectors.layout import Layout

CONTEXT = RoundContext(0, 0, 0.05, Cohort(batch_size=4), Layout(("w",), ((3,),)), ((0, 0),))

CASES = {
    "fed_cdp, sum": ("fed_cdp", {"sigma": 6.0, "clip": 2.0}, "T2.step", 1, Noise("gaussian", 3.0)),
    "fed_cdp, sum, update of four steps": ("fed_cdp", {"sigma": 6.0, "clip": 2.0}, "T1.out", 4, Noise("gaussian", 1.5)),
    "noise on the update": ("noise", {"amount": 0.1}, "T1.out", 2, Noise("gaussian", 1.0)),
    "noise on the update, before it": ("noise", {"amount": 0.1}, "T2.step", 1, None),
    "two noises": (
        "fed_cdp+noise", {"fed_cdp.sigma": 6.0, "fed_cdp.clip": 2.0, "noise.amount": 0.2}, "T1.out", 1,
        Noise("gaussian", 5.0),
    ),
    "clipped afterwards": ("fed_cdp+fed_sdp", {"fed_sdp.noise_at": "client"}, "T1.out", 1, Noise("unknown", None)),
    "pruned afterwards": ("noise+pruning", {"noise.applies_to": "gradient"}, "T1.out", 1, Noise("unknown", None)),
}  # fmt: skip


@pytest.mark.parametrize(("defense", "args", "tap", "steps", "expected"), CASES.values(), ids=CASES)
def test_declared(defense: str, args: dict[str, object], tap: str, steps: int, expected: Noise | None) -> None:
    found = noise_at(build(DEFENSES, defense, args), Tap(tap), CONTEXT, steps)
    assert (found is None) == (expected is None)
    if found and expected:
        assert found.law == expected.law and found.deviation == pytest.approx(expected.deviation)


def test_looks_are_averaged() -> None:
    defense = build(DEFENSES, "noise", {"applies_to": "gradient", "amount": 0.3, "distribution": "laplace"})
    assert noise_at(defense, Tap.STEP, CONTEXT, looks=9) == Noise("unknown", pytest.approx(0.1))


def test_a_mistyped_law_is_told() -> None:
    with pytest.raises(UsageError, match="law 'laplacian' is not known; declare one of gaussian, laplace, "):
        Noise("laplacian", 0.1)  # pyright: ignore[reportArgumentType]
