import re
from collections.abc import Callable

import numpy as np
import pytest

from harness.results import Control, Lineup, Rate
from harness.scoring import judge, negative_control_failed, rate_of
from harness.scoring.success import upper_bound, upper_mean
from harness.scoring.verdict import of_examples


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
        ((0, SHARP), rate(0, 59), 0.5, HELD, "resilient", "at most 5%"),
        ((0, SHARP), rate(0, 65), 0.5, HELD, "resilient", "at most 4.6%"),  # of 4.504%
        ((1, SHARP), rate(1, 72), 0.5, HELD, "inconclusive", "as high as 6.5%"),  # of 6.42%
        ((0, SHARP), rate(0, 58), 0.5, HELD, "inconclusive", "58 victims are too few .* below 5% \\(needs 59\\)"),
        ((1, SHARP), rate(1, 64), 0.5, HELD, "inconclusive", "1 of 64 victims were .* as high as 7.2%"),
        ((1, SHARP), rate(1, 93), 0.5, HELD, "resilient", "at most 5%"),
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


# How a client's examples share their fate: shares of each client's examples that come back, by the mean share.
LAWS: dict[str, Callable[[np.random.Generator, int, float], np.ndarray]] = {
    "all or none of a client's": lambda random, clients, mean: (random.random(clients) < mean) * 1.0,
    "alike within clients": lambda random, clients, mean: random.beta(mean / 4, (1 - mean) / 4, clients),
    "on their own": lambda random, clients, mean: random.binomial(500, mean, clients) / 500,
}


@pytest.mark.parametrize("clients", [5, pytest.param(20, marks=pytest.mark.slow), 59])
@pytest.mark.parametrize("mean", [0.05, 0.3])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_bound_over_clients_covers_however_alike_their_examples_are(
    law: Callable[[np.random.Generator, int, float], np.ndarray], mean: float, clients: int
) -> None:
    """1,000 federations of 500 examples a client: with 95%, three standard errors of chance are two per cent."""
    random = np.random.default_rng([clients, int(100 * mean)])
    assert np.mean([upper_mean(law(random, clients, mean)) >= mean for _ in range(1000)]) >= 0.93


def test_examples_that_share_a_fate_are_no_independent_draws() -> None:
    """The bound over 2,500 examples, were each a draw, hardly ever covers 2% that lie at single clients."""
    random = np.random.default_rng(0)
    back = (random.random((1000, 5)) < 0.02).sum(1) * 500
    assert np.mean([upper_bound(int(one), 2500) >= 0.02 for one in back]) < 0.2


@pytest.mark.parametrize(
    ("back", "touched", "most", "needed", "said"),
    [
        ([0] * 5, 0, 1 - 0.05 ** (1 / 5), 59, "cannot be said with 5 clients: at least 59 such clients are needed"),
        ([0] * 59, 0, 1 - 0.05 ** (1 / 59), 59, "of another client at most 5% do, in the mean"),
        ([1] * 5, 5, 0.4584, 71, "5 of the 2500 distinct examples of 5 clients came back"),
        ([500], 1, 1.0, None, "so much came back that no number of such clients can show"),
    ],
)
def test_what_examples_of_few_clients_say(
    back: list[int], touched: int, most: float, needed: int | None, said: str
) -> None:
    found = of_examples("cpl", [np.arange(500) < count for count in back])
    assert (found.touched, found.needed) == (touched, needed) and said in found.said
    assert found.most == pytest.approx(most, abs=2e-3) and found.examples == 500 * len(back)
