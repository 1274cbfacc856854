"""How one cell moved from the baseline to now, in the direction of leaking more and of leaking less."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.gate.cells import GateCell
from harness.gate.statistics import PValues, Values, fisher_test, paired_test, two_sample_test
from harness.scoring.success import clopper_pearson
from harness.scoring.verdict import RESILIENT_RATE

VICTIMS_NEEDED = 24
EFFECT = 0.1


@dataclass(frozen=True)
class Movement:
    """Means before and after, and one-sided p-values before any correction over cells.

    ``rank`` is relative: 0 nearest to the truth, 0.5 chance. ``log_rmse`` is the natural logarithm.
    """

    pairing: Literal["paired", "two samples"]
    victims: int
    asr: tuple[float, float]
    rank: tuple[float | None, float | None]
    log_rmse: tuple[float, float]
    more_leaking: float
    less_leaking: float

    @property
    def effect(self) -> float:
        """The larger of the movements in ASR and in mean relative rank; above 0 leaks more."""
        before, after = self.rank
        by_rank = 0.0 if before is None or after is None else before - after
        return max(self.asr[1] - self.asr[0], by_rank, key=abs)

    @property
    def _at_least(self) -> float:
        """The lower end of the interval of the ASR after."""
        return clopper_pearson(self.asr[1] * self.victims, self.victims)[0]

    @property
    def may_leak_more(self) -> bool:
        """Whether there is room for an effect upwards; a cell at the ceiling is only tested for leaving it."""
        return self.asr[0] <= 1 - EFFECT or (self.rank[0] or 0.0) >= EFFECT

    @property
    def may_leak_less(self) -> bool:
        """Whether there is room for an effect downwards."""
        return self.asr[0] >= EFFECT or (self.rank[0] is not None and self.rank[0] <= 1 - EFFECT)

    def moved(self, more: bool) -> bool:
        """Whether ASR or mean relative rank moved by at least 0.1 that way, or ASR left what a resilience allows."""
        if more and self.asr[0] <= RESILIENT_RATE and self._at_least > RESILIENT_RATE:
            return True
        sign = 1 if more else -1
        by_rank = 0.0 if None in self.rank else self.rank[0] - self.rank[1]  # type: ignore[operator]
        # Shares of whole victims are compared: 0.1 must not fail for its last binary digit.
        return max(sign * (self.asr[1] - self.asr[0]), sign * by_rank) >= EFFECT - 1e-9


def movement(old: GateCell, new: GateCell) -> Movement | None:
    """The movement of a cell; None with fewer than 24 victims.

    Victims are paired where at least 24 are the same in both runs (a smaller run shares the first victims of a
    larger one); else, as with another seed, all victims of both are two samples.
    """
    common = [name for name in old.victims if name in new.victims]
    if len(common) >= VICTIMS_NEEDED:
        return _movement(_restricted(old, common), _restricted(new, common), paired=True)
    if min(len(old.victims), len(new.victims)) < VICTIMS_NEEDED:
        return None
    return _movement(old, new, paired=False)


def _restricted(cell: GateCell, names: list[str]) -> GateCell:
    return GateCell(cell.settings, {name: cell.victims[name] for name in names})


def _movement(old: GateCell, new: GateCell, paired: bool) -> Movement:
    pairs = [(old.log_rmse, new.log_rmse)]
    ranked = _ranked(old, new, paired)
    if ranked is not None:
        pairs.append(ranked)
    # Both measures are small when images leak: going down is leaking more.
    tests = [_test(*pair, paired) for pair in pairs]
    tests.append(paired_test(old.successes - new.successes) if paired else _counted(old.successes, new.successes))
    asr = float(old.successes.mean()), float(new.successes.mean())
    return Movement(
        "paired" if paired else "two samples", len(new.victims), asr,
        (None, None) if ranked is None else (float(ranked[0].mean()), float(ranked[1].mean())),
        (float(old.log_rmse.mean()), float(new.log_rmse.mean())),
        min(1.0, len(tests) * min(test.down for test in tests)), min(1.0, len(tests) * min(test.up for test in tests)),
    )  # fmt: skip


def _ranked(old: GateCell, new: GateCell, paired: bool) -> tuple[Values, Values] | None:
    """Ranks of the victims that have a lineup, None with fewer than 24 of them."""
    has_old, has_new = ~np.isnan(old.ranks), ~np.isnan(new.ranks)
    if paired:
        has_old = has_new = has_old & has_new
    if min(has_old.sum(), has_new.sum()) < VICTIMS_NEEDED:
        return None
    return old.ranks[has_old], new.ranks[has_new]


def _test(old: Values, new: Values, paired: bool) -> PValues:
    return paired_test(new - old) if paired else two_sample_test(old, new)


def _counted(old: NDArray[np.float64], new: NDArray[np.float64]) -> PValues:
    """Of successes of other victims; of shares, where a victim was attacked under several seeds."""
    counts = all(np.isin(shares, (0.0, 1.0)).all() for shares in (old, new))
    test = fisher_test(int(old.sum()), len(old), int(new.sum()), len(new)) if counts else two_sample_test(old, new)
    # Turned so that "down" means leaking more, as it does for ranks and RMSE.
    return PValues(up=test.down, down=test.up)
