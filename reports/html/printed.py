"""What a command printed as a file: its tables and the lines around them, as JSON, CSV, a page or LaTeX."""

import json
from collections.abc import Sequence
from dataclasses import replace

from harness.base.kinds import IMAGES
from harness.reports.html.page import render
from harness.reports.html.table import Table, comma_separated, latex

#: How files of printed tables end.
ENDINGS = (".json", ".csv", ".html", ".tex")

Part = Table | str


def printed(command: str, parts: Sequence[Part], ending: str) -> tuple[bytes, int]:
    """The file, and how many tables it has no room for: CSV holds those that have the columns of the first.

    Args:
        command: the line that printed them, for the title.
        parts: tables, and lines between them, in their order.
        ending: one of ``ENDINGS``.
    """
    tables = [
        replace(part, name=f"table-{number}", title=part.title or f"Table {number}")
        for number, part in enumerate(_tables(parts), 1)
    ]
    if ending == ".csv":
        alike = [one for one in tables if one.columns == tables[0].columns]
        whole = replace(tables[0], rows=tuple(row for one in alike for row in one.rows))
        return comma_separated(whole).encode("utf-8-sig"), len(tables) - len(alike)
    if ending == ".tex":
        return latex(tables).encode(), 0
    if ending == ".html":
        numbers = iter(tables)
        shown = [next(numbers) if isinstance(part, Table) else part for part in parts]
        return render("printed.html.j2", IMAGES, command=command, parts=shown).encode(), 0
    document = {"kind": "printed", "command": command, "parts": [_plain(part) for part in parts]}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(), 0


def _tables(parts: Sequence[Part]) -> list[Table]:
    return [part for part in parts if isinstance(part, Table)]


def _plain(part: Part) -> dict[str, object]:
    if isinstance(part, str):
        return {"text": part}
    rows = [[value.shown for value in row] for row in part.rows]
    return {"title": part.title, "columns": [column.title for column in part.columns], "rows": rows}
