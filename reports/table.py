"""The results of a run for a terminal: columns where they fit, one block per cell where they don't."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.reports import columns, text
from harness.reports.columns import CONTROLS, MEDIUM, WIDE, Layout
from harness.results import CellResult, ResultDocument

_GAP = 2

_MEANING = (
    "leaks: private images come back, closer to the truth than to look-alikes. "
    "resilient: they do not, the attack is proven to work without the defense, and at most 5% of victims can "
    "succumb (95% confidence). inconclusive: neither may be claimed."
)


def print_results(document: ResultDocument, console: Console, folder: Path | None = None) -> None:
    """Print the results, laid out for the console's width.

    Args:
        document: what to print; its text is data, so neither markup nor control codes in it take effect.
        console: where to print.
        folder: the run folder to name in the footer.
    """
    console.print(results_table(document, console.width))
    console.print(_footer(document, folder))


def results_table(document: ResultDocument, width: int = 120) -> RenderableType:
    """Cells grouped by what they have in common, then dimmed their controls, then why cells prove nothing.

    Args:
        document: the results.
        width: characters of the terminal. Where not all columns fit, the chief ones are shown; where these do not
            fit either, a block of lines per cell.
    """
    cells = [cell for cell in document.cells if cell.role == "cell"]
    controls = _distinct(cell for cell in document.cells if cell.role == "control")
    parts: list[RenderableType] = []
    for setting, members in _grouped(cells).items():
        parts += [Text(setting, style="bold"), _cells(members, width, (WIDE, MEDIUM)), Text()]
    for setting, members in _grouped(controls).items():
        parts += [Text(f"controls: {setting}", style="dim"), _cells(members, width, (CONTROLS,), style="dim"), Text()]
    return Group(*parts, *_reasons(cells), *_units(cells)) if parts else Text("no cells\n")


def _distinct(controls: Iterable[CellResult]) -> list[CellResult]:
    """Controls that attacked the same observation (as surfaces often show the same) once."""
    seen = {(cell.observation_id, cell.attack, cell.control, str(cell.attack_args)): cell for cell in controls}
    return list(seen.values())


def _units(cells: Iterable[CellResult]) -> list[RenderableType]:
    """What clipping and noise apply to, once per defense."""
    sentences = {text.safe(cell.defense, 40): text.safe(cell.units, 400) for cell in cells if cell.units}
    return [Text(f"{name}: {sentence}", style="dim") for name, sentence in sentences.items()]


def _grouped(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    groups: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        groups[_setting(cell)].append(cell)
    return groups


def _setting(cell: CellResult) -> str:
    parts = (
        text.safe(cell.dataset, 40),
        text.safe(cell.model, 40),
        f"{cell.victims} victims",
        f"batch {cell.batch_size}",
        f"local steps {cell.local_steps}" + (f" ({cell.update_model})" if cell.local_steps > 1 else ""),
        f"round {cell.round}",
        f"seed {', '.join(map(str, cell.seeds))}",
    )
    return " | ".join(parts)


def _cells(cells: Sequence[CellResult], width: int, layouts: Sequence[Layout], style: str = "") -> RenderableType:
    """The first layout that fits, else blocks."""
    fitting = (shown for shown in layouts if _needed(cells, shown) <= width)
    shown = next(fitting, None)
    return _blocks(cells, style) if shown is None else _columns(cells, shown, style)


def _needed(cells: Sequence[CellResult], shown: Layout) -> int:
    """The fewest characters in which no entry is cut."""
    widths = (
        column.wraps_at or max(len(column.title), *(column.render(cell).cell_len for cell in cells)) for column in shown
    )
    return sum(widths) + _GAP * (len(shown) - 1)


def _columns(cells: Sequence[CellResult], shown: Layout, style: str) -> Table:
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
    for cell in cells:
        table.add_row(*(column.render(cell) for column in shown), style=style)
    return table


def _blocks(cells: Sequence[CellResult], style: str) -> RenderableType:
    """Each cell as a headline and indented lines."""
    lines: list[RenderableType] = []
    for cell in cells:
        place = f"tap {columns.surface(cell)}" if cell.surface is None else f"surface {cell.surface}"
        names = f"{text.safe(cell.defense, 40)} / {text.safe(cell.attack, 24)} / {place}"
        control = f"{text.safe(cell.control, 24)}: " if cell.control else ""
        lines.append(Text.assemble(control, columns.verdict(cell), f"  {names}", style=style))
        lines += [Padding(Text(line, style=style), (0, 0, 0, 4), expand=False) for line in _details(cell)]
    return Group(*lines)


def _details(cell: CellResult) -> list[str]:
    """The lines below a cell's headline; those that would say nothing are left out."""
    measured = (
        f"success {columns.success_rate(cell)}",
        f"RMSE median/mean {columns.error(cell)}",
        f"PSNR {text.mean(cell.metrics.get('psnr'), 1)}",
    )
    judged = (
        f"lineup p {columns.lineup(cell)}",
        f"labels {columns.label_accuracy(cell)}",
        f"tau {text.mean(cell.metrics.get('tau'), 0)}",
        columns.outcomes(cell),
    )
    possible = cell.not_applicable_reason is None
    lines = [text.arguments(cell.defense_args)]
    lines += ["; ".join(measured), "; ".join(filter(None, judged))] if possible else []
    lines += columns.guarantees(cell).splitlines() if cell.privacy and cell.role == "cell" else []
    return list(filter(None, lines))


def _reasons(cells: Iterable[CellResult]) -> list[RenderableType]:
    """Each reason once, with the cells it stands for."""
    affected: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        if cell.verdict == "inconclusive":
            kind = "inconclusive" if cell.not_applicable_reason is None else "impossible"
            reason = text.safe(cell.not_applicable_reason or cell.verdict_reason or "no reason recorded", 300)
            place = f"{text.safe(cell.defense, 40)} / {text.safe(cell.attack, 24)} / {columns.surface(cell)}"
            affected[f"{kind}: {reason}"].append(place)
    return [Text(f"{reason} ({'; '.join(places)})") for reason, places in affected.items()]


def _footer(document: ResultDocument, folder: Path | None) -> Text:
    footer = Text(f"\n{_MEANING}\n", style="dim")
    if document.valid:
        footer.append("The run is valid: no negative control failed.", style="not dim green")
    else:
        reason = text.safe(document.valid_reason or "a negative control failed", 300)
        footer.append(f"THE RUN IS INVALID, its verdicts must not be used: {reason}", style="not dim bold red")
    if folder is not None:
        footer.append(
            f"\nFiles: {text.safe(str(folder), 500)} (results.json, victims.jsonl, pictures)", style="not dim"
        )
    return footer
