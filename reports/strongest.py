"""What the strongest attack decides, in a few lines below the cells."""

from collections import defaultdict
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from harness.reports import columns, text
from harness.reports.columns import Column
from harness.reports.fitting import columns_that_fit
from harness.results import SummaryRow


def strongest_block(rows: Iterable[SummaryRow], width: int) -> list[RenderableType]:
    """The verdicts over several attacks; nothing where each place was attacked by one alone whose cell says it all.

    Args:
        rows: the summary of a document.
        width: characters of the terminal; where the columns do not fit, two lines per row.
    """
    groups: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in rows:
        if len(row.attacks) > 1 or _says_less(row):
            groups[columns.setting(row)].append(row)
    parts: list[RenderableType] = []
    for setting, members in groups.items():
        shown = columns_that_fit(members, width, (_SUMMARY,)) or _lines(members)
        tried = dict.fromkeys(f" | {text.safe(row.suite, 24)}" for row in members if row.suite)
        title = f"the strongest attack decides: {setting}{''.join(tried)}"
        parts += [Text(title, style="bold"), shown, Text()]
    return parts


def _says_less(row: SummaryRow) -> bool:
    """Whether the place claims less than its attack: a cell of several examples, or of an unfit attack."""
    return row.shown != "resilient" and any(one.verdict == "resilient" for one in row.attacks)


def _verdict(row: SummaryRow) -> Text:
    shown = columns.verdict_word(row.shown)
    return shown.append("\nidentifies", style=columns.VERDICT_STYLES["identifies"]) if row.identifies else shown


def _strongest(row: SummaryRow) -> str:
    return text.safe(row.strongest or "none works", 24)


def _tier(row: SummaryRow) -> str:
    """What the strongest attack knows of the defense; where none works, what the one that knows most does."""
    return next((one.tier for one in row.attacks if one.attack == row.strongest), row.tier)


def _strongest_and_tier(row: SummaryRow) -> Text:
    return Text(_strongest(row)).append(f"\n{_tier(row)}", style="dim")


def _why(row: SummaryRow) -> str:
    return text.headed(row.headline, row.verdict_reason)


def _uninformative(row: SummaryRow) -> str:
    return ", ".join(text.safe(attack.attack, 24) for attack in row.attacks if not attack.informative)


def _lines(rows: Iterable[SummaryRow]) -> RenderableType:
    lines = Text()
    for row in rows:
        place = f"tap {columns.surface(row)}" if row.surface is None else f"surface {row.surface}"
        seen = columns.circumstances(row)
        told = "identifies, " if row.identifies else ""
        lines.append_text(columns.verdict_word(row.shown)).append(
            f"  {told}{text.safe(row.defense, 40)} / {place}{seen}\n"
        )
        idle = f"; uninformative or not run: {_uninformative(row)}" if _uninformative(row) else ""
        lines.append(f"    {_strongest(row)} ({_tier(row)}): {_why(row)}{idle}\n")
    return lines


_SUMMARY = (
    columns.DEFENSE,
    columns.SURFACE,
    columns.ROUND,
    columns.LOOKS,
    Column("verdict", _verdict),
    Column("strongest", _strongest_and_tier),
    Column("why", _why, wraps_at=24),
    Column("uninformative", _uninformative, wraps_at=14, concerns=lambda row: bool(_uninformative(row))),
)
