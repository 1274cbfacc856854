"""Bayesian epsilons for people, with everything that keeps them from being read as differential privacy."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WARNING = (
    "BDP is not differential privacy: it depends on the distribution of the data that was seen, holds for typical "
    "records or clients only, and protects no outlier."
)
_DIRECTIONS = {"max": "max (paper)", "L": "L"}


def print_bayesian(rows: list[dict[str, Any]], console: Console) -> None:
    """Prints rows of :class:`harness.training.bayesian.Bayesian`, and below them what each number assumes."""
    table = Table("level", "direction", "BDP epsilon", "delta in all", "samples", "moments epsilon", "that one is")
    for row in rows:
        least, most = row["samples"]
        table.add_row(
            row["level"], _DIRECTIONS[row["direction"]], f"{row['epsilon']:.4g}", f"{row['delta_total']:.3g}",
            str(least) if least == most else f"{least}-{most}", f"{row['moments_epsilon']:.4g}",
            row["moments_guarantee"],
        )  # fmt: skip
    console.print(table)
    console.print(Text(_WARNING, style="bold"))
    console.print(Text("BDP assumes that " + "; that ".join(rows[0]["assumptions"]) + "."))
    console.print(Text(
        "Moments epsilon: same noise, every contribution as large as clipping allows, add/remove, the same "
        "orders, Mironov conversion. No estimate of a Bayesian cost exceeds that of the largest contribution."
    ))  # fmt: skip
    for level, conditions in {row["level"]: row["conditions"] for row in rows}.items():
        for condition in conditions:
            met = "met" if condition["met"] else "NOT met by this run, so its moments epsilon is nominal"
            console.print(Text(f"{level}: assumes that {condition['text']}: {met}."))
