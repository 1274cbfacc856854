import re

import pytest

from harness.scoring import Control, Rate, judge, negative_control_failed

HELD = (Control("positive", True), Control("swap", True), Control("noise_x100", True))
DEAD_ATTACK = (Control("positive", False, "the attack does not leak even undefended"), *HELD[1:])
BAD_PIPELINE = (*HELD[:1], Control("swap", False))


def rate(successes: int, n: int) -> Rate:
    return Rate.of([True] * successes + [False] * (n - successes))


@pytest.mark.parametrize(
    ("confirmed", "victims", "p", "controls", "verdict", "reason"),
    [
        (2, rate(2, 64), 0.5, HELD, "leaks", "2 reconstructions"),
        (64, rate(64, 64), 0.0002, DEAD_ATTACK, "leaks", "64 reconstructions"),
        (2, rate(2, 64), 1.0, BAD_PIPELINE, "leaks", "2 reconstructions"),
        (0, rate(0, 64), 0.00099, HELD, "leaks", "p = 0.00099"),
        (0, rate(0, 64), 0.001, HELD, "resilient", "at most 4.6%"),
        (0, rate(0, 64), 1.0, HELD, "resilient", "no leak"),
        (0, rate(0, 59), 0.5, HELD, "resilient", "at most 5.0%"),
        (0, rate(0, 58), 0.5, HELD, "inconclusive", "58 victims are too few .* below 5% \\(needs 59\\)"),
        (1, rate(1, 64), 0.5, HELD, "inconclusive", "1 of 64 victims were .* as high as 7.2%"),
        (1, rate(1, 93), 0.5, HELD, "resilient", "at most 5.0%"),
        (0, rate(5, 64), 0.5, HELD, "inconclusive", "5 of 64"),
        (0, rate(0, 64), 0.5, DEAD_ATTACK, "inconclusive", "positive control failed: the attack does not leak"),
        (0, rate(0, 64), 0.5, BAD_PIPELINE, "inconclusive", "negative control failed: swap"),
        (0, rate(0, 64), 0.5, (), "inconclusive", "no positive control"),
        (0, rate(0, 64), 0.5, HELD[1:], "inconclusive", "no positive control"),
        (0, rate(0, 64), None, HELD, "inconclusive", "no victim has same-class decoys"),
        (0, rate(0, 0), 0.5, HELD, "inconclusive", "0 victims are too few"),
    ],
)
def test_verdicts(
    confirmed: int, victims: Rate, p: float | None, controls: tuple[Control, ...], verdict: str, reason: str
) -> None:
    judged = judge(confirmed, victims, p, controls)
    assert judged.verdict == verdict
    assert re.search(reason, judged.reason), judged.reason


def test_kinds_of_controls() -> None:
    names = ("positive", "positive_sigma0", "swap", "noise_x100")
    assert [Control(name, True).kind for name in names] == ["positive", "positive", "negative", "negative"]


def test_negative_controls_fail_only_on_overwhelming_evidence() -> None:
    assert not negative_control_failed(None)
    assert not negative_control_failed(1e-4)
    assert negative_control_failed(0.99e-4)
