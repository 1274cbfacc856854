"""How far an attack is, and how long it and all that follows will take, from its own first iterations."""

import time
from collections.abc import Sequence

from torch import Tensor

from harness.attacks import Attack
from harness.base.limits import WORTH_TELLING, log
from harness.base.progress import Progress, in_words, may_foretell
from harness.evaluation.endurance import Endurance
from harness.evaluation.outlook import Outlook, early_iterations, work_of
from harness.evaluation.recorder import AttackRecorder
from harness.experiment import AS_CAPTURED, CellSettings

#: Iterations that are timed; the one before them also pays for what is only done once.
TIMED = 5
#: Seconds after which what was timed by then has to do.
PATIENCE = 60.0
_MEND = "use --device cuda, fewer {}, or --attack analytic for a shorter run"


class Foresight:
    """Stands before an attack's observer, moves its bar, and tells once of an attack that will take minutes.

    Args:
        observer: gets all that comes, if there is one.
        bar: counts rows.
        rows: all that are attacked.
        attack: with its starts, each of at most so many iterations; many stop earlier.
        settings: the cell.
        outlook: on what follows; None where nothing does.
    """

    def __init__(
        self, observer: AttackRecorder | None, bar: Progress, rows: int, attack: Attack, settings: CellSettings,
        outlook: Outlook | None = None,
    ) -> None:  # fmt: skip
        self._observer, self._bar, self._rows, self._attack = observer, bar, rows, attack
        self._settings, self._outlook = settings, outlook
        self._whole = observer
        self._began, self._since = time.monotonic(), 0.0
        self._endurance = Endurance(attack.max_iterations)
        # Starts that began together, and that still go on after some iteration; rows that are done.
        self._together, self._going, self._iteration, self._done = 0, 0, 0, 0
        self._told = False
        # Processes that take a share of the rows each: this one sees its own, and all are as far.
        self._processes = 1

    def deal(self, shares: Sequence[Tensor]) -> list[AttackRecorder | None]:
        """What is to watch each share of the rows; that of the first stands behind this one until :meth:`gather`."""
        parts = [self._observer and self._observer.take(rows) for rows in shares]
        self._whole, self._observer, self._processes = self._observer, parts[0], len(shares)
        return parts

    def wait(self) -> None:
        """This process's share is done, and others are not."""
        self._bar.under_way(0.0, "the other processes are not done yet")

    def take_over(self, rows: int, observer: AttackRecorder | None) -> None:
        """This process attacks another's share after all, which had been counted as far as its own."""
        self._observer, self._processes = observer, 1
        self._done -= rows
        self._bar.advance(-rows)

    def gather(self, shares: Sequence[Tensor], parts: Sequence[AttackRecorder | None]) -> None:
        """Puts together what the shares' recorders have seen."""
        self._observer, self._processes = self._whole, 1
        self._bar.advance(self._rows - self._done)
        self._done = self._rows
        for rows, part in zip(shares, parts, strict=True):
            if self._observer and part:
                self._observer.put(rows, part)

    def advance(self, rows: int) -> None:
        """So many rows are done, and the next ones begin."""
        rows = min(rows * self._processes, self._rows - self._done)
        self._endurance.note(0, self._going if self._iteration < self._attack.max_iterations else 0)
        self._done += rows
        self._together, self._going, self._iteration = 0, 0, 0
        self._bar.advance(rows)

    def __call__(self, victims: Tensor, restarts: Tensor, iteration: int, images: Tensor) -> None:
        if self._observer:
            self._observer(victims, restarts, iteration, images)
        most = self._attack.max_iterations
        going = len(victims) * self._processes
        self._together = max(self._together, going)
        # Some of those that began together stop before the others.
        self._endurance.note(going * (iteration - self._iteration), max(self._going - going, 0))
        self._going, self._iteration = going, iteration
        self._bar.at_most = self._bar.at_most and not self._endurance.known
        said = f"iteration {iteration} of {'at most ' if most > 1 else ''}{most}"
        if iteration < early_iterations(self._attack) < most:
            said += f" (hopeless starts end at {early_iterations(self._attack)})"
        self._bar.under_way(self._share() * self._rows - self._done, said)
        if not self._told:
            self._look_ahead(iteration)

    def _share(self) -> float:
        """Of all iterations, those that are done."""
        waiting = max((self._rows - self._done) * self._attack.starts - self._together, 0)
        ahead = self._going * self._endurance.ahead(self._iteration) + waiting * self._endurance.ahead()
        return self._endurance.spent / (self._endurance.spent + ahead)

    def _look_ahead(self, iteration: int) -> None:
        now = time.monotonic()
        if iteration == 1:
            self._since = now
            if now - self._began < PATIENCE:
                return
            each = now - self._began
        elif iteration > TIMED or now - self._began >= PATIENCE:
            each = (now - self._since) / (iteration - 1)
        else:
            return
        self._told = True
        self._tell(each * self._rows * self._attack.starts / self._together)

    def _tell(self, each: float) -> None:
        """``each``: seconds of an iteration of all rows."""
        early, most = early_iterations(self._attack), self._attack.max_iterations
        own, follow = work_of(self._settings), self._outlook
        least_left, left = (follow.work_left(early=True), follow.work_left()) if follow and own else (0.0, 0.0)
        seconds, least = each * most, each * early
        rest, least_rest = (seconds * work / own if own else 0.0 for work in (left, least_left))
        if seconds + rest < WORTH_TELLING or not may_foretell():
            return
        said = f"{self._rows} victims x {self._settings.attack} take {_between(least, seconds)} here"
        if rest >= 1:
            said += f", and with all cells and controls that follow {_between(least + least_rest, seconds + rest)}"
        if least + least_rest < seconds + rest:
            said += f" (hopeless starts end early, here at iteration {early} of {most})"
        fewer = "captures" if self._settings.weights == AS_CAPTURED else "--victims"
        log.warning("harness: %s; %s", said, _MEND.format(fewer))


def _between(least: float, most: float) -> str:
    """A time that is known within bounds, of which the lower one is only likely."""
    return f"about {in_words(least)} to at most {in_words(most)}" if least < most else f"at most {in_words(most)}"
