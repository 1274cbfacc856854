"""A progress bar on standard error that only a person ever sees."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm


@dataclass(frozen=True)
class Progress:
    """A running bar."""

    bar: tqdm

    def advance(self, n: int, note: str = "") -> None:
        """Count ``n`` more as done; ``note`` replaces the words at the end of the bar, empty leaves them."""
        if note:
            self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(n)


@contextmanager
def progress(description: str, total: int) -> Iterator[Progress]:
    """A bar over ``total`` units of work, removed at the end; silent when standard error is not a terminal."""
    # tqdm writes to standard error, and takes None for: only on a terminal.
    with tqdm(desc=description, total=total, disable=None, leave=False, dynamic_ncols=True) as bar:
        yield Progress(bar)
