"""Watches attacks and the run around them: what was reconstructed when, and how long the rest will take.

The recorder is on the scorer's side and holds the truth; the attack only calls it and gets nothing back. The remaining
time is estimated from an attack's own first iterations.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from harness.attacks import Attack
from harness.base.limits import WORTH_TELLING, log
from harness.base.progress import Progress, in_words, may_foretell, within
from harness.evaluation.controls import ONE_LOOK, high_noise_control, noiseless_control, positive_control, smaller
from harness.experiment import AS_CAPTURED, CellSettings
from harness.federation.taps import TAPS_OF_VARIATES
from harness.scoring import Strict, image_strict, match

SNAPSHOT_ITERATIONS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
SNAPSHOT_IMAGES = 8


class AttackRecorder:
    """An observer for :func:`harness.attacks.run_attack`.

    Args:
        truth: (R, n, C, H, W), row for row what the observation hides.
        restarts: starts per row.
        strict: the dataset's strict success rule.
    """

    def __init__(self, truth: Tensor, restarts: int, strict: Strict = image_strict) -> None:
        self._truth, self._strict = truth, strict
        rows, examples = truth.shape[:2]
        self._first = torch.zeros(rows, restarts, examples, dtype=torch.long)
        self._shown = torch.arange(rows) < max(1, SNAPSHOT_IMAGES // examples)
        self._snapshots: dict[int, dict[tuple[int, int], Tensor]] = {}

    def __call__(self, victims: Tensor, restarts: Tensor, iteration: int, images: Tensor) -> None:
        images = images.cpu()
        waiting = (self._first[victims, restarts] == 0).any(1)
        if waiting.any():
            rows, starts = victims[waiting], restarts[waiting]
            reached = self._reached(self._truth[rows], images[waiting])
            earlier = self._first[rows, starts]
            self._first[rows, starts] = torch.where((earlier == 0) & reached, iteration, earlier)
        if iteration in SNAPSHOT_ITERATIONS:
            stage = self._snapshots.setdefault(iteration, {})
            for place in self._shown[victims].nonzero()[:, 0].tolist():
                stage[int(victims[place]), int(restarts[place])] = images[place].clone()

    def _reached(self, truth: Tensor, images: Tensor) -> Tensor:
        """Return whether each true image (A, n) is reconstructed within the strict rule, after matching."""
        matched = images[torch.arange(len(images))[:, None], match(truth, images)]
        return self._strict(truth, matched)

    def take(self, rows: Tensor) -> "AttackRecorder":
        """One for some of the rows, as another process attacks them."""
        part = AttackRecorder(self._truth[rows], self._first.shape[1], self._strict)
        part._shown = self._shown[rows]
        return part

    def put(self, rows: Tensor, part: "AttackRecorder") -> None:
        """Takes over what one for these rows has seen."""
        self._first[rows] = part._first
        for iteration, stage in part._snapshots.items():
            seen = {(int(rows[row]), restart): images for (row, restart), images in stage.items()}
            self._snapshots.setdefault(iteration, {}).update(seen)

    def tau(self, restart: Tensor, cap: int) -> Tensor:
        """First strict iteration (R, n) of each image for the kept starts (R,); ``cap`` where there was none."""
        first = self._first[torch.arange(len(restart)), restart]
        return torch.where(first == 0, cap, first)

    def snapshots(self, restart: Tensor, final: Tensor) -> dict[int, Tensor]:
        """Images of the first rows along the iterations; a row that had stopped shows its final images (R, n, ...)."""
        rows = int(self._shown.sum())
        return {
            iteration: torch.stack([stage.get((row, int(restart[row])), final[row]) for row in range(rows)])
            for iteration, stage in sorted(self._snapshots.items())
        }


class RunForecast:
    """Counts the cells of a run. Controls belong to their cell and are not counted; work on them is."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._cell: CellSettings | None = None
        self._begun, self._waiting = set[str](), dict[str, CellSettings]()
        self._count, self._open = 0, False

    @contextmanager
    def over(self, cells: Sequence[CellSettings], at_hand: Callable[[CellSettings], bool]) -> Iterator[None]:
        """Watch a run of these cells. Cells that an earlier run left at hand are done at once."""
        known = {cell.model_dump_json(): cell for cell in cells}
        self._waiting = {name: cell for name, cell in known.items() if not at_hand(cell)}
        self.total, self._count = len(known), len(known) - len(self._waiting)
        with within():
            yield

    @contextmanager
    def at(self, settings: CellSettings, control: str | None) -> Iterator[None]:
        """Watch all that one cell, or one control of it, takes. A cell inside one is the same with labels known."""
        self._begun.add(_name(settings, control))
        if control is None:
            fresh = self._waiting.pop(settings.model_dump_json(), None) is not None or self.total is None
            self._cell, self._count = settings, self._count + (fresh and not self._open)
        of = f" of {self.total}" if self.total is not None else ""
        place = f"its control {control}" if control else f"cell {self._count}{of}"
        inside, self._open = self._open, True
        try:
            with within("labels known" if inside and control is None else place):
                yield
        finally:
            self._open = inside

    def work_left(self, early: bool = False) -> float:
        """The work of all cells and controls that have not begun, at most, or ``early``: where nobody has hope.

        Of controls, all that the cells may need; one that fails is made a second time, which is not counted.
        """
        cells = [cell for cell in (self._cell, *self._waiting.values()) if cell is not None]
        needed = {_name(cell, None): cell for cell in self._waiting.values()}
        for cell in cells:
            needed |= {_name(settings, control): settings for control, settings in controls_of(cell)}
        return sum(work_of(settings, early) for name, settings in needed.items() if name not in self._begun)


def early_iterations(attack: Attack) -> int:
    """After how many iterations starts without hope are given up; the most there are where none is."""
    gives_up = attack.patience if attack.patience_drop else 0
    return min(gives_up or attack.max_iterations, attack.max_iterations)


def work_of(settings: CellSettings, early: bool = False) -> float:
    """Gradients of single images that its attack evaluates, at most; none where it only compares images.

    ``early``: if every start is given up as soon as that may be.
    """
    attack = settings.build_attack()
    if not isinstance(attack, Attack):
        return 0.0
    images = (
        settings.victims * len(settings.seeds) * settings.examples * (settings.rounds_seen if settings.draws else 1)
    )
    each = getattr(attack.optimizer(), "inner_iterations", 1)
    iterations = early_iterations(attack) if early else attack.max_iterations
    return float(images * attack.starts * iterations * each)


def controls_of(cell: CellSettings) -> list[tuple[str, CellSettings]]:
    """The controls that a cell may need, as :class:`harness.evaluation.run.Run` names them."""
    found = [("positive", positive_control(cell))]
    if found[0][1] == smaller(cell, **ONE_LOOK):
        return []
    return [*found, ("positive_sigma0", noiseless_control(cell)), ("noise_x100", high_noise_control(cell))]


def _name(settings: CellSettings, control: str | None) -> str:
    """Names what is attacked once, wherever it is read; of high_noise cells, whatever the noise is multiplied by."""
    if control == "noise_x100":
        settings = settings.model_copy(update={"noise_scale": 1.0, "batch_norm": None})
    if control is not None:  # it is the same for an attack that was named itself
        settings = settings.model_copy(update={"suite": None})
    return f"{control} {_reading(settings)} {settings.model_dump_json(exclude={'tap'})}"


def _reading(settings: CellSettings) -> str:
    """Return what a tap shows: the same as another between which and it the defense does nothing."""
    tap, defense = settings.tap, settings.build_defense()
    if tap.unit == "example" or tap in TAPS_OF_VARIATES:
        return tap
    # Of one local step, an update is a gradient times the learning rate.
    apart = tap.of_update and (
        settings.local_steps > 1 or settings.batch_norm is not None or settings.optimizer != "sgd" or settings.sent_as
    )
    return " ".join([tap.unit if apart else "step", *(hook for hook in tap.noised_by if defense.acts_at(hook))])


#: Iterations that are timed; the one before them also pays for what is only done once.
TIMED = 5
#: Seconds after which what was timed by then has to do.
PATIENCE = 60.0
_SHORTER = "fewer {}or a GPU make it shorter"


class AttackForecast:
    """Stands before an attack's observer, moves its bar, and tells once of an attack that will take minutes.

    Args:
        observer: gets all that comes, if there is one.
        bar: counts rows.
        rows: all that are attacked.
        attack: with its starts, each of at most so many iterations; many stop earlier.
        settings: the cell.
        forecast: on what follows; None where nothing does.
    """

    def __init__(
        self, observer: AttackRecorder | None, bar: Progress, rows: int, attack: Attack, settings: CellSettings,
        forecast: RunForecast | None = None,
    ) -> None:  # fmt: skip
        self._observer, self._bar, self._rows, self._attack = observer, bar, rows, attack
        self._settings, self._forecast = settings, forecast
        self._whole = observer
        self._began, self._since = time.monotonic(), 0.0
        self._remaining = RemainingIterations(attack.max_iterations)
        # Starts that began together, and that still go on after some iteration; rows that are done.
        self._together, self._going, self._iteration, self._done = 0, 0, 0, 0
        self._told = False
        # Processes that take a share of the rows each: this one sees its own, and all are as far.
        self._processes = 1

    def deal(self, shares: Sequence[Tensor]) -> list[AttackRecorder | None]:
        """Return what is to watch each share of the rows; that of the first stands behind this one until
        :meth:`gather`."""
        parts = [self._observer and self._observer.take(rows) for rows in shares]
        self._whole, self._observer, self._processes = self._observer, parts[0], len(shares)
        return parts

    def wait(self) -> None:
        """Show that this process's share is done and that others are not."""
        self._bar.under_way(0.0, "the other processes are not done yet")

    def take_over(self, rows: int, observer: AttackRecorder | None) -> None:
        """Note that this process attacks another's share after all. That share had been counted as far as this
        process's own."""
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
        self._remaining.note(0, self._going if self._iteration < self._attack.max_iterations else 0)
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
        self._remaining.note(going * (iteration - self._iteration), max(self._going - going, 0))
        self._going, self._iteration = going, iteration
        self._bar.at_most = self._bar.at_most and not self._remaining.known
        said = f"iteration {iteration} of {'at most ' if most > 1 else ''}{most}"
        if iteration < early_iterations(self._attack) < most:
            said += f" (hopeless starts stop at {early_iterations(self._attack)})"
        self._bar.under_way(self._share() * self._rows - self._done, said)
        if not self._told:
            self._look_ahead(iteration)

    def _share(self) -> float:
        """Return the share of all iterations that are done."""
        waiting = max((self._rows - self._done) * self._attack.starts - self._together, 0)
        ahead = self._going * self._remaining.ahead(self._iteration) + waiting * self._remaining.ahead()
        return self._remaining.spent / (self._remaining.spent + ahead)

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
        own, follow = work_of(self._settings), self._forecast
        least_left, left = (follow.work_left(early=True), follow.work_left()) if follow and own else (0.0, 0.0)
        seconds, least = each * most, each * early
        rest, least_rest = (seconds * work / own if own else 0.0 for work in (left, least_left))
        if seconds + rest < WORTH_TELLING or not may_foretell():
            return
        said = f"{self._settings.attack} on {self._rows} victims takes {between(least, seconds)}"
        if rest >= 1:
            said += f", with all remaining cells and controls {between(least + least_rest, seconds + rest)}"
        if least + least_rest < seconds + rest:
            said += f" (hopeless starts stop at iteration {early} of {most})"
        shorter = "captures, --budget 10m " if self._settings.weights == AS_CAPTURED else "victims "
        log.warning("harness: %s; %s", said, _SHORTER.format(shorter))


def between(least: float, most: float) -> str:
    """A time in seconds that is known within bounds, of which the lower one is only likely."""
    least, most = max(least, 2.0), max(most, 2.0)
    known = in_words(least) == in_words(most)
    return f"at most {in_words(most)}" if known else f"about {in_words(least)} to at most {in_words(most)}"


class RemainingIterations:
    """Takes it that a row is as likely to end in one iteration as in any other, until all end at the cap.

    Its likeliest mean is then iterations done by all rows, those still going too, for each that ended (exponential
    times under censoring): who looked only at rows that ended would see the quickest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.spent, self._ended = 0, 0

    @property
    def known(self) -> bool:
        """Return whether any row has ended before the cap; else all are expected to go on to it."""
        return self._ended > 0

    def note(self, spent: int, ended: int) -> None:
        """So many iterations were done, and so many rows ended before the cap."""
        self.spent, self._ended = self.spent + spent, self._ended + ended

    def ahead(self, done: int = 0) -> float:
        """Iterations that a row has ahead after so many, on average."""
        cap = self._most - done
        if not self._ended:
            return float(cap)
        mean = self.spent / self._ended
        return -mean * math.expm1(-cap / mean)
