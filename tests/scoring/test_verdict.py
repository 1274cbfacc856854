import re

import pytest

from harness.results import Control, Lineup, Rate
from harness.scoring import judge, negative_control_failed, rate_of


def control(name: str, held: bool = True, detail: str = "") -> Control:
    return Control(name=name, held=held, detail=detail)


HELD = tuple(map(control, ("positive", "swap", "noise_x100")))
DEAD_ATTACK = (control("positive", False, "the attack does not leak even undefended"), *HELD[1:])
BAD_PIPELINE = (*HELD[:1], control("swap", False))
SHARP, BLIND = 1e-4, 0.02  # p-values of accurate images


def rate(successes: int, n: int) -> Rate:
    return rate_of([True] * successes + [False] * (n - successes))


@pytest.mark.parametrize(
    ("confirmed", "victims", "p", "controls", "verdict", "reason"),
    [
        ((2, SHARP), rate(2, 64), 0.5, HELD, "leaks", "2 reconstructions .* \\(p = 0.0001\\)"),
        ((2, BLIND), rate(2, 64), 0.5, HELD, "inconclusive", "2 of 64 victims were"),
        ((2, BLIND), rate(2, 400), 0.5, HELD, "resilient", "at most 1.6%"),
        ((9, 0.001), rate(9, 64), 0.5, HELD, "inconclusive", "9 of 64"),
        ((2, BLIND), rate(2, 64), 0.0002, HELD, "leaks", "p = 0.0002"),
        ((64, SHARP), rate(64, 64), 0.0002, DEAD_ATTACK, "leaks", "64 reconstructions"),
        ((2, SHARP), rate(2, 64), 1.0, BAD_PIPELINE, "leaks", "2 reconstructions"),
        ((0, SHARP), rate(0, 64), 0.00099, HELD, "leaks", "p = 0.00099"),
        ((0, SHARP), rate(0, 64), 0.001, HELD, "resilient", "at most 4.6%"),
        ((0, SHARP), rate(0, 64), 1.0, HELD, "resilient", "no leak"),
        ((0, SHARP), rate(0, 59), 0.5, HELD, "resilient", "at most 5.0%"),
        ((0, SHARP), rate(0, 58), 0.5, HELD, "inconclusive", "58 victims are too few .* below 5% \\(needs 59\\)"),
        ((1, SHARP), rate(1, 64), 0.5, HELD, "inconclusive", "1 of 64 victims were .* as high as 7.2%"),
        ((1, SHARP), rate(1, 93), 0.5, HELD, "resilient", "at most 5.0%"),
        ((0, SHARP), rate(5, 64), 0.5, HELD, "inconclusive", "5 of 64"),
        (
            (0, SHARP),
            rate(0, 64),
            0.5,
            DEAD_ATTACK,
            "inconclusive",
            "positive control failed: the attack does not leak",
        ),
        ((0, SHARP), rate(0, 64), 0.5, BAD_PIPELINE, "inconclusive", "negative control failed: swap"),
        ((0, SHARP), rate(0, 64), 0.5, (), "inconclusive", "no positive control"),
        ((0, SHARP), rate(0, 64), 0.5, HELD[1:], "inconclusive", "no positive control"),
        ((0, SHARP), rate(0, 64), None, HELD, "inconclusive", "no victim has same-class decoys"),
        ((0, SHARP), rate(0, 0), 0.5, HELD, "inconclusive", "0 victims are too few"),
        ((0, SHARP), rate(0, 1), 0.5, HELD, "inconclusive", "^1 victim is too few to bound"),
    ],
)
def test_verdicts(
    confirmed: tuple[int, float],
    victims: Rate,
    p: float | None,
    controls: tuple[Control, ...],
    verdict: str,
    reason: str,
) -> None:
    judged = judge(confirmed[0], victims, Lineup(p_value=p, confirmed_p_value=confirmed[1]), controls)
    assert judged.verdict == verdict
    assert re.search(reason, judged.reason), judged.reason


def test_kinds_of_controls() -> None:
    names = ("positive", "positive_sigma0", "swap", "noise_x100")
    assert [control(name).kind for name in names] == ["positive", "positive", "negative", "negative"]


def test_negative_controls_fail_only_on_overwhelming_evidence() -> None:
    assert not negative_control_failed(None)
    assert not negative_control_failed(1e-4)
    assert negative_control_failed(0.99e-4)
