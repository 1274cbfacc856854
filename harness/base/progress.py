"""Progress of a command, on standard error: a bar on a terminal, now and then a plain line anywhere else."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from threading import RLock
from typing import Any, TypeVar

from tqdm import tqdm

from harness.base.errors import printable
from harness.base.kinds import plural

#: Seconds before the first plain line, and between two.
FIRST, CALM = 30.0, 60.0
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
T = TypeVar("T")
_PLACE: ContextVar[tuple[str, ...]] = ContextVar("place", default=())


def in_words(seconds: float) -> str:
    """A time in the largest unit of which there are two or more, as ``about 31 hours``."""
    unit, size = next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])
    return plural(round(seconds / size), unit)


def in_notebook() -> bool:
    """Return whether a notebook's kernel runs this, whose output shows a bar though it is no terminal."""
    python: Any = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _bar() -> type[tqdm]:
    """A bar of widgets in a notebook that has them, else one of letters."""
    if in_notebook() and find_spec("ipywidgets"):
        from tqdm.notebook import tqdm as widgets

        return widgets
    return tqdm


class _Pace:
    """Time at which the next plain line is due. There is one for all that a process does: works within one are a part
    of it."""

    def __init__(self) -> None:
        self.due, self.running = 0.0, 0
        self.hushed, self.foretold = False, False

    def begin(self) -> None:
        now = time.monotonic()
        if not self.running:
            self.due = now + FIRST
        self.running += 1

    def end(self) -> None:
        self.running -= 1

    def say(self, line: str) -> None:
        """Writes the line where no terminal shows a bar, if it is time."""
        now = time.monotonic()
        if now >= self.due and not self.hushed and not sys.stderr.isatty() and not in_notebook():
            self.due = now + CALM
            print(f"harness: {printable(line)}", file=sys.stderr, flush=True)


_pace = _Pace()
# Its own lock is shared with other processes, and a process that is killed leaves a warning about it.
tqdm.set_lock(RLock())


def hush() -> None:
    """Nothing is shown by this process any more: it is one of several, and another speaks for all."""
    _pace.hushed = True


def may_foretell() -> bool:
    """Return whether to say how long something takes: once in a process that is one of several, which are alike."""
    first, _pace.foretold = not _pace.foretold, True
    return first or not _pace.hushed


@dataclass
class Progress:
    """A running bar over ``total`` units of work; ``at_most`` says that what is left may be less than it looks."""

    bar: tqdm
    title: str
    total: int
    unit: str
    at_most: bool
    began: float
    _before: int = 0
    _done: int = 0
    _part: float = 0.0
    _note: str = ""

    def advance(self, n: int, note: str = "") -> None:
        """Count ``n`` more as done; ``note`` replaces the words at the end, empty leaves them."""
        self._done, self._part = self._done + n, 0.0
        self._show(note)

    def reach(self, done: int) -> None:
        """The next one is done, which makes ``done`` with those of an earlier run that this one goes on from."""
        if not self._done:
            self._before = self._done = done - 1
        self.advance(done - self._done)

    def under_way(self, part: float, note: str = "") -> None:
        """Show that ``part`` units of what is not done yet are done, all in all: halves of two are one."""
        self._part = part
        self._show(note)

    def left(self) -> float | None:
        """Seconds to go at the speed so far; None before anything is done."""
        done, gone = self._done + self._part, time.monotonic() - self.began
        here = done - self._before
        return gone * max(self.total - done, 0) / here if here else None

    def _show(self, note: str) -> None:
        self._note = printable(note) or self._note
        said = [one for one in (self._note, self._left_in_words()) if one]
        self.bar.set_postfix_str(", ".join(said), refresh=False)
        self.bar.update(self._done + self._part - self.bar.n)
        _pace.say(", ".join([f"{self.title}: {self._done} of {self.total} {self.unit}".rstrip(), *said]))

    def _left_in_words(self) -> str:
        left = self.left()
        return f"{'at most' if self.at_most else 'about'} {in_words(left)} left" if left else ""


@contextmanager
def progress(description: str, total: int, unit: str = "", at_most: bool = False) -> Iterator[Progress]:
    """Shows how much of ``total`` units of work is done: a bar that is removed at the end, or plain lines.

    Args:
        description: what is done; where it is done goes before it (see :func:`within`).
        unit: what is counted.
        at_most: whether the work may end early, so that the time left is an upper bound.
    """
    title = printable(", ".join([*_PLACE.get(), description]))
    _pace.begin()
    # tqdm writes to standard error, and takes None for: only on a terminal. A kernel has no width that could change.
    notebook = in_notebook()
    shape = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} [{elapsed}{postfix}]"
    try:
        with _bar()(
            desc=title,
            file=getattr(sys.stderr, "unfiltered", sys.stderr),
            total=total,
            disable=_pace.hushed or (False if notebook else None),
            leave=False,
            dynamic_ncols=not notebook,
            ncols=100 if notebook else None,
            bar_format=shape,
            mininterval=0.5,
        ) as bar:
            yield Progress(bar, title, total, unit, at_most, time.monotonic())
    finally:
        _pace.end()


def counted(things: Iterable[T], what: str) -> Iterator[T]:
    """One thing after another; what is shown while it is at hand is within ``row 3 of 12``, if ``what`` is a row."""
    known = list(things)
    with within():
        for number, thing in enumerate(known, 1):
            with within(f"{what} {number} of {len(known)}"):
                yield thing


@contextmanager
def within(place: str = "") -> Iterator[None]:
    """Count all that is shown in the block as one long work. It happens at this place, as ``cell 3 of 12``, if the
    place has a name."""
    before = _PLACE.get()
    _PLACE.set((*before, place) if place else before)
    _pace.begin()
    try:
        if place:
            _pace.say(", ".join(_PLACE.get()))
        yield
    finally:
        _pace.end()
        _PLACE.set(before)
