"""Tables as Markdown, CSV, LaTeX and JSON. Entries are data: each form escapes what it would obey."""

import csv
import io
import json
import re
from collections.abc import Sequence

from harness.reports.html.table import Head, Table, Value

# A spreadsheet takes an entry that starts so for a formula and would run it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Words for one number, and not for several, as of rows that were folded.
_ONE_NUMBER = re.compile(r"(at most )?[<>-]?[.\d][^,]*(, too large to .*)?$")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "✔": r"$\checkmark$", "✖": r"$\times$", "·": r"$\cdot$", "–": "--",
    "…": r"\ldots{}",
}  # fmt: skip
_MARKDOWN = {mark: f"\\{mark}" for mark in "\\`*_{}[]()#+!|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def markdown(tables: Sequence[Table]) -> str:
    """All tables under their titles."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    def line(entries: Sequence[str]) -> str:
        return f"| {' | '.join(_escaped(entry, _MARKDOWN) for entry in entries)} |"

    rule = "|" + "|".join("---:" if column.number else "---" for column in table.columns) + "|"
    lines = [line([column.title for column in table.columns]), rule]
    lines += [line([value.shown for value in row]) for row in table.rows]
    note = f"\n{_escaped(table.note, _MARKDOWN)}\n" if table.note else ""
    return f"## {_escaped(table.title, _MARKDOWN)}\n\n" + "\n".join(lines) + "\n" + note


def latex(tables: Sequence[Table]) -> str:
    """All tables with booktabs' rules, ready to be included."""
    return "% needs \\usepackage{booktabs,amssymb,graphicx}\n" + "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    def line(entries: Sequence[str]) -> str:
        return " & ".join(_escaped(entry, _LATEX) for entry in entries) + r" \\"

    rows = "\n".join(line([value.shown for value in row]) for row in table.rows)
    align = "".join("r" if column.number else "l" for column in table.columns)
    return (
        f"\\begin{{table}}[t]\n\\caption{{{_escaped(table.title, _LATEX)}}}\n\\label{{tab:{table.name}}}\n\\centering\n"
        f"\\resizebox{{\\linewidth}}{{!}}{{%\n\\begin{{tabular}}{{{align}}}\n\\toprule\n"
        f"{line([column.title for column in table.columns])}\n\\midrule\n{rows}\n\\bottomrule\n\\end{{tabular}}}}\n"
        "\\end{table}\n"
    )


def comma_separated(table: Table) -> str:
    """One table; its file is named by the table."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_harmless(column.title) for column in table.columns])
    writer.writerows([_entry(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows)
    return buffer.getvalue()


def _entry(head: Head, value: Value) -> str:
    """A number itself, which words such as "12.5% [5.6-23.2]" would have to be taken apart for."""
    if head.number and isinstance(value.order, int | float) and _ONE_NUMBER.match(value.shown):
        return f"{value.order:.10g}"
    return _harmless(value.shown)


def as_json(tables: Sequence[Table]) -> str:
    """All tables; numbers come beside the words that are shown for them."""
    documents = [
        {
            "name": table.name,
            "title": table.title,
            "note": table.note,
            "columns": [column.title for column in table.columns],
            "rows": [[value.shown for value in row] for row in table.rows],
            "values": [[value.order for value in row] for row in table.rows],
        }
        for table in tables
    ]
    return json.dumps({"kind": "report", "tables": documents}, indent=1, ensure_ascii=False) + "\n"


def _escaped(entry: str, marks: dict[str, str]) -> str:
    return "".join(marks.get(mark, mark) for mark in entry)


def _harmless(entry: str) -> str:
    number = entry.removeprefix("-").replace(".", "", 1).removesuffix("%")
    return f"'{entry}" if entry.startswith(_FORMULA) and not number.isdigit() else entry
