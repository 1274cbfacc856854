"""The papers' verdicts, those of attackers like theirs, and those of attackers who know the defense, side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.papers.accuracy import METHODS
from harness.papers.grid import Comparison, at_hand, grid
from harness.reports.text import at_most, event_of
from harness.study.runner import QUICK_VICTIMS, VICTIMS, WORDS, Judged, Request, attacks_of, judge, strict

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


_LEFT_OUT = (
    "quick: the papers' own attack and those that know the defense instead of the suite, fewer levels and datasets of "
    "the sweeps, LFW in batches of 1"
)


def judged_verdicts(request: Request) -> Comparison:
    """Every place of Tables III and X and of the sweeps under ``--attack auto``, ``--quick`` under fewer attacks."""
    count = request.count(VICTIMS, QUICK_VICTIMS)
    places = published(request.quick)
    found = {data: at_hand(data, request.data_root) for data in dict.fromkeys(place.data for place in places)}
    rows = [_row(request, place, found[place.data][0], count) for place in request.dealt(places, "row")]
    request.require_whole()
    judged = [row for row in rows if row["verdict"] != "not at hand"]
    fallen = sum(row["falls"] == "falls" for row in judged)
    return Comparison(
        "The papers' verdicts judged again, by attackers who know the defense",
        [
            f"{count} victims per place, freshly initialised LeNet, seeds {list(request.seeds)}, attacks "
            f"{', '.join(attacks_of(request))}; the settings of the tables, first local iteration of round 0",
            *[line for _, line in found.values()], *([_LEFT_OUT] if request.quick else []),
        ],
        rows,
        [
            f"{fallen} of {len(judged)} verdicts fall: attackers who do not know the defense find no leak where one "
            "who does finds it",
            "resists: Y nothing leaks, N leaks, ? neither is shown. Paper: as printed; plain: all attacks that do not "
            "know the defense; informed: all",
            "strict: images brought back within an RMSE of 0.1, by the best attack of the tier",
            "identified: share of truths that are the most probable among look-alikes; it reconstructs nothing",
            "ceiling: of any attacker being first in a lineup, where a theorem says so",
            "agrees: the informed verdict is the paper's",
        ],
    )  # fmt: skip


def _row(request: Request, place: Published, dataset: str | None, count: int) -> dict[str, Any]:
    named = {
        "from": place.source, "defense": place.method, "data": place.data, "tap": place.tap, "paper": place.resists,
    }  # fmt: skip
    if dataset is None:
        absent = ("plain", "informed", "plain strict", "informed strict", "identified", "ceiling", "falls")
        return named | dict.fromkeys(absent, "-") | {"verdict": "not at hand"}
    judged = judge(
        request, dataset=dataset, defense=place.defense, defense_args=dict(place.arguments), tap=place.tap,
        batch_size=place.batch, distinct_labels=place.batch > 1, victims=count,
    )  # fmt: skip
    ours = WORDS[judged.informed.verdict]
    return named | {
        "plain": WORDS[judged.plain.verdict], "informed": ours,
        "plain strict": strict(judged.best("plain")), "informed strict": strict(judged.best("informed")),
        "identified": _identified(judged), "ceiling": _ceiling(judged), "falls": "falls" if judged.fell else "",
        "verdict": "-" if place.resists == "-" else ("agrees" if ours == place.resists else "differs"),
    }  # fmt: skip


def _identified(judged: Judged) -> str:
    cell = judged.identified
    if cell is None or cell.identified is None or cell.identified.rate is None:
        return "-"
    return f"{cell.identified.rate:.0%}"


def _ceiling(judged: Judged) -> str:
    cell = judged.best("informed") or judged.best("plain")
    event = None if cell is None else event_of(cell, "first in its lineup")
    if cell is None or event is None or event.ceiling is None:
        return "none exists" if cell is not None and cell.bound and cell.bound.theorem is None else "-"
    return at_most(cell.bound, event)
