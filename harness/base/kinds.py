"""What one example is called, by the kind of the data: an image, a row of a table, a text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """The words for one example and for many."""

    one: str
    many: str


IMAGES, ROWS, TEXTS = Kind("image", "images"), Kind("table row", "table rows"), Kind("text", "texts")
