"""Differences between two results, and their tolerance: the one comparer of the gate, the board and runs.

* :func:`differences` of two cells' settings, :func:`differing` of two documents, :func:`other_versions` of two
  environments: all by equality.
* :class:`Tolerance`: by how much the numbers of one place may differ when it is made again. Chance moves them, and so
  does another rounding. Each is held against what was made again, and its spread is allowed for, never what the card
  says of itself.
* :func:`movement` of a cell's victims: how far it moved towards leaking more and towards leaking less.

The permutation tests are of one cell; over all of them goes Holm's correction (:mod:`harness.scoring.strongest`). Same
victims in both runs are paired: under the null hypothesis each difference may as well have the other sign. Other
victims are two samples: under the null hypothesis any of them may as well have stood in the other run. Both tests are
exact whatever the distribution, which a re-run with other seeds needs as much as one with the same.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom

from harness.base.presence import says_as_much
from harness.base.randomness import derive_seed
from harness.gate.cells import GateCell
from harness.gate.settings import NOT_THERE, Settings, defaults_of
from harness.results import CellResult, Identified, LabelInference, Lineup, Rate, Summary
from harness.results.card import Card, CardCell
from harness.scoring.success import clopper_pearson
from harness.scoring.verdict import RESILIENT_RATE

# The first permutations clear most cells; the many resolve p-values that survive a correction over hundreds of cells.
_FEW, _MANY = 9_999, 399_999
_SUSPICIOUS = 0.05
_BLOCK = 20_000

Values = NDArray[np.float64]


@dataclass(frozen=True)
class PValues:
    """One-sided p-values: of numbers having gone ``up``, and of having gone ``down``."""

    up: float
    down: float


def paired_test(differences: Values) -> PValues:
    """The sign-flip test of differences (V,): is their mean other than 0?"""
    # A sum with signs is twice that of the positive ones, less that of all.
    return _permutation_test(differences, np.ones(len(differences), np.uint8), "signs")


def two_sample_test(old: Values, new: Values) -> PValues:
    """The permutation test of two samples: is the mean of ``new`` other than that of ``old``?"""
    # With the number in each given, the difference of means grows with the sum of the new one.
    chosen = np.concatenate([np.zeros(len(old), np.uint8), np.ones(len(new), np.uint8)])
    return _permutation_test(np.concatenate([old, new]), chosen, "samples")


def _permutation_test(values: Values, chosen: NDArray[np.uint8], kind: str) -> PValues:
    """Return where the sum of the ``chosen`` values stands among those of random signs or of shuffled samples."""
    observed = chosen @ values
    # Sums of the same numbers in another order may differ by rounding: count those as ties.
    tolerance = 1e-6 * np.abs(values).sum() + 1e-12
    for count in (_FEW, _MANY):
        up = down = 1
        for block in _assignments(chosen.tobytes(), kind, count):
            null = block.astype(np.float32) @ values.astype(np.float32)
            up += int((null >= observed - tolerance).sum())
            down += int((null <= observed + tolerance).sum())
        result = PValues(up / (count + 1), down / (count + 1))
        if min(result.up, result.down) > _SUSPICIOUS:
            break
    return result


@lru_cache(maxsize=4)
def _assignments(chosen: bytes, kind: str, count: int) -> list[NDArray[np.uint8]]:
    """``count`` random assignments (M, V) in blocks. Cells share them, which Holm's correction allows."""
    random = np.random.default_rng(derive_seed("gate", kind, len(chosen), count))
    row = np.frombuffer(chosen, np.uint8)
    return [
        random.integers(0, 2, (size, len(row)), dtype=np.uint8)
        if kind == "signs"
        else random.permuted(np.tile(row, (size, 1)), axis=1)
        for size in (min(_BLOCK, count - start) for start in range(0, count, _BLOCK))
    ]


def fisher_test(old: int, of_old: int, new: int, of_new: int) -> PValues:
    """Fisher's exact test of two success counts."""
    total, hits = of_old + of_new, old + new
    return PValues(float(hypergeom.sf(new - 1, total, hits, of_new)), float(hypergeom.cdf(new, total, hits, of_new)))


VICTIMS_NEEDED = 24
EFFECT = 0.1

# Beside standard errors of a difference: of shares, of accuracies, of other numbers, and of errors' logarithms.
_SHARE, _ACCURACY, _RELATIVE, _LOGARITHM = 0.03, 0.02, 0.05, 0.2
_SEEN, _UNSEEN = 3e-4, 0.3  # p-values that are not both of the same, but once in thousands
_EXACT = 1e-3  # RMSE below which nobody sees an error
_PERFECT = 60.0  # PSNR above which nobody does either
# Measures in [0, 1], whose means are held too: so many victims may end otherwise where something rounds otherwise.
_BY_MEAN, _ENDED = ("rmse", "rmse_seed", "mse", "ssim"), 3.0

Test = Lineup | LabelInference | Identified


def differences(old: Settings, new: Settings) -> list[str]:
    """Return what differs, in words such as ``batch_size 1 -> 2``.

    A setting that the baseline does not know was added since: it may stand at its default.
    """
    added = new.keys() - old.keys()
    defaults = defaults_of(new) if added else {}
    changed = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, NOT_THERE), new.get(name, NOT_THERE)
        if name in added:
            before = defaults.get(name, NOT_THERE)
        if before is NOT_THERE or after is NOT_THERE or before != after:
            changed.append(f"{name} {_word(before)} -> {_word(after)}")
    return changed


def _word(value: object) -> str:
    return "absent" if value is NOT_THERE else str(value)


def differing(there: Any, here: Any, place: str = "") -> list[str]:
    """Every place where two documents differ, with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = dict.fromkeys([*there, *here])
        return [
            line
            for name in names
            for line in differing(there.get(name), here.get(name), f"{place}.{name}" if place else name)
        ]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        return [
            line
            for number, (one, other) in enumerate(zip(there, here, strict=True))
            for line in differing(one, other, f"{place}[{number}]")
        ]
    alike = says_as_much(there, here) if isinstance(there, str) and isinstance(here, str) else there == here
    return [] if alike else [f"{place}: {_short(there)} in the card, {_short(here)} computed again"]


def _short(value: Any) -> str:
    said = f"{len(value)} entries" if isinstance(value, list | dict) and len(str(value)) > 80 else str(value)
    return " ".join(said.split())[:160]


def other_versions(there: Any, here: Any) -> list[tuple[str, Any, Any]]:
    """Return each library whose version differs, with both versions; None where one side names none."""
    before, after = (one if isinstance(one, Mapping) else {} for one in (there, here))
    names = dict.fromkeys([*before, *after])
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


@dataclass(frozen=True)
class Tolerance:
    """Amount that two makings of one place may differ by: ``errors`` standard errors of their difference, and a
    little."""

    errors: float

    def exceeded(self, card: Card, again: Card) -> Iterator[str]:
        """Numbers of a card that lie farther from those made again than this allows, with both."""
        for number, (one, other) in enumerate(zip(card.cells, again.cells, strict=False)):
            yield from (f"cells[{number}].{line}" for line in self._of_cells(one, other))
        if card.training and again.training:
            there, here = card.training.accuracy, again.training.accuracy
            yield from _shares("training.accuracy", there, here, again.training.test_examples, _ACCURACY, 2.0)

    def _of_cells(self, one: CardCell, other: CardCell) -> Iterator[str]:
        there, here, trials = one.result, other.result, max(1, len(other.victims.names))
        for rule in there.asr | here.asr:
            yield from self._rates(f"result.asr.{rule}", there.asr.get(rule), here.asr.get(rule))
        yield from self._events(there, here)
        for name in dict.fromkeys([*there.metrics, *here.metrics]):
            pair = there.metrics.get(name), here.metrics.get(name)
            yield from self._summaries(f"result.metrics.{name}", *pair, trials, name in _BY_MEAN)
        yield from self._tests("result.lineup", there.lineup, here.lineup, trials)
        yield from self._tests("result.label", there.label, here.label, trials)
        yield from self._tests("result.identified", there.identified, here.identified, trials)
        yield from self._counts(there, here, trials)
        yield from _seen_by_clients(there, here)
        yield from self._victims(one, other)

    def _rates(self, place: str, there: Rate | None, here: Rate | None) -> Iterator[str]:
        yield from self._share(f"{place}.rate", there and there.rate, here and here.rate, here.n if here else 0)

    def _events(self, there: CellResult, here: CellResult) -> Iterator[str]:
        """Yield the differences in the events that a theorem bounds."""
        bounds = (cell.bound.events if cell.bound else [] for cell in (there, here))
        before, after = ({event.event: event for event in events} for events in bounds)
        for name in before.keys() & after.keys():
            yield from self._rates(f"result.bound.{name}", before[name].measured, after[name].measured)
            yield from _p_values(f"result.bound.{name}.p_value", before[name].p_value, after[name].p_value)

    def _summaries(
        self, place: str, there: Summary | None, here: Summary | None, trials: int, by_mean: bool
    ) -> Iterator[str]:
        """Medians, and means where no single victim decides them, by the spread of what was made again."""
        if there is None or here is None or there.mean is None or here.mean is None:
            yield from _either(place, there and there.mean, here and here.mean)
            return
        spread = here.std or 0.0
        allowed = self.errors * math.sqrt(2 / trials) * spread
        pairs = [("median", there.median, here.median, 1.25 * allowed)]
        pairs += [("mean", there.mean, here.mean, allowed + _ENDED / trials)] if by_mean else []
        for name, said, found, most in pairs:
            if said is None or found is None:
                yield from _either(f"{place}.{name}", said, found)
            elif abs(min(said, _PERFECT) - min(found, _PERFECT) if place.endswith("psnr") else said - found) > (
                most + _RELATIVE * max(abs(found), spread) + _EXACT
            ):
                yield f"{place}.{name}: {said:.4g} in the card, {found:.4g} computed again"

    def _tests(self, place: str, there: Test | None, here: Test | None, trials: int) -> Iterator[str]:
        """Shares and p-values of a test, field by field."""
        apart = {"ci95", "n", "identifies", "reason"}
        before, after = ({} if one is None else one.model_dump(exclude=apart) for one in (there, here))
        for name in dict.fromkeys([*before, *after]):
            pair = before.get(name), after.get(name)
            if name.endswith("p_value"):
                yield from _p_values(f"{place}.{name}", *pair)
            else:
                yield from self._share(f"{place}.{name}", *pair, trials)

    def _counts(self, there: CellResult, here: CellResult, trials: int) -> Iterator[str]:
        """Yield the differences in how victims ended, as shares of all: each image of a victim, under each seed."""
        before, after = (cell.outcomes.model_dump() for cell in (there, here))
        rows = max(1, sum(after.values()))
        for name, count in after.items():
            yield from self._share(f"result.outcomes.{name}", before[name] / rows, count / rows, trials)
        strict = here.asr.get("strict")
        images = max(1, strict.n if strict else rows)
        yield from self._share("result.confirmed", there.confirmed / images, here.confirmed / images, trials)

    def _victims(self, one: CardCell, other: CardCell) -> Iterator[str]:
        """Their errors, by the median of their logarithms: few may end otherwise."""
        there, here = (np.log(np.clip(np.array(side.victims.rmses, float), _EXACT, None)) for side in (one, other))
        if not len(there) or not len(here):
            return
        said, found = float(np.median(there)), float(np.median(here))
        if abs(said - found) > _LOGARITHM + 1.25 * self.errors * float(here.std()) * math.sqrt(2 / len(here)):
            yield f"victims.rmses: {math.exp(said):.3g} in the card, {math.exp(found):.3g} computed again"

    def _share(self, place: str, there: float | None, here: float | None, trials: int) -> Iterator[str]:
        return _shares(place, there, here, trials, _SHARE, self.errors)


def _shares(
    place: str, there: float | None, here: float | None, trials: int, beside: float, errors: float
) -> Iterator[str]:
    """Two draws of a share differ by no more than so many standard errors of their difference, and so much beside."""
    if there is None or here is None:
        yield from _either(place, there, here)
        return
    most = beside + errors * (2 * max(here * (1 - here), 0.01) / max(1, trials)) ** 0.5
    if abs(there - here) > most:
        yield f"{place}: {there:.3f} in the card, {here:.3f} computed again (the tolerance is {most:.3f})"


def _p_values(place: str, there: float | None, here: float | None) -> Iterator[str]:
    if there is None or here is None:
        yield from _either(place, there, here)
    elif min(there, here) < _SEEN and max(there, here) > _UNSEEN:
        yield f"{place}: {there:.2g} in the card, {here:.2g} computed again"


def _seen_by_clients(there: CellResult, here: CellResult) -> Iterator[str]:
    """Yield the differences in what clients could see of a server that tampers, which hardly anything is drawn for."""
    before, after = (one.detectable.model_dump() if one.detectable else {} for one in (there, here))
    for name in dict.fromkeys([*before, *after]):
        said, found = before.get(name), after.get(name)
        if isinstance(said, float) and isinstance(found, float):
            differs = abs(said - found) > _RELATIVE
        else:
            differs = said != found
        if differs:
            yield f"result.detectable.{name}: {said} in the card, {found} computed again"


def _either(place: str, there: float | None, here: float | None) -> Iterator[str]:
    if there != here:
        yield f"{place}: {there} in the card, {here} computed again"


@dataclass(frozen=True)
class Movement:
    """Means before and after, and one-sided p-values before any correction over cells.

    ``rank`` is relative: 0 nearest to the truth, 0.5 chance. ``log_rmse`` is the natural logarithm. Of an attack that
    only tells examples apart (``reconstructs`` is False) ``asr`` and ``log_rmse`` are 0 and say nothing.
    """

    pairing: Literal["paired", "two samples"]
    victims: int
    asr: tuple[float, float]
    rank: tuple[float | None, float | None]
    log_rmse: tuple[float, float]
    more_leaking: float
    less_leaking: float
    reconstructs: bool = True

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
        """Return whether there is room for an effect upwards; a cell at the ceiling is only tested for leaving it."""
        return self.asr[0] <= 1 - EFFECT or (self.rank[0] or 0.0) >= EFFECT

    @property
    def may_leak_less(self) -> bool:
        """Return whether there is room for an effect downwards."""
        return self.asr[0] >= EFFECT or (self.rank[0] is not None and self.rank[0] <= 1 - EFFECT)

    def moved(self, more: bool) -> bool:
        """Return whether ASR or mean relative rank moved by at least 0.1 that way, or ASR left what a resilience
        allows."""
        if more and self.asr[0] <= RESILIENT_RATE and self._at_least > RESILIENT_RATE:
            return True
        sign = 1 if more else -1
        by_rank = 0.0 if None in self.rank else self.rank[0] - self.rank[1]  # type: ignore[operator]
        # Shares of whole victims are compared: 0.1 must not fail for its last binary digit.
        return max(sign * (self.asr[1] - self.asr[0]), sign * by_rank) >= EFFECT - 1e-9


def movement(old: GateCell, new: GateCell) -> Movement | None:
    """The movement of a cell; None with fewer than 24 victims.

    Victims are paired where at least 24 are the same in both runs (a smaller run shares the first victims of a
    larger one). Where the new run has others too, as of another seed, all victims of both are two samples. Of two tests
    one counts, whose p-values are doubled: that whose victims moved the way that fails a gate; of two such, or of none,
    that with the smaller p-value.
    """
    common = [name for name in old.victims if name in new.victims]
    found: list[Movement] = []
    if len(common) >= VICTIMS_NEEDED:
        found.append(_movement(_restricted(old, common), _restricted(new, common), paired=True))
    if len(new.victims) > len(common) and min(len(old.victims), len(new.victims)) >= VICTIMS_NEEDED:
        found.append(_movement(old, new, paired=False))
    if not found:
        return None
    guards = not new.tests_the_attack
    worst = min(found, key=lambda one: (not one.moved(guards), one.more_leaking if guards else one.less_leaking))
    return replace(
        worst, more_leaking=min(1.0, len(found) * worst.more_leaking),
        less_leaking=min(1.0, len(found) * worst.less_leaking),
    )  # fmt: skip


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
        old.reconstructs and new.reconstructs,
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
    """Return the p-values of successes of other victims; of shares, where a victim was attacked under several seeds."""
    counts = all(np.isin(shares, (0.0, 1.0)).all() for shares in (old, new))
    test = fisher_test(int(old.sum()), len(old), int(new.sum()), len(new)) if counts else two_sample_test(old, new)
    # Turned so that "down" means leaking more, as it does for ranks and RMSE.
    return PValues(up=test.down, down=test.up)
