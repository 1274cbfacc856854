"""Differences with 95% intervals between two runs, or between two defenses of one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from harness.base.errors import UsageError
from harness.gate.cells import GateCell
from harness.gate.comparing import Values, differences
from harness.gate.settings import Settings
from harness.scoring import clopper_pearson

_LEAST = 2
_TOLD = 3
# What keeps two cells apart, in words; nothing where they are to be compared.
_Apart = Callable[[GateCell, GateCell], list[str]]


@dataclass(frozen=True)
class Difference:
    """``b`` minus ``a`` with its 95% interval; all None where it cannot be had."""

    a: float | None = None
    b: float | None = None
    difference: float | None = None
    ci95: tuple[float, float] | None = None


@dataclass(frozen=True)
class Contrast:
    """One cell of A beside the same cell of B; ``paired`` says whether the victims are the same."""

    a: str
    b: str
    paired: bool
    victims: tuple[int, int]
    asr: Difference
    rank: Difference
    log_rmse: Difference


def contrast_runs(a: Sequence[GateCell], b: Sequence[GateCell]) -> tuple[list[Contrast], list[str]]:
    """Cells of equal settings beside each other, and the titles of those that only one run has.

    Raises:
        UsageError: the runs have no cell in common.
    """
    return _contrast(a, b, lambda one, other: differences(one.settings, other.settings))


def contrast_defenses(
    a: Sequence[GateCell], b: Sequence[GateCell], names: tuple[str, str]
) -> tuple[list[Contrast], list[str]]:
    """Cells of one defense beside those of another that agree in everything else.

    Raises:
        UsageError: no two cells differ in the defense only.
    """
    first, second = (
        [cell for cell in cells if cell.settings.get("defense") == name and cell.noise_scale == 1]
        for cells, name in zip((a, b), names, strict=True)
    )
    return _contrast(
        first, second,
        lambda one, other: differences(_without_defense(one.settings), _without_defense(other.settings)),
    )  # fmt: skip


def _without_defense(settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if name.partition(".")[0] != "defense"}


def _contrast(a: Sequence[GateCell], b: Sequence[GateCell], apart: _Apart) -> tuple[list[Contrast], list[str]]:
    met = [(one, other) for one in a for other in b if not apart(one, other)]
    # Where one was skipped there is nothing to compare, and nothing that only one has.
    pairs = [pair for pair in met if not any(cell.settled_by for cell in pair)]
    if not met:
        raise UsageError(
            f"the two have no cell in common{_nearest(a, b, apart)}; compare runs of the same preset, or name "
            "--defense X,Y"
        )
    known = {id(cell) for pair in met for cell in pair}
    alone = [
        f"{cell.title} (in {name})"
        for name, cells in (("A", a), ("B", b))
        for cell in cells
        if id(cell) not in known and not cell.settled_by
    ]
    return [contrast(*pair) for pair in pairs], alone


def _nearest(a: Sequence[GateCell], b: Sequence[GateCell], apart: _Apart) -> str:
    """Return what keeps the two cells apart that differ least."""
    if not (a and b):
        return f" ({'the second' if a else 'the first'} has none)"
    changed, one, other = min(
        ((apart(one, other), one, other) for one in a for other in b), key=lambda found: len(found[0])
    )
    told = "; ".join(changed[:_TOLD]) + (f"; and {len(changed) - _TOLD} more" if len(changed) > _TOLD else "")
    return f": {one.title} and {other.title} differ in {told}"


def contrast(a: GateCell, b: GateCell) -> Contrast:
    """Two cells: over their common victims where these are most of either, else over all as two samples."""
    common = [name for name in a.victims if name in b.victims]
    paired = len(common) >= max(_LEAST, min(len(a.victims), len(b.victims)) / 2)
    if paired:
        a, b = (replace(cell, victims={name: cell.victims[name] for name in common}) for cell in (a, b))
    made = a.reconstructs and b.reconstructs
    return Contrast(
        a.title, b.title, paired, (len(a.victims), len(b.victims)),
        _rates(a.successes, b.successes) if made else Difference(), _means(a.ranks, b.ranks, paired),
        _means(a.log_rmse, b.log_rmse, paired) if made else Difference(),
    )  # fmt: skip


def _rates(a: Values, b: Values) -> Difference:
    """Difference of success rates; its interval combines those of both (Newcombe 1998, method 10, with exact ones).

    It takes the samples for independent, which only widens it where the same victims were attacked.
    """
    if not (len(a) and len(b)):
        return Difference()
    before, after = float(a.mean()), float(b.mean())
    (low_a, high_a), (low_b, high_b) = _interval(a), _interval(b)
    down = np.hypot(after - low_b, high_a - before)
    up = np.hypot(high_b - after, before - low_a)
    gap = after - before
    return Difference(before, after, gap, (float(max(gap - down, -1.0)), float(min(gap + up, 1.0))))


def _interval(successes: Values) -> tuple[float, float]:
    return clopper_pearson(round(float(successes.sum())), len(successes))


def _means(a: Values, b: Values, paired: bool) -> Difference:
    """Difference of means with Student's interval, Welch's for two samples."""
    if paired:
        kept = ~(np.isnan(a) | np.isnan(b))
        a, b = a[kept], b[kept]
    else:
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    if min(len(a), len(b)) < _LEAST:
        return Difference()
    gap = float(b.mean() - a.mean())
    error, freedom = _paired_error(b - a) if paired else _welch(a, b)
    half = 0.0 if error == 0 else float(stats.t.ppf(0.975, freedom) * error)
    return Difference(float(a.mean()), float(b.mean()), gap, (gap - half, gap + half))


def _paired_error(gaps: Values) -> tuple[float, float]:
    return float(gaps.std(ddof=1) / np.sqrt(len(gaps))), len(gaps) - 1


def _welch(a: Values, b: Values) -> tuple[float, float]:
    """Standard error of the difference of two means, and its degrees of freedom."""
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    if parts.sum() == 0:
        return 0.0, 1.0
    return float(np.sqrt(parts.sum())), float(parts.sum() ** 2 / (parts**2 / (len(a) - 1, len(b) - 1)).sum())
