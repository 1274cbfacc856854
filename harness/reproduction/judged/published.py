"""The places of which Wei et al. say whether a defense resists: Tables III and X, and the two sweeps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.papers.accuracy import METHODS
from harness.papers.grid import grid

_RESISTS = {"protects": "Y", "leaks": "N", "-": "-"}


@dataclass(frozen=True)
class Published:
    """A cell of a published table: where it stands, what was attacked, and ``resists`` as printed (Y, N or -)."""

    source: str
    method: str
    data: str
    tap: str
    defense: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 1
    resists: str = "-"


def published(quick: bool) -> list[Published]:
    """All of them, in the order of the paper; ``quick`` leaves levels out, as the tables themselves do."""
    noise, pruning = _sweep("noise", "variance {:g}", quick), _sweep("pruning", "{:.0%} pruned", quick)
    return [*_table3(quick), *_table10(), *noise, *pruning]


def _table3(quick: bool) -> Iterator[Published]:
    for row in grid("table3").printed():
        defense, arguments = grid("table3").methods[row["defense"]]
        batch = 1 if quick else row["batch_size"]
        yield Published("Table III", row["defense"], row["data"], row["tap"], defense, arguments, batch, row["paper"])


def _table10() -> Iterator[Published]:
    facts = grid("table10").facts
    for method, name in facts["methods"].items():
        defense, arguments = METHODS[name]
        yield Published("Table X", method, "mnist", "T2.step", defense, arguments, resists=facts["resists"][method])


def _sweep(defense: str, words: str, quick: bool) -> Iterator[Published]:
    table = grid(f"sweep-{defense}")
    for row in table.printed(quick):
        arguments = {table.facts["varies"]: row["level"]} | table.settings.get("defense_args", {})
        yield Published(
            defense, words.format(row["level"]), row["data"], table.settings["tap"], defense, arguments,
            resists=_RESISTS[row["paper"]],
        )  # fmt: skip
