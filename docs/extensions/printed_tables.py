"""Tables as commands printed them, read out of the files that keep what was printed: no number is typed a second time.

A page asks for one by ``<!-- printed FILE [| first words of its title] [| columns, comma-separated] -->``.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

_MARK = re.compile(r"<!-- printed ([^|\s]+)(?: \| ([^|]*?))?(?: \| ([^|]*?))? -->")
Rows = list[list[str]]


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.connect("source-read", _fill_in)
    return {"parallel_read_safe": True}


def _fill_in(sphinx: Sphinx, name: str, source: list[str]) -> None:
    def table(mark: re.Match[str]) -> str:
        file = Path(sphinx.srcdir, name).parent / mark[1]
        sphinx.env.note_dependency(file)
        return as_markdown(*read_table(file.read_text(encoding="utf-8"), mark[2] or ""), mark[3] or "")

    source[0] = _MARK.sub(table, source[0])


def read_table(text: str, title: str = "") -> tuple[Rows, str]:
    """The first table below a line that begins with a title, its head first, and the line of how many cells agree.

    A cell that was broken over lines is put together: the lines after its first have an empty first cell.

    Raises:
        ValueError: there is none.
    """
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith(title or "┏")), None)
    if begin is None:
        raise ValueError(f"no table {title!r}")
    head: Rows = []
    body: Rows = []
    for number, line in enumerate(lines[begin:], begin):
        if line.startswith("┃"):
            head.append(_cells(line, "┃"))
        elif line.startswith("│"):
            cells = _cells(line, "│")
            if body and not cells[0]:
                body[-1] = [f"{above} {below}".strip() for above, below in zip(body[-1], cells, strict=True)]
            else:
                body.append(cells)
        elif line.startswith("└"):
            after = lines[number + 1] if number + 1 < len(lines) else ""
            return [[" ".join(part) for part in map(_filled, zip(*head, strict=True))], *body], after
    raise ValueError(f"no end of table {title!r}")


def as_markdown(rows: Rows, after: str, columns: str = "") -> str:
    """Markdown of a table with the named columns, all by default.

    Raises:
        ValueError: there is no such column.
    """
    head, *body = rows
    chosen = [head.index(name.strip()) for name in columns.split(",")] if columns else range(len(head))
    lines = [[row[place].replace("|", "\\|") for place in chosen] for row in (head, *body)]
    printed = [f"| {' | '.join(line)} |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])]
    return "\n".join([*printed, "", f"*{after}.*" if " agree" in after else ""])


def _cells(line: str, bar: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip(bar).split(bar)]


def _filled(parts: tuple[str, ...]) -> list[str]:
    return [part for part in parts if part]
