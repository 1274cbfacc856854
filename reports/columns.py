"""Columns of the results table: what a row says about a cell."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from harness.base.kinds import ROWS, TEXTS, Kind, plural
from harness.base.kinds import together as kind_of_all
from harness.experiment import named_settings
from harness.reports import text
from harness.reports.text import first_in_lineup
from harness.results import CellResult, PublicData, Rate, SummaryRow
from harness.scoring import METRICS
from harness.scoring.strongest import IN_PART

Row = CellResult | SummaryRow

VERDICT_COLOURS = {"leaks": "#d0453f", "resilient": "#2b9160", "inconclusive": "#b98410", "invalid": "#7a828c"}
VERDICT_STYLES = {
    "leaks": "bold red", "resilient": "green", "inconclusive": "yellow", "identifies": "bold yellow", "invalid": "dim",
}  # fmt: skip


def setting(cell: Row) -> str:
    """Return what a group of rows has in common, as its headline."""
    parts = (
        text.safe(cell.dataset, 40),
        text.safe(cell.model, 40),
        plural(cell.victims, "victim"),
        f"batch {cell.batch_size}",
        f"local steps {cell.local_steps}" + (f" ({cell.update_model})" if cell.local_steps > 1 else ""),
        f"seed {', '.join(map(str, cell.seeds))}",
        *options_of(cell),
        *([f"public: {prior(cell.prior)}"] if cell.prior else []),
    )
    return " | ".join(parts)


def options_of(cell: Row) -> list[str]:
    """Return the settings that are not at their defaults, in words for a report."""
    return [text.safe(words, 80) for words in named_settings(cell.settings)]


def prior(public: PublicData) -> str:
    """The public data that informed attackers know, and how many."""
    return f"{text.safe(public.name, 40)} ({plural(public.size, 'example')})"


@dataclass(frozen=True)
class Column:
    """A column: its title, what it shows of a cell, and from how many characters on its words wrap (0: never).

    A table leaves it out where it ``concerns`` none of the cells.
    """

    title: str
    show: Callable[[Any], Text | str]
    wraps_at: int = 0
    right: bool = False
    concerns: Callable[[Any], bool] = lambda cell: True

    def render(self, cell: Row) -> Text:
        """The entry as text in which nothing is markup."""
        shown = self.show(cell)
        return shown if isinstance(shown, Text) else Text(shown)


def attacker(cell: CellResult, longest: int = 40) -> str:
    """The attack in words that no other run of it shares: one that was told the labels is another attacker."""
    return text.safe(cell.attack, longest) + (" (labels known)" if cell.labels == "known" else "")


def attack(cell: CellResult) -> Text:
    """The attack and, dimmed below, whether it was told the labels, and the suite that it was tried for."""
    below = [*_told(cell), *([text.safe(cell.suite, 24)] if cell.suite else [])]
    return Text(text.safe(cell.attack, 24)).append("".join(f"\n{line}" for line in below), style="dim")


def _told(cell: CellResult) -> list[str]:
    return ["labels known"] if cell.labels == "known" else []


def defense(cell: Row) -> Text:
    """The defense and, dimmed below, its arguments."""
    entry = Text(text.safe(cell.defense, 40))
    arguments = text.arguments(cell.defense, cell.defense_args)
    if arguments:
        entry.append(f"\n{arguments}", style="dim")
    return entry


def surface(cell: Row) -> str:
    """The surface's number, or the tap where it is not a surface."""
    return text.safe(cell.tap, 20) if cell.surface is None else str(cell.surface)


def looks(cell: Row) -> str:
    """Return how often the adversary saw the same record."""
    return f"{cell.observations}x"


def rounds_seen(cell: Row) -> int:
    """Return in how many rounds the adversary saw the same examples."""
    seen = cell.options.get("rounds_seen")
    return seen if isinstance(seen, int) else 1


def circumstances(cell: Row) -> str:
    """Rounds and number of looks as words behind a place, where they are not the usual ones."""
    rounds, when = rounds_seen(cell), f" / round {cell.round}" if cell.round else ""
    when += f" / {rounds} rounds" if rounds > 1 else ""
    return when + (f" / seen {looks(cell)}" if cell.observations > 1 else "")


def kinds_of(cells: Iterable[CellResult]) -> Kind:
    """Return what the examples of some cells are called. Cells that tell examples apart measure little, and say it
    last."""
    measured = [cell for cell in cells if cell.metrics]
    return kind_of_all(cell.kind for cell in [one for one in measured if reconstructs(one)] or measured)


def is_table(cell: CellResult) -> bool:
    """Return whether the dataset is a table: its rows have errors by kind of column."""
    return cell.kind == ROWS


def reconstructs(cell: CellResult) -> bool:
    """Return whether the attack does more than tell examples apart."""
    return cell.identified is None


def is_of_images(cell: CellResult) -> bool:
    """Return whether images were reconstructed, or might have been."""
    ran = cell.not_applicable_reason is None  # else nothing was measured that would tell the kind
    return ran and reconstructs(cell) and not is_table(cell) and not is_of_texts(cell)


def is_of_texts(cell: CellResult) -> bool:
    """Return whether the dataset is one of texts."""
    return cell.kind == TEXTS


def unrun(cell: CellResult) -> str:
    """Return what is said of a cell that was not run; a part of it may stand in another cell."""
    if cell.settled_by is not None:
        return "skipped"
    return "not whole" if (cell.not_applicable_reason or "").startswith(IN_PART) else "not run"


def strongest(row: SummaryRow, cells: Mapping[str, CellResult]) -> CellResult | None:
    """The cell of the strongest attack. Of two, since one has labels known, the one that has the place's verdict."""
    named = [one.cell for one in row.attacks if one.attack == row.strongest and one.cell is not None]
    own = [cells[key] for key in named if key in cells]
    return min(own, key=lambda cell: cell.verdict_alone != row.verdict, default=None)


def verdict(cell: CellResult) -> Text:
    """The verdict in its colour: what the cell may claim alone."""
    if cell.not_applicable_reason is not None:
        return Text(unrun(cell), style="dim")
    identifies = cell.identified is not None and cell.identified.identifies and cell.verdict != "invalid"
    return verdict_word("identifies" if identifies else cell.verdict_alone)


def verdict_word(word: str) -> Text:
    """A word of a verdict in its colour."""
    return Text(word, style=VERDICT_STYLES[word])


def success_rate(cell: CellResult) -> str:
    """Share of images reconstructed by the strict rule."""
    return text.rate(cell.asr.get("strict"))


def error(cell: CellResult) -> str:
    """Median and mean RMSE."""
    summary = cell.metrics.get("rmse")
    return text.MISSING if summary is None else f"{text.number(summary.median)} / {text.number(summary.mean)}"


def median_error(cell: CellResult) -> str:
    """Median RMSE alone."""
    summary = cell.metrics.get("rmse")
    return text.number(None if summary is None else summary.median)


def column_error(cell: CellResult) -> str:
    """Median error of a table's continuous columns in standard deviations."""
    return text.number(getattr(cell.metrics.get("continuous_rmse"), "median", None))


def categories_right(cell: CellResult) -> str:
    """Share of a table's categories that are right."""
    return text.percent(getattr(cell.metrics.get("categorical_accuracy"), "mean", None))


def tokens_right(cell: CellResult) -> str:
    """Share of a text's tokens that stand at their place."""
    return text.percent(getattr(cell.metrics.get("tokens_right"), "mean", None))


def has(name: str) -> Callable[[CellResult], bool]:
    """Return whether a cell has a value for the metric ``name``."""
    return lambda cell: name in cell.metrics and cell.metrics[name].mean is not None


def metric(name: str, digits: int) -> Callable[[CellResult], str]:
    """Shows the mean of the metric ``name``."""
    return lambda cell: text.mean(cell.metrics.get(name), digits)


def label_accuracy(cell: CellResult) -> str:
    """Accuracy of the inferred labels."""
    return text.percent(cell.label.accuracy)


def lineup(cell: CellResult) -> str:
    """The p-value of the lineup test, by reconstructions or by the attack's own probabilities."""
    return text.p_value(cell.tested_p)


def identified(cell: CellResult) -> str:
    """Share of truths told among look-alikes, by an attack that reconstructs nothing."""
    found = cell.identified
    if found is None or found.rate is None:
        return text.MISSING
    return text.rate(Rate(rate=found.rate, n=found.n, ci95=found.ci95))


def guarantees(cell: CellResult) -> str:
    """The privacy statements about what was read there, a line each; the view is named where there are several."""
    about = [statement for statement in cell.privacy if statement.covers is not False]
    named = len({statement.view for statement in about}) > 1
    return "\n".join(text.guarantee(statement, named) for statement in about) or (
        "none" if cell.privacy else text.MISSING
    )


def guarantees_and_theorem(cell: CellResult) -> str:
    """Return the statements of :func:`guarantees`, and below how often truths are first in their lineup, measured and
    at most."""
    stated = guarantees(cell)
    return f"{stated}\nfirst in lineup {first_in_lineup(cell)}" if cell.bound is not None else stated


def detectable(cell: CellResult) -> str:
    """Return what a watchful client would see of a server that tampers: a line for each thing to look at."""
    seen = cell.detectable
    if seen is None:
        return text.MISSING
    lines = [f"module: {text.safe(seen.module, 120)}"] if seen.module else []
    lines.append(f"weights {text.number(seen.weights)}")
    if seen.gradients is not None:
        lines.append(f"gradients {text.number(seen.gradients)} (honest {text.number(seen.gradients_honest)})")
    if seen.dead_units is not None:
        honest = "" if seen.dead_units_honest is None else f" (honest {text.percent(seen.dead_units_honest)})"
        lines.append(f"dead units {text.percent(seen.dead_units)}{honest}")
    return "\n".join(lines)


def outcomes(cell: CellResult) -> str:
    """Return how victims ended, leaving out what never happened."""
    counts = cell.outcomes.model_dump()
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)


ColumnSet = tuple[Column, ...]
_COUNTS = ("tau", "gradient_evaluations", "steps_taken")


def own_measures(cells: Iterable[CellResult]) -> list[str]:
    """Return the names of numbers that an attack measures itself."""
    return sorted({name for cell in cells for name in cell.metrics if name not in METRICS and name not in _COUNTS})


def own_columns(cells: Iterable[CellResult]) -> ColumnSet:
    """Return a column for each number that an attack measures itself."""
    return tuple(
        Column(text.safe(name, 24), metric(name, 3), right=True, concerns=has(name)) for name in own_measures(cells)
    )


DEFENSE = Column("defense", defense, wraps_at=18)
ATTACK = Column("attack", attack)
TIER = Column("tier", lambda row: row.tier)
SURFACE = Column("surface", surface)
ROUND = Column("round", lambda cell: str(cell.round), right=True, concerns=lambda cell: cell.round > 0)
LOOKS = Column("seen", looks, right=True, concerns=lambda cell: cell.observations > 1)
VERDICT = Column("verdict", verdict)
SUCCESS = Column("success [95%]", success_rate, concerns=reconstructs)
IDENTIFIED = Column("identified [95%]", identified, concerns=lambda cell: not reconstructs(cell))
LINEUP = Column("lineup p", lineup, right=True)
THEOREM = Column(
    "first in lineup", first_in_lineup, wraps_at=18,
    concerns=lambda cell: cell.bound is not None,
)  # fmt: skip
DETECTABLE = Column(
    "visible to clients", detectable, wraps_at=18,
    concerns=lambda cell: cell.detectable is not None,
)  # fmt: skip
GUARANTEE = Column("guarantee", guarantees, wraps_at=16)

OTHER_ERRORS = (
    Column("RMSE/std", column_error, right=True, concerns=has("continuous_rmse")),
    Column("categories", categories_right, right=True, concerns=has("categorical_accuracy")),
    Column("tokens right", tokens_right, right=True, concerns=is_of_texts),
)

_WHO = (DEFENSE, ATTACK, TIER, SURFACE, ROUND, LOOKS, VERDICT, SUCCESS, IDENTIFIED)
MEDIUM = (
    *_WHO,
    Column("RMSE", median_error, right=True, concerns=is_of_images),
    *OTHER_ERRORS,
    LINEUP,
    Column("guarantee", guarantees_and_theorem, wraps_at=16),
    DETECTABLE,
)
WIDE = (
    *_WHO,
    *(
        Column(
            title,
            shown,
            right=True,
            concerns=lambda cell: is_of_images(cell) or (reconstructs(cell) and is_table(cell)),
        )
        for title, shown in (("RMSE", median_error), ("mean RMSE", metric("rmse", 3)))
    ),
    *OTHER_ERRORS,
    Column("ROUGE-1", metric("rouge1", 3), right=True, concerns=is_of_texts),
    Column("ROUGE-2", metric("rouge2", 3), right=True, concerns=is_of_texts),
    Column("PSNR", metric("psnr", 1), right=True, concerns=is_of_images),
    Column("labels", label_accuracy, right=True, concerns=reconstructs),
    Column("tau", metric("tau", 0), right=True, concerns=reconstructs),
    LINEUP,
    THEOREM,
    GUARANTEE,
    DETECTABLE,
    Column("outcomes", outcomes, wraps_at=10),
)


def found(cell: CellResult) -> Text:
    """Return what an attack reached, and dimmed below how near it came, or that it only tells examples apart."""
    if cell.not_applicable_reason is not None:
        return Text(text.MISSING)
    if not reconstructs(cell):
        return Text(identified(cell)).append("\nidentified", style="dim")
    near = [f"RMSE {median_error(cell)}"] if is_of_images(cell) else []
    near += [f"{column.title} {column.render(cell)}" for column in OTHER_ERRORS if column.concerns(cell)]
    near += [f"{column.title} {column.render(cell)}" for column in own_columns([cell])]
    return Text(success_rate(cell)).append("".join(f"\n{line}" for line in near), style="dim")


def attack_by_name(cell: CellResult) -> Text:
    """The attack and, dimmed below, the control that it is of, and whether it was told the labels."""
    below = [text.safe(cell.control, 24)] if cell.control else []
    below += _told(cell)
    return Text(text.safe(cell.attack, 24)).append("".join(f"\n{line}" for line in below), style="dim")


@dataclass(frozen=True)
class Together:
    """Cells of one defense that differ in nothing but the surface, as one row."""

    cell: CellResult
    surfaces: str


def together(cells: Iterable[CellResult]) -> list[Together]:
    """The cells as rows of :data:`NARROW`."""
    same: dict[tuple[str, ...], list[CellResult]] = {}
    for cell in cells:
        same.setdefault(tuple(column.render(cell).plain for column in _NARROW), []).append(cell)
    return [Together(own[0], ", ".join(dict.fromkeys(map(surface, own)))) for own in same.values()]


def _of_cell(column: Column) -> Column:
    return replace(
        column, show=lambda row: column.show(row.cell), concerns=lambda row: column.concerns(row.cell)
    )  # fmt: skip


_NARROW = (
    Column("attack", attack_by_name), TIER, ROUND, LOOKS, VERDICT, Column("success [95%]", found), LINEUP,
)  # fmt: skip
#: For 80 columns: the defense stands above, guarantees and theorems stand below.
NARROW = (*map(_of_cell, _NARROW[:2]), Column("surface", lambda row: row.surfaces), *map(_of_cell, _NARROW[2:]))
CONTROLS = (Column("control", lambda cell: text.safe(cell.control or "", 24)), *_WHO, LINEUP)
