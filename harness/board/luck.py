"""By how much numbers of the same place may differ between two makings: chance, and what rounds otherwise.

Each is held against what was made again, and allowed for by its spread, never by what the card says of itself.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.results import CellResult, Identified, LabelInference, Lineup, Rate, Summary
from harness.results.card import Card, CardCell

# Beside standard errors of a difference: of shares, of accuracies, of other numbers, and of errors' logarithms.
_SHARE, _ACCURACY, _RELATIVE, _LOGARITHM = 0.03, 0.02, 0.05, 0.2
_SEEN, _UNSEEN = 3e-4, 0.3  # p-values that are not both of the same, but once in thousands
_EXACT = 1e-3  # RMSE below which nobody sees an error
_PERFECT = 60.0  # PSNR above which nobody does either
# Measures in [0, 1], whose means are held too: so many victims may end otherwise where something rounds otherwise.
_BY_MEAN, _ENDED = ("rmse", "rmse_seed", "mse", "ssim"), 3.0

Test = Lineup | LabelInference | Identified


@dataclass(frozen=True)
class Luck:
    """``errors``: by how many standard errors of their difference two makings may differ."""

    errors: float

    def exceeded(self, card: Card, again: Card) -> Iterator[str]:
        """Numbers of a card that lie farther from those made again than luck brings them, with both."""
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
        """What a theorem bounds."""
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
                yield f"{place}.{name}: {said:.4g}in the card, {found:.4g} computed again"

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
        """How victims ended, as shares of all: each image of a victim, under each seed."""
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
            yield f"victims.rmses: {math.exp(said):.3g}in the card, {math.exp(found):.3g} computed again"

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
        yield f"{place}: {there:.2g}in the card, {here:.2g} computed again"


def _seen_by_clients(there: CellResult, here: CellResult) -> Iterator[str]:
    """What they could see of a server that tampers, which hardly anything is drawn for."""
    before, after = (one.detectable.model_dump() if one.detectable else {} for one in (there, here))
    for name in dict.fromkeys([*before, *after]):
        said, found = before.get(name), after.get(name)
        if isinstance(said, float) and isinstance(found, float):
            differs = abs(said - found) > _RELATIVE
        else:
            differs = said != found
        if differs:
            yield f"result.detectable.{name}: {said}in the card, {found} computed again"


def _either(place: str, there: float | None, here: float | None) -> Iterator[str]:
    if there != here:
        yield f"{place}: {there}in the card, {here} computed again"
