"""The verdict of a run in a few lines, which stand above its table in a terminal."""

from rich.console import RenderableType
from rich.text import Text

from harness.reports import columns, text
from harness.results import CellResult, ResultDocument, SummaryRow
from harness.scoring.summarise import TELLS
from harness.scoring.verdict import CONFIRMED_SUCCESSES

#: What stands beside every verdict.
PROMISE = "An observation, not a promise: another attack may succeed."
_WORDS = {"leaks": "leaks", "inconclusive": "undecided", "resilient": "withstood"}
_WIDEST = max(map(len, _WORDS.values())) + 2


def verdict_lines(document: ResultDocument) -> list[RenderableType]:
    """The verdict over all places, what it is not, and a line for each defense by what was found about it.

    Only where every place withstood the first line is green: one that leaks or could not be decided says more.
    """
    if not document.summary:
        return []
    if not document.valid:
        return [Text("No verdict: the run is not valid, and the last lines say why.", style="bold red"), Text()]
    said = [row.shown for row in document.summary]
    counts = {kind: said.count(kind) for kind in _WORDS if kind in said}
    gravest = next(iter(counts))
    told = "; ".join(f"{_WORDS[kind]} at {count} of {len(said)} places" for kind, count in counts.items())
    told = told if len(said) > 1 else _WORDS[gravest]
    first = Text(f"{told[0].upper()}{told[1:]}.", style=columns.VERDICT_STYLES[gravest])
    return [first, Text(PROMISE), *_by_defense(document), Text()]


def _by_defense(document: ResultDocument) -> list[Text]:
    """Places of which the same is said share a line."""
    cells = {cell.key: cell for cell in document.cells if cell.key}
    settings = {columns.setting(row) for row in document.summary}
    found: dict[tuple[str, ...], list[str]] = {}
    for row in document.summary:
        on = f" on {columns.setting(row)}" if len(settings) > 1 else ""
        defense = "none (no defense)" if row.defense == "none" else text.safe(row.defense, 40)
        name = " ".join(filter(None, (defense, text.arguments(row.defense, row.defense_args))))
        same = (row.shown, name + on, _reached(row, columns.strongest(row, cells)), columns.circumstances(row))
        found.setdefault(same, []).append(columns.surface(row))
    lines = []
    for (kind, name, reached, seen), places in found.items():
        where = f"{'surface' if all(map(str.isdigit, places)) else 'tap'} {', '.join(dict.fromkeys(places))}{seen}"
        word = Text(_WORDS[kind].ljust(_WIDEST), style=columns.VERDICT_STYLES[kind])
        lines.append(Text("  ").append_text(word).append(f"{name}, {where}: {reached}"))
    return lines


def _reached(row: SummaryRow, cell: CellResult | None) -> str:
    if row.headline.startswith(TELLS):
        return text.safe(row.headline, 200)
    if row.strongest is None or cell is None:
        tried = any(one.informative for one in row.attacks)
        return text.safe(text.reason(row.verdict_reason), 120) if tried else "no attack works"
    rate = columns.success_rate(cell) if columns.reconstructs(cell) else columns.identified(cell)
    traces = ""
    if row.shown == "leaks" and cell.confirmed < CONFIRMED_SUCCESSES:  # a leak that no eye sees
        traces = f", traces (p {text.p_value(cell.tested_p)})"
    return f"{rate} by {text.safe(row.strongest, 24)}{traces}"
