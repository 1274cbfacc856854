"""A table of the report before it takes a form: HTML, Markdown, CSV, LaTeX and JSON are made of the same values."""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.reports import text


@dataclass(frozen=True)
class Value:
    """An entry: what is shown, and what it is sorted by (a number where it has one).

    ``kind`` is a style of ours, never a word from a result; ``link`` is an address of ours, empty without one.
    """

    shown: str
    order: float | str | None = None
    kind: str = ""
    link: str = ""


@dataclass(frozen=True)
class Head:
    """A column's title; ``choice``: few different words, worth a filter; ``wide``: sentences, ``long`` ones."""

    title: str
    number: bool = False
    choice: bool = False
    wide: bool = False
    long: bool = False


@dataclass(frozen=True)
class Table:
    """``name`` is a word of ours: an anchor on the page, and the file's name in CSV."""

    name: str
    title: str
    columns: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""

    def styles(self, place: int, value: Value) -> str:
        """Styles of ours that an entry of a column has on the page, separated by blanks."""
        column = self.columns[place]
        own = (name for name in ("number", "wide", "long") if getattr(column, name))
        return " ".join(filter(None, (value.kind, *own)))


def words(value: object, longest: int = 600) -> Value:
    """Any text from a result as one safe line."""
    return Value(text.MISSING if value in (None, "") else text.safe(str(value), longest))


def figure(value: float | None, digits: int = 3) -> Value:
    """A number."""
    return Value(text.number(value, digits), value)


def epsilon(value: float | None) -> Value:
    """A proven epsilon; one that is too large to promise anything says so."""
    made, vain = figure(value), text.too_large(value)
    return replace(made, shown=made.shown + vain, kind="nothing") if vain else made


def make(name: str, title: str, columns: Sequence[Head], rows: Sequence[Sequence[Value]], note: str = "") -> Table:
    """A table of the columns that say anything: one where every entry is missing is left out."""
    kept = [place for place in range(len(columns)) if any(row[place].shown != text.MISSING for row in rows)]
    entries = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table(name, title, tuple(columns[place] for place in kept), entries, note)


def folded(table: Table, by: str, without: Sequence[str] = ()) -> Table:
    """Rows that differ only in the column ``by`` as one, which names all of its entries there; columns ``without``,
    which differ in every row anyhow, are left out."""
    titles = [column.title for column in table.columns]
    if by not in titles:
        return table
    at, kept = titles.index(by), [place for place, title in enumerate(titles) if title not in without]
    found: dict[tuple[Value, ...], list[Value]] = {}
    for row in table.rows:
        same = tuple(row[place] for place in kept if place != at)
        found.setdefault(same, []).append(row[at])
    rows = []
    for same, entries in found.items():
        others = iter(same)
        shown = Value(", ".join(dict.fromkeys(one.shown for one in entries)), entries[0].order, entries[0].kind)
        rows.append(tuple(shown if place == at else next(others) for place in kept))
    return replace(table, columns=tuple(table.columns[place] for place in kept), rows=tuple(rows))


def condensed(table: Table) -> Table:
    """Columns in which all rows agree are said once, in the note; that all are of one run goes without saying."""
    if len(table.rows) < 2:
        return table
    first = table.rows[0]
    alike = [
        place for place, value in enumerate(first)
        if not value.kind and all(row[place] == value for row in table.rows)
    ]  # fmt: skip
    if not alike or len(alike) == len(table.columns):
        return table
    kept = [place for place in range(len(table.columns)) if place not in alike]
    said = "; ".join(
        f"{table.columns[place].title}: {first[place].shown}" for place in alike if table.columns[place].title != "run"
    )
    note = f"{table.note} In all rows {said}.".strip() if said else table.note
    return replace(
        table, columns=tuple(table.columns[place] for place in kept), note=note,
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
    )  # fmt: skip


# Tables as Markdown, CSV, LaTeX and JSON. Entries are data: each form escapes what it would obey.

# A spreadsheet takes an entry that starts so for a formula and would run it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# A number as tables print it; and such a number with its interval.
NUMBER = r"[<>]?(-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(%?)"
_WITH_INTERVAL = re.compile(rf"\+?{NUMBER} \[([+-]?[\d.]+)(?:-|, )([+-]?[\d.]+)\]")
# Words for one number, and not for several, as of rows that were folded.
_ONE_NUMBER = re.compile(r"(at most )?[<>-]?[.\d][^,]*(, too large to .*)?$")
#: What stands in a table where there is nothing to say; the field of a CSV file is empty there.
NOTHING = ("", text.MISSING, "-", "–")
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


def latex_words(entry: str) -> str:
    """Words of a result in LaTeX, where nothing in them is a command."""
    return _escaped(text.safe(entry, 600), _LATEX)


def comma_separated(table: Table) -> str:
    """One table; its file is named by the table. An interval has two columns of its own."""
    table = _with_intervals(table)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([harmless(column.title) for column in table.columns])
    writer.writerows([_entry(*pair) for pair in zip(table.columns, row, strict=True)] for row in table.rows)
    return buffer.getvalue()


def _with_intervals(table: Table) -> Table:
    """A column of numbers with their intervals as three: the number, and where its interval begins and ends."""
    heads, columns = list[Head](), list[list[Value]]()
    for place, head in enumerate(table.columns):
        column = [row[place] for row in table.rows]
        found = [_WITH_INTERVAL.fullmatch(value.shown) for value in column]
        if any(found) and all(one or value.shown in NOTHING for one, value in zip(found, column, strict=True)):
            title = head.title.partition(" [")[0]
            heads += [replace(head, title=title + ending, number=True) for ending in ("", " from", " to")]
            split = [_split(value, one) for value, one in zip(column, found, strict=True)]
            columns += [list(part) for part in zip(*split, strict=True)]
        else:
            heads.append(head)
            columns.append(column)
    return replace(table, columns=tuple(heads), rows=tuple(zip(*columns, strict=True)) if table.rows else ())


def _split(value: Value, found: re.Match[str] | None) -> tuple[Value, Value, Value]:
    if found is None:
        return Value(""), Value(""), Value("")
    number, percent, *ends = found.groups()
    low, high = (end.removeprefix("+") for end in ends)
    order = value.order if isinstance(value.order, int | float) else as_number(number, percent)
    return Value(number, order), Value(low, as_number(low, percent)), Value(high, as_number(high, percent))


def as_number(printed: str, percent: str = "") -> float:
    """A number as tables print it; of a percentage its share."""
    return float(printed.replace(",", "")) / (100 if percent else 1)


def _entry(head: Head, value: Value) -> str:
    """A number itself, which words such as "12.5% [5.6-23.2]" would have to be taken apart for."""
    if value.shown in NOTHING:
        return ""
    if head.number and isinstance(value.order, int | float) and _ONE_NUMBER.match(value.shown):
        return f"{value.order:.10g}"
    return harmless(value.shown)


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


def harmless(entry: str) -> str:
    """Return the entry with a quote before what a spreadsheet would take for a formula."""
    number = entry.removeprefix("-").replace(".", "", 1).removesuffix("%")
    bare = not number or number.isdigit()  # a lone dash stands for nothing
    return f"'{entry}" if entry.startswith(_FORMULA) and not bare else entry
