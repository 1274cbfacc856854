"""What commands print: on the screen of all of them nothing that a name or a file holds is markup or an escape code."""

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from harness.base.errors import escaped, printable


class Screen(Console):
    """Standard output for tables; styles are the tables' own.

    Args:
        least: characters of a line at least, where standard output is no terminal, or a narrow one.
    """

    def __init__(self, least: int = 0) -> None:
        super().__init__(file=getattr(sys.stdout, "unfiltered", sys.stdout), markup=False, emoji=False)
        self.width = max(self.width, least)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, piece by piece; codes that rich itself makes are pieces of their own."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(escaped(piece.text), piece.style)


def note(line: str) -> None:
    """Says a line on standard error."""
    print(printable(line), file=sys.stderr)
