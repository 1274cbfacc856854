"""What a command printed as a file: its tables and the lines around them, as JSON, CSV, a page or LaTeX."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from harness.base.kinds import IMAGES
from harness.reports.html.page import render
from harness.reports.html.table import NOTHING, Head, Table, Value, comma_separated, latex

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
        return comma_separated(_in_numbers(whole)).encode("utf-8-sig"), len(tables) - len(alike)
    if ending == ".tex":
        return latex(tables).encode(), 0
    if ending == ".html":
        numbers = iter(tables)
        shown = [next(numbers) if isinstance(part, Table) else part for part in parts]
        return render("printed.html.j2", IMAGES, command=command, parts=shown).encode(), 0
    document = {"kind": "printed", "command": command, "parts": [_plain(part) for part in parts]}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(), 0


# A number as tables print it, and such a number with its interval.
_NUMBER = r"[<>]?(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(%?)"
_ONE = re.compile(_NUMBER)
_WITH_INTERVAL = re.compile(rf"{_NUMBER} \[(-?[\d.]+)-(-?[\d.]+)\]")


def _in_numbers(table: Table) -> Table:
    """Columns of numbers as numbers: percentages as shares, and an interval as two columns of their own.

    A column stays as it is printed where an entry is anything else, such as several numbers or a word beside one.
    """
    heads, columns = list[Head](), list[list[Value]]()
    for place, head in enumerate(table.columns):
        shown = [row[place].shown for row in table.rows]
        said = [one for one in shown if one not in NOTHING]
        if said and all(map(_WITH_INTERVAL.fullmatch, said)):
            title = head.title.partition(" [")[0]
            heads += [replace(head, title=title + ending, number=True) for ending in ("", " from", " to")]
            columns += [list(column) for column in zip(*map(_with_interval, shown), strict=True)]
        elif said and all(_ONE.fullmatch(one) and one[0] not in "<>" for one in said):
            heads.append(replace(head, number=True))
            columns.append([_number(one) for one in shown])
        else:
            heads.append(head)
            columns.append([row[place] for row in table.rows])
    return replace(table, columns=tuple(heads), rows=tuple(zip(*columns, strict=True)))


def _number(shown: str) -> Value:
    if shown in NOTHING:
        return Value("")
    number, percent = _ONE.fullmatch(shown).groups()  # type: ignore[union-attr]
    value = float(number.replace(",", "")) / (100 if percent else 1)
    return Value(f"{value:.10g}", value)


def _with_interval(shown: str) -> tuple[Value, Value, Value]:
    if shown in NOTHING:
        return Value(""), Value(""), Value("")
    number, percent, low, high = _WITH_INTERVAL.fullmatch(shown).groups()  # type: ignore[union-attr]
    return _number(number + percent), _number(low + percent), _number(high + percent)


def _tables(parts: Sequence[Part]) -> list[Table]:
    return [part for part in parts if isinstance(part, Table)]


def _plain(part: Part) -> dict[str, object]:
    if isinstance(part, str):
        return {"text": part}
    rows = [[value.shown for value in row] for row in part.rows]
    return {"title": part.title, "columns": [column.title for column in part.columns], "rows": rows}
