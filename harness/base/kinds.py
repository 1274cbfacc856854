"""Words for an example, by the kind of the data: an image, a row of a table, or a text; and for how many of them."""

from collections.abc import Container, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """The words for one example, for many, and for what counts as one that came back."""

    one: str
    many: str
    success: str


IMAGES = Kind("image", "images", "RMSE at most 0.1")
ROWS = Kind("table row", "table rows", "every category right, RMSE at most 0.1 std")
TEXTS = Kind("text", "texts", "every token right, in order")
EVERY = (IMAGES, ROWS, TEXTS)


def plural(count: object, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def kind_of(measured: Container[str]) -> Kind:
    """The kind of what was measured, by the names of its metrics; images where nothing was."""
    if "text_exact" in measured:
        return TEXTS
    return ROWS if "categorical_accuracy" in measured else IMAGES


def together(kinds: Iterable[Kind]) -> Kind:
    """The words for examples of all these kinds; of images where there are none."""
    there = set(kinds)
    found = [kind for kind in EVERY if kind in there] or [IMAGES]
    if len(found) == 1:
        return found[0]
    success = "; ".join(f"of {kind.many} {kind.success}" for kind in found)
    return Kind(_joined([kind.one for kind in found]), _joined([kind.many for kind in found]), success)


def _joined(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
