"""Many places at once: what noise alone makes of a page of verdicts, and which leaks remain (docs/verdicts.md).

The rule of :mod:`harness.scoring.strongest` bounds the chance of a false ``leaks`` at one place. Over the places of a
page these chances add up. The page as a whole is tested by Holm (1979): the chance that any leak which remains is
false is at most 5%, however places depend on each other.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.results import CellResult, SummaryRow
from harness.scoring.strongest import leak_level
from harness.scoring.verdict import CONFIRMED_SUCCESSES

PAGE_P = 0.05
#: The smallest p-value that the usual number of permutations can give: evidence that more of them would sharpen.
_LEAST_P = 2e-4
#: Two tests of each attack: accurate images that are nearest to their own truth, and the lineup.
_TESTS = 2


@dataclass(frozen=True)
class Multiplicity:
    """What many places mean for a page's ``leaks``.

    Attributes:
        places: at which an attack that reconstructs was possible.
        leaking: of them, say ``leaks``.
        remaining: of these, still do where all places are tested together.
        unresolved: of the others, have the smallest p-value that permutations could give.
        by_noise: bound of the chance that noise alone makes some place say ``leaks``, whatever ties places together.
        independent: the same, were places independent of each other.
    """

    places: int
    leaking: int
    remaining: int
    unresolved: int
    by_noise: float
    independent: float

    @property
    def words(self) -> str:
        """Both in plain words."""
        chance = f"at most {_percent(self.by_noise)}"
        if self.independent < 0.95 * self.by_noise:
            chance += f" ({_percent(self.independent)} were places independent)"
        said = f"Over {self.places} places, noise alone makes some say leaks with a chance of {chance}."
        if not self.leaking:
            return said
        said += f" Tested together (Holm, {PAGE_P:.0%}), {self.remaining} of {self.leaking} leaks remain"
        return said + (
            f"; {self.unresolved} have the least p-value that permutations give." if self.unresolved else "."
        )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in order: below alpha are those rejected at family-wise error rate alpha."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = largest
    return adjusted


def over_places(places: Iterable[tuple[SummaryRow, Sequence[CellResult]]]) -> Multiplicity | None:
    """The chances over summary rows with their cells; None for fewer than two places that could leak."""
    rows: list[bool] = []
    levels: list[float] = []
    least: list[float] = []
    p_values: list[float] = []
    for row, cells in places:
        tested = [cell for cell in cells if cell.identified is None and cell.not_applicable_reason is None]
        if not tested:
            continue
        count = _TESTS * len(tested)
        rows.append(row.verdict == "leaks")
        levels.append(min(1.0, count * leak_level(len(tested))))
        least.append(min(map(_least, tested)))
        p_values.append(min(1.0, count * least[-1]))
    if len(rows) < 2:
        return None
    remain = [leaks and p <= PAGE_P for leaks, p in zip(rows, holm(p_values), strict=True)]
    lost = [leaks and not kept for leaks, kept in zip(rows, remain, strict=True)]
    unresolved = sum(one and p <= _LEAST_P for one, p in zip(lost, least, strict=True))
    independent = -math.expm1(sum(math.log1p(-min(level, 1 - 1e-12)) for level in levels))
    return Multiplicity(len(rows), sum(rows), sum(remain), unresolved, min(1.0, sum(levels)), independent)


def of_document(summary: Iterable[SummaryRow], cells: Iterable[CellResult]) -> Multiplicity | None:
    """The same for a run's summary and the cells that it names."""
    known: Mapping[str | None, CellResult] = {cell.key: cell for cell in cells if cell.role == "cell"}
    return over_places((row, [known[one.cell] for one in row.attacks if one.cell in known]) for row in summary)


def _least(cell: CellResult) -> float:
    """The smaller p-value of a cell's two tests; 1 where neither can leak."""
    found = [cell.lineup.p_value]
    if cell.confirmed >= CONFIRMED_SUCCESSES:
        found.append(cell.lineup.confirmed_p_value)
    return min((one for one in found if one is not None), default=1.0)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.995 else "100%"
