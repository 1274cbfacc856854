"""Columns where a terminal is wide enough for them."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from harness.reports.columns import Column, ColumnSet

_GAP = 2


def columns_that_fit(rows: Sequence[Any], width: int, layouts: Sequence[ColumnSet], style: str = "") -> Table | None:
    """The first layout that shows the rows without cutting an entry, or None.

    Args:
        rows: what the columns show.
        width: characters of the terminal.
        layouts: by preference; columns that concern none of the rows are left out.
        style: of every entry.
    """
    concerned = (tuple(column for column in shown if any(map(column.concerns, rows))) for shown in layouts)
    sized = ((shown, _widths(rows, shown, width)) for shown in concerned)
    return next((_table(rows, shown, widths, style) for shown, widths in sized if widths is not None), None)


def _widths(rows: Sequence[Any], shown: ColumnSet, width: int) -> list[int] | None:
    """The width of each column; None where some entry would be cut. What is to spare goes where words wrap."""
    wished = [max(len(column.title), *(_longest_line(column, row) for row in rows)) for column in shown]
    least = [min(column.wraps_at or wish, wish) for column, wish in zip(shown, wished, strict=True)]
    spare = width - sum(least) - _GAP * (len(shown) - 1)
    if spare < 0:
        return None
    lacking = [wish - own for wish, own in zip(wished, least, strict=True)]
    granted = min(1.0, spare / max(sum(lacking), 1))
    return [own + int(granted * more) for own, more in zip(least, lacking, strict=True)]


def _longest_line(column: Column, row: Any) -> int:
    return max((line.cell_len for line in column.render(row).split()), default=0)


def _table(rows: Sequence[Any], shown: Sequence[Column], widths: Sequence[int], style: str) -> Table:
    edges = {"show_edge": False, "pad_edge": False, "padding": (0, _GAP - 1, 0, 0)}
    table = Table(box=box.SIMPLE_HEAD, style=style, header_style="bold", **edges)
    for column, width in zip(shown, widths, strict=True):
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps_at,
            width=width,
            overflow="fold" if column.wraps_at else "ellipsis",
        )
    for row in rows:
        table.add_row(*(column.render(row) for column in shown), style=style)
    return table
