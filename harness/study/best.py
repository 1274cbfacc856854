"""The best point at a place, in words: as accurate as without a defense, and nothing leaks."""

from collections.abc import Sequence

from harness.reports import text
from harness.results.frontier import FrontierPoint

#: Accuracy that a defense may cost, as a share.
MARGIN = 0.05

Numbered = Sequence[tuple[int, FrontierPoint]]


def answer(points: Numbered) -> list[tuple[str, int | None]]:
    """What may be said of one dataset at one tap, and the best point's number; None where there is none.

    Of points within :data:`MARGIN` of the accuracy without a defense at which ``resilient`` could be shown, it is the
    one of the smallest proven epsilon, of each unit where there are two, since an example's and a client's cannot be
    compared; else, where none is proven, the most accurate.
    """
    base = next((one.accuracy for _, one in points if one.setting is None), None)
    where = f"{points[0][1].dataset}, tap {points[0][1].tap}, {points[0][1].attacked} weights"
    if base is None:
        return [(f"{where}: training without a defense diverged, so there is nothing to compare with", None)]
    affordable = [
        (number, one) for number, one in points
        if one.setting is not None and one.accuracy is not None and one.accuracy >= base - MARGIN
    ]  # fmt: skip
    held = [(number, one) for number, one in affordable if one.verdict == "resilient" and not one.identifies]
    proven = dict.fromkeys(one.unit for _, one in held if one.epsilon is not None)
    groups = [[pair for pair in held if pair[1].unit == unit] for unit in proven] or ([held] if held else [])
    best = [min(group, key=_worth) for group in groups]
    return [(f"{where}: {_said(one, base)}", number) for number, one in best] or [
        (f"{where}: {_none_found(affordable, base)}", None)
    ]


def _worth(numbered: tuple[int, FrontierPoint]) -> tuple[bool, float, float]:
    one = numbered[1]
    return one.epsilon is None, one.epsilon or 0.0, -(one.accuracy or 0.0)


def name_of(point: FrontierPoint) -> str:
    """The defense with its level of noise."""
    return point.defense if point.setting is None else f"{point.defense} {point.setting}={point.level:g}"


def _said(best: FrontierPoint, base: float) -> str:
    epsilon = f"no epsilon is proven ({best.epsilon_reason})"
    if best.epsilon is not None:
        epsilon = f"proven epsilon {text.epsilon(best.epsilon)} (delta {best.delta:g}, unit: {best.unit})"
    return (
        f"{name_of(best)} costs {100 * (base - (best.accuracy or 0)):.1f} points of accuracy "
        f"({text.percent(best.accuracy)}, without a defense {text.percent(base)}), {epsilon}, and no attack leaks: "
        f"{text.rate(best.success)} of {best.success.n} come back"
    )


def _none_found(affordable: Numbered, base: float) -> str:
    within = f"within {100 * MARGIN:g} points of the accuracy without a defense ({text.percent(base)})"
    silent = [name_of(one) for _, one in affordable if one.verdict == "inconclusive"]
    if silent:
        return f"none was found that is {within} and resilient; nobody could tell of {', '.join(silent)}"
    if affordable:
        return f"none was found: every level {within} leaks"
    return f"none was found: no level is {within}"
