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
    fitting = (shown for shown in concerned if _needed(rows, shown) <= width)
    shown = next(fitting, None)
    return None if shown is None else _table(rows, shown, style)


def _needed(rows: Sequence[Any], shown: ColumnSet) -> int:
    """The fewest characters in which no entry is cut."""
    # Where room is scarce the table gives all that wrap the same width, and more to those that need it.
    wrapping = max((column.wraps_at for column in shown), default=0)
    fixed = [column for column in shown if not column.wraps_at]
    widths = [max(len(column.title), *(column.render(row).cell_len for row in rows)) for column in fixed]
    return sum(widths) + wrapping * (len(shown) - len(fixed)) + _GAP * (len(shown) - 1)


def _table(rows: Sequence[Any], shown: Sequence[Column], style: str) -> Table:
    edges = {"show_edge": False, "pad_edge": False, "padding": (0, _GAP - 1, 0, 0)}
    table = Table(box=box.SIMPLE_HEAD, style=style, header_style="bold", **edges)
    for column in shown:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps_at,
            min_width=column.wraps_at or None,
            overflow="fold" if column.wraps_at else "ellipsis",
        )
    for row in rows:
        table.add_row(*(column.render(row) for column in shown), style=style)
    return table
