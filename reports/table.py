"""The results of a run for a terminal: columns where they fit, one block per cell where they don't."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.reports import columns, text
from harness.reports.columns import CONTROLS, MEDIUM, WIDE, Column, ColumnSet
from harness.reports.headline import verdict_lines
from harness.results import CellResult, ResultDocument, SummaryRow
from harness.scoring.strongest import of_document
from harness.scoring.verdict import CONFIRMED_SUCCESSES

# Columns where a terminal is wide enough for them.

_GAP, _ROOMY = 2, 100


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


# What the strongest attack decides, in a few lines below the cells.


def strongest_block(rows: Iterable[SummaryRow], width: int) -> list[RenderableType]:
    """The verdicts over several attacks; nothing where each place was attacked by one alone whose cell says it all.

    Args:
        rows: the summary of a document.
        width: characters of the terminal; where the columns do not fit well, two lines for places with the same words.
    """
    groups: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in rows:
        if len(row.attacks) > 1 or _says_less(row):
            groups[columns.setting(row)].append(row)
    parts: list[RenderableType] = []
    for setting, members in groups.items():
        shown = (columns_that_fit(members, width, (_SUMMARY,)) if width >= _ROOMY else None) or _lines(members)
        tried = dict.fromkeys(f" | {text.safe(row.suite, 24)}" for row in members if row.suite)
        title = f"the strongest attack decides: {setting}{''.join(tried)}"
        parts += [Text(title, style="bold"), shown, Text()]
    return parts


def _says_less(row: SummaryRow) -> bool:
    """Return whether the place claims less than its attack: a cell of several examples, or of an unfit attack."""
    return row.shown != "resilient" and any(one.verdict == "resilient" for one in row.attacks)


def _verdict(row: SummaryRow) -> Text:
    shown = columns.verdict_word(row.shown)
    return shown.append("\nidentifies", style=columns.VERDICT_STYLES["identifies"]) if row.identifies else shown


def _strongest(row: SummaryRow) -> str:
    return text.safe(row.strongest or "no attack works", 24)


def _tier(row: SummaryRow) -> str:
    """Return what the strongest attack knows of the defense; where none works, what the one that knows most does."""
    return next((one.tier for one in row.attacks if one.attack == row.strongest), row.tier)


def _why(row: SummaryRow) -> str:
    return text.headed(row)


def _uninformative(row: SummaryRow) -> str:
    return ", ".join(
        dict.fromkeys(
            text.safe(attack.attack, 24) for attack in row.attacks if not (attack.informative or attack.skipped)
        )
    )


def _lines(rows: Iterable[SummaryRow]) -> RenderableType:
    same: dict[tuple[str, ...], list[SummaryRow]] = {}
    for row in rows:
        told = "identifies, " if row.identifies else ""
        idle = f"; uninformative or not run: {_uninformative(row)}" if _uninformative(row) else ""
        why = f"{_strongest(row)} ({_tier(row)}): {_why(row)}{idle}"
        names = " ".join(filter(None, (text.safe(row.defense, 40), text.arguments(row.defense, row.defense_args))))
        same.setdefault((row.shown, f"  {told}{names}", columns.circumstances(row), why), []).append(row)
    lines: list[RenderableType] = []
    for (word, who, seen, why), own in same.items():
        kind = "tap" if any(row.surface is None for row in own) else "surface"
        where = ", ".join(dict.fromkeys(map(columns.surface, own)))
        lines.append(Text.assemble(columns.verdict_word(word), f"{who} / {kind} {where}{seen}"))
        lines.append(Padding(Text(why), (0, 0, 0, 4), expand=False))
    return Group(*lines)


_SUMMARY = (
    columns.DEFENSE,
    columns.SURFACE,
    columns.ROUND,
    columns.LOOKS,
    Column("verdict", _verdict),
    Column("strongest", lambda row: Text(_strongest(row)).append(f"\n{_tier(row)}", style="dim")),
    Column("why", _why, wraps_at=24),
    Column("uninformative", _uninformative, wraps_at=14, concerns=lambda row: bool(_uninformative(row))),
)


_MEANING = (
    "leaks: the attack reconstructs private {many}, or its output is closer to the true {one} than to similar {many} "
    "(p < 0.001). resilient: no leak was found, the attack works without the defense, and at most 5% of victims can be "
    "reconstructed (95% confidence). inconclusive: the evidence supports neither claim. plain: the attacker does not "
    "know the noise; informed: it knows the defense and its settings; tampering: it also sends manipulated weights."
)


def print_results(document: ResultDocument, console: Console, folder: Path | None = None) -> None:
    """Print the verdict, then the results, laid out for the console's width.

    Args:
        document: what to print; its text is data, so neither markup nor control codes in it take effect.
        console: where to print.
        folder: the run folder to name in the footer.
    """
    shown = document if document.valid else _without_verdicts(document)
    for line in verdict_lines(document):
        console.print(line)
    console.print(results_table(shown, console.width))
    console.print(_footer(shown, folder))


def _without_verdicts(document: ResultDocument) -> ResultDocument:
    """The results of a run whose verdicts must not be used; those of its controls stay, as one of them may be why."""
    none = {"verdict": "invalid", "verdict_reason": "", "flags": []}
    cells = [cell.model_copy(update=none) if cell.role == "cell" else cell for cell in document.cells]
    return document.model_copy(update={"cells": cells, "summary": []})


def results_table(document: ResultDocument, width: int = 120) -> RenderableType:
    """Cells grouped by what they have in common, what the strongest attack decides, then dimmed their controls, then
    why cells prove nothing.

    Args:
        document: the results.
        width: characters of the terminal. Where not all columns fit, the chief ones are shown; where these do not
            fit either, a table per defense with its guarantees below, and below 80 characters a block of lines per
            cell.
    """
    cells = [cell for cell in document.cells if cell.role == "cell"]
    controls = _distinct(cell for cell in document.cells if cell.role == "control")
    parts: list[RenderableType] = []
    for setting, members in _grouped(cells).items():
        parts += [Text(setting, style="bold"), _cells(members, width, (WIDE, MEDIUM)), Text()]
    parts += strongest_block(document.summary, width)
    for setting, members in _grouped(controls).items():
        parts += [Text(f"controls: {setting}", style="dim"), _cells(members, width, (CONTROLS,), style="dim"), Text()]
    below = (*_reasons(cells), *_unfit(cells), *_warnings(cells), *_units(cells), *_repeated(cells))
    return Group(*parts, *below, *_claims(cells)) if parts else Text("no cells\n")


def _distinct(controls: Iterable[CellResult]) -> list[CellResult]:
    """Controls that attacked the same observation (as surfaces often show the same) once."""
    seen = {(cell.observation_id, cell.attack, cell.control, str(cell.attack_args)): cell for cell in controls}
    return list(seen.values())


def _units(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Return what clipping and noise apply to, once per defense."""
    sentences = {text.safe(cell.defense, 40): text.safe(cell.units, 400) for cell in cells if cell.units}
    return [Text(f"{name}: {sentence}", style="dim") for name, sentence in sentences.items()]


def _claims(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Claimed, proven and why, of all cells whose defense is a framework's filter."""
    said = text.claimed_and_proven(one for cell in cells for one in cell.privacy)
    return [Text(line, style="dim") for line in said]


def _repeated(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Return what an epsilon beside repeated looks does not say."""
    if not any(statement.epsilon is not None for cell in cells if cell.observations > 1 for statement in cell.privacy):
        return []
    words = "seen Rx: the attacker averages R observations of a record; epsilon counts one; for R, compose it R times"
    return [Text(words, style="dim")]


def _grouped(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    groups: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        groups[columns.setting(cell)].append(cell)
    return groups


def _cells(cells: Sequence[CellResult], width: int, layouts: Sequence[ColumnSet], style: str = "") -> RenderableType:
    """The first layout that fits, else a table per defense, else blocks."""
    own = columns.own_columns(cells)
    wide = columns_that_fit(cells, width, [(*layout, *own) for layout in layouts], style)
    return wide or _by_defense(cells, width, style) or _blocks(cells, style)


def _by_defense(cells: Sequence[CellResult], width: int, style: str) -> RenderableType | None:
    """A narrow table for each defense, and below it what is proven; None where one does not fit.

    What did not run is left out: why stands below all tables.
    """
    groups: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        names = (text.safe(cell.defense, 40), text.arguments(cell.defense, cell.defense_args))
        groups[" ".join(filter(None, names))].append(cell)
    parts: list[RenderableType] = []
    for name, members in groups.items():
        ran = [cell for cell in members if cell.not_applicable_reason is None] or members
        table = columns_that_fit(columns.together(ran), width, (columns.NARROW,), style)
        if table is None:
            return None
        below = [Padding(Text(line, style=style), (0, 0, 0, 2), expand=False) for line in _below(ran)]
        parts += [*([Text()] if parts else []), Text(name, style=style or "bold"), table, *below]
    return Group(*parts)


def _below(cells: Iterable[CellResult]) -> list[str]:
    """Return what a narrow table has no columns for: each line once, with the places and attacks that it concerns."""
    lines: dict[str, list[CellResult]] = defaultdict(list)
    of_places = set[str]()
    for cell in cells:
        if cell.role != "cell":
            continue
        if cell.privacy:
            for line in columns.guarantees(cell).splitlines():
                of_places.add(f"guarantee: {line}")
                lines[f"guarantee: {line}"].append(cell)
        if columns.THEOREM.concerns(cell):
            lines[f"{columns.THEOREM.title}: {columns.first_in_lineup(cell)}"].append(cell)
        if columns.DETECTABLE.concerns(cell):
            lines[f"{columns.DETECTABLE.title}: {'; '.join(columns.detectable(cell).splitlines())}"].append(cell)
    return [f"{line} ({_attacks_at(own, line not in of_places)})" for line, own in lines.items()]


def _attacks_at(cells: Iterable[CellResult], named: bool) -> str:
    """The surfaces of some cells of one defense, and their attacks if ``named``."""
    at: dict[str, dict[str, None]] = {}
    for cell in cells:
        name = columns.attacker(cell, 24) if named else ""
        at.setdefault(name, {})[columns.surface(cell) + columns.circumstances(cell)] = None
    alike: dict[str, list[str]] = {}
    for name, places in at.items():
        taps, surfaces = ([one for one in places if one.startswith("T") == taps] for taps in (True, False))
        said = [f"{kind} {', '.join(those)}" for kind, those in (("surface", surfaces), ("tap", taps)) if those]
        alike.setdefault(", ".join(said), []).append(name)
    return "; ".join(f"{', '.join(names)}, {at}".removeprefix(", ") for at, names in alike.items())


def _blocks(cells: Sequence[CellResult], style: str) -> RenderableType:
    """Each cell as a headline and indented lines."""
    lines: list[RenderableType] = []
    for cell in cells:
        place = f"tap {columns.surface(cell)}" if cell.surface is None else f"surface {cell.surface}"
        attack = f"{columns.attacker(cell, 24)} ({cell.tier})"
        names = f"{text.safe(cell.defense, 40)} / {attack} / {place}{columns.circumstances(cell)}"
        control = f"{text.safe(cell.control, 24)}: " if cell.control else ""
        lines.append(Text.assemble(control, columns.verdict(cell), f"  {names}", style=style))
        lines += [Padding(Text(line, style=style), (0, 0, 0, 4), expand=False) for line in _details(cell)]
    return Group(*lines)


def _details(cell: CellResult) -> list[str]:
    """The lines below a cell's headline; those that would say nothing are left out."""
    told = (f"identified {columns.identified(cell)}", f"lineup p {columns.lineup(cell)}", columns.outcomes(cell))
    measured = (
        f"success {columns.success_rate(cell)}",
        "" if columns.is_of_texts(cell) else f"RMSE median/mean {columns.error(cell)}",
        *(f"{column.title} {column.render(cell)}" for column in columns.OTHER_ERRORS if column.concerns(cell)),
        "" if columns.is_table(cell) or columns.is_of_texts(cell) else f"PSNR {text.mean(cell.metrics.get('psnr'), 1)}",
        *(f"{column.title} {column.render(cell)}" for column in columns.own_columns([cell])),
    )
    judged = (
        f"lineup p {columns.lineup(cell)}",
        f"labels {columns.label_accuracy(cell)}",
        f"tau {text.mean(cell.metrics.get('tau'), 0)}",
        columns.outcomes(cell),
    )
    possible = cell.not_applicable_reason is None
    lines = [text.arguments(cell.defense, cell.defense_args)]
    facts = (measured, judged) if cell.identified is None else (told,)
    lines += ["; ".join(filter(None, some)) for some in facts] if possible else []
    lines += [f"{columns.THEOREM.title}: {columns.first_in_lineup(cell)}"] if columns.THEOREM.concerns(cell) else []
    if columns.DETECTABLE.concerns(cell):
        lines.append(f"{columns.DETECTABLE.title}: {'; '.join(columns.detectable(cell).splitlines())}")
    lines += columns.guarantees(cell).splitlines() if cell.privacy and cell.role == "cell" else []
    return list(filter(None, lines))


def _reasons(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Each reason once, with the cells it stands for: why nothing is claimed, or what leaks where images do not."""
    affected: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        if said := _reason_below(cell):
            kind = cell.verdict if cell.not_applicable_reason is None else columns.unrun(cell)
            reason = text.safe(said, 300)
            affected[reason if cell.settled_by else f"{kind}: {reason}"].append(cell)
    return [Text(f"{reason} ({_places(own)})") for reason, own in affected.items()]


def _reason_below(cell: CellResult) -> str | None:
    """Return the reason of a cell's verdict where one stands below the table."""
    if cell.verdict == "inconclusive" or (cell.verdict == "leaks" and cell.confirmed < CONFIRMED_SUCCESSES):
        return cell.not_applicable_reason or cell.verdict_reason or "no reason recorded"
    return None


def _places(cells: Iterable[CellResult]) -> str:
    """Defense, attack and surfaces of some cells."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        who = f"{text.safe(cell.defense, 40)} / {columns.attacker(cell, 24)}"
        found.setdefault(who, {})[columns.surface(cell) + columns.circumstances(cell)] = None
    return "; ".join(f"{who} / {', '.join(places)}" for who, places in found.items())


def _unfit(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Return why attacks were not fit to find anything, with the cells it concerns."""
    said = _said(cells, lambda cell: [flag for flag in cell.flags if flag != _reason_below(cell)])
    return [Text(f"attack unfit: {flag} ({places})") for flag, places in said]


def _warnings(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Return what contradicts what was declared, with the cells it was seen in."""
    said = _said(cells, lambda cell: [one for one in cell.warnings if one not in (*cell.flags, _reason_below(cell))])
    return [Text(f"warning: {warning} ({places})", style="bold") for warning, places in said]


def _said(cells: Iterable[CellResult], of: Callable[[CellResult], list[str]]) -> list[tuple[str, str]]:
    """Each sentence on cells once, with the cells."""
    affected: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        for sentence in of(cell):
            affected[text.safe(sentence, 300)].append(cell)
    return [(sentence, _places(own)) for sentence, own in affected.items()]


def _footer(document: ResultDocument, folder: Path | None) -> Text:
    counted = of_document(document.summary, document.cells)
    meaning = _MEANING.format(**asdict(columns.kinds_of(document.cells)))
    footer = Text("\n".join(["", meaning, *([counted.words] if counted else []), ""]), style="dim")
    if document.valid:
        footer.append(
            "The run is valid: no negative control failed, and no attack exceeded a proven bound.",
            style="not dim",  # of the run, not of a defense: nothing here is good news
        )
    else:
        reason = text.safe(document.valid_reason or "a negative control failed", 300)
        state = "INVALID" if document.complete else "UNFINISHED"
        footer.append(f"THE RUN IS {state}, its verdicts must not be used: {reason}", style="not dim bold red")
    if folder is not None:
        there = [name for name in ("results.json", "victims.jsonl", "pictures") if (folder / name).exists()]
        footer.append(f"\nFiles: {text.safe(str(folder), 500)} ({', '.join(there)})", style="not dim")
    return footer
