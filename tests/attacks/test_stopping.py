"""Stop rules on made-up losses, against the rules in docs/attacks.md."""

import pytest
import torch

from harness.attacks.attack import Attack
from harness.attacks.engine import CAP, CONVERGED, DIVERGED, HOPELESS, StopRules

EVERY_ROW = torch.tensor([0])


def first_stop(losses: list[float], attack: Attack, stop_below: float = 0.0) -> tuple[int, int]:
    """Iteration and code of the first stop of a row with these best losses; (0, CAP) if it never stops."""
    rules = StopRules(attack, torch.tensor([stop_below]))
    for iteration, loss in enumerate(losses, start=1):
        best = torch.tensor([loss])
        code = int(rules.stopped(EVERY_ROW, best, torch.tensor([losses[0]]), best)[0])
        if code != CAP:
            return iteration, code
    return 0, CAP


@pytest.mark.parametrize(
    ("losses", "settings", "expected"),
    [
        # Less than 10% in the last 10 iterations, but not before iteration 30.
        pytest.param([0.995**i for i in range(60)], {}, (30, HOPELESS), id="slow"),
        pytest.param([0.98**i for i in range(60)], {}, (0, CAP), id="slow-but-steady"),
        pytest.param(
            [0.9**i for i in range(40)] + [0.9**39 * 0.999**i for i in range(20)], {}, (50, HOPELESS), id="late"
        ),
        pytest.param([0.995**i for i in range(60)], {"patience": 0}, (0, CAP), id="no-patience"),
        pytest.param([0.995**i for i in range(60)], {"patience": 12, "patience_window": 2}, (12, HOPELESS), id="short"),
        pytest.param([0.995**i for i in range(60)], {"patience_drop": 0.04}, (0, CAP), id="content-with-little"),
        # A row that is nearly there is slow at its end, not hopeless.
        pytest.param([1.0] + [9e-6 * 0.995**i for i in range(60)], {}, (0, CAP), id="nearly-there"),
        pytest.param([1.0] + [2e-5 * 0.995**i for i in range(60)], {}, (30, HOPELESS), id="not-nearly-there"),
        # A standstill over ten iterations ends before patience does.
        pytest.param([1.0] * 60, {}, (11, CONVERGED), id="standstill"),
        pytest.param([1.0] * 60, {"patience": 0}, (0, CAP), id="standstill-of-a-scheduled-rate"),
        pytest.param([1.0 - 1e-5 * i for i in range(29)], {}, (0, CAP), id="crawl"),
    ],
)
def test_rules_on_series(losses: list[float], settings: dict, expected: tuple[int, int]) -> None:
    assert first_stop(losses, Attack(**settings)) == expected


@pytest.mark.parametrize(("threshold", "expected"), [(0.1, (3, CONVERGED)), (0.009, (0, CAP)), (0.01, (4, CONVERGED))])
def test_small_losses_converge(threshold: float, expected: tuple[int, int]) -> None:
    assert first_stop([1.0, 0.5, 0.05, 0.01], Attack(), threshold) == expected


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (1e7, 1e7, CAP), (1e7, 9e9, CAP), (1e7, 2e10, DIVERGED), (1e-3, 0.9, CAP), (1e-3, 1.1, DIVERGED),
        (1.0, float("nan"), DIVERGED), (1.0, float("inf"), DIVERGED), (float("nan"), float("nan"), DIVERGED),
    ],
)  # fmt: skip
def test_divergence_is_relative_to_the_rows_own_first_loss(first: float, last: float, code: int) -> None:
    rules = StopRules(Attack(), torch.tensor([0.0]))
    once = torch.tensor([first])
    assert rules.stopped(EVERY_ROW, once, once, torch.tensor([last])).tolist() == [code]


def test_rows_are_judged_by_their_own_history() -> None:
    """After some rows have gone, the codes belong to the active rows in the order given."""
    rules = StopRules(Attack(patience=3, patience_window=1), torch.tensor([0.0, 0.0, 0.5]))
    first, last = torch.tensor([1.0, 8.0, 1.0]), torch.tensor([0.98, 2.0, 0.4])
    for best in ([1.0, 8.0, 1.0], [0.99, 4.0, 0.9], [0.98, 2.0, 0.4]):
        codes = rules.stopped(torch.tensor([2, 0, 1]), torch.tensor(best), first, last)
    assert codes.tolist() == [CONVERGED, HOPELESS, CAP]
