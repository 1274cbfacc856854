"""The papers' verdicts, those of attackers like theirs, and those of attackers who know the defense, side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.papers.accuracy import METHODS
from harness.papers.grid import Comparison, at_hand, grid, number
from harness.reports.noise_ladders import Rung, save_noise_ladders
from harness.reports.text import at_most, event_of
from harness.results import CellResult, SummaryRow
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


# --------------------------------------------------------------------------------------
# From which noise on each defense withstands: the plain attacks, those that know it, and any attacker at all.


_PICTURE = "withstand.png"
_QUICK_LADDERS = "quick: whole decades of noise, and for the plain tier the papers' own attack alone"


@dataclass(frozen=True)
class Ladder:
    """A defense at a tap, and its setting (named ``sigma``) that is raised from ``first`` until all withstand."""

    method: str
    defense: str
    first: float
    tap: str = "T2.step"
    sigma: str = "sigma"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def rungs(self, quick: bool) -> Iterator[float]:
        """Four decades in half decades; ``quick``: in whole ones."""
        for half in range(0, 9, 2 if quick else 1):
            yield float(f"{self.first * 10 ** (half / 2):.3g}")


# The first rung is one at which the undefended attack's success is nearly untouched. What is sent is 1 / learning rate
# = 20 times as noisy in gradient units as what a step adds.
LADDERS = (
    Ladder("noise on the gradient", "noise", 0.01, sigma="amount", arguments={"applies_to": "gradient"}),
    Ladder("Fed-CDP", "fed_cdp", 0.001),
    Ladder("Fed-αCDP", "fed_acdp", 0.001),
    Ladder("Fed-SDP at client", "fed_sdp", 0.0001, "T1.out", arguments={"noise_at": "client"}),
    Ladder("DP-FedAvg (dp_local)", "dp_local", 0.0001),
    Ladder("Quantile, per example", "quantile", 0.0001, arguments={"unit": "example"}),
    Ladder("AdaClip", "adaclip", 0.0001),
)


def judged_withstand(request: Request) -> Comparison:
    """Raises every ladder's noise until neither tier leaks, on MNIST; draws ``withstand.png`` beside the results."""
    dataset, line = at_hand("mnist", request.data_root)
    count = request.count(VICTIMS, QUICK_VICTIMS)
    common = {"dataset": dataset, "victims": count}
    climbed = [(ladder, list(_climb(request, ladder, common))) for ladder in request.dealt(LADDERS, "ladder")]
    request.require_whole()
    save_noise_ladders(
        request.run.folder.path / _PICTURE,
        {
            f"{ladder.method} at {ladder.tap}: {ladder.sigma}": [_rung(sigma, judged) for sigma, judged in rungs]
            for ladder, rungs in climbed
        },
    )
    return Comparison(
        "From which noise on does a defense withstand?",
        [
            f"{count} victims per level, batch 1, initialised LeNet, seeds {list(request.seeds)}",
            f"attacks: {', '.join(attacks_of(request))}",
            line, *([_QUICK_LADDERS] if request.quick else []),
        ],
        [row for ladder, rungs in climbed for row in _rows(ladder, rungs)],
        [
            "Y resilient, N leaks, ? neither is shown; plain: attacks that do not know the noise; informed: all",
            "strict: images brought back within an RMSE of 0.1, by the best attack of the tier; blind: by guessing the "
            "class mean without a gradient",
            "ceiling: the most any attacker can bring back, by the theorem; none exists where the noise hides nothing "
            "provably",
            f"picture: {_PICTURE} in the output folder",
        ],
        against="what plain attackers alone would have said",
    )  # fmt: skip


def _climb(request: Request, ladder: Ladder, common: Mapping[str, Any]) -> Iterator[tuple[float, Judged]]:
    for sigma in ladder.rungs(request.quick):
        judged = judge(
            request, defense=ladder.defense, defense_args={**ladder.arguments, ladder.sigma: sigma}, tap=ladder.tap,
            **common,
        )  # fmt: skip
        yield sigma, judged
        if judged.plain.verdict == judged.informed.verdict == "resilient":
            return


def _rows(ladder: Ladder, rungs: list[tuple[float, Judged]]) -> Iterator[dict[str, Any]]:
    from_plain, from_informed = (_withstands(rungs, tier) for tier in ("plain", "informed"))
    for sigma, judged in rungs:
        rung = _rung(sigma, judged)
        marks = [word for word, level in (("plain", from_plain), ("informed", from_informed)) if level == sigma]
        yield {
            "defense": ladder.method, "tap": ladder.tap, "noise": f"{sigma:g}",
            "plain": WORDS[judged.plain.verdict], "informed": WORDS[judged.informed.verdict],
            "plain strict": strict(rung.plain), "informed strict": strict(rung.informed),
            "blind": number(rung.blind), "ceiling": "none exists" if rung.ceiling is None else number(rung.ceiling),
            "leaks no more from": " and ".join(marks), "verdict": _verdict(judged.plain, judged.informed),
        }  # fmt: skip


def _withstands(rungs: list[tuple[float, Judged]], tier: str) -> float | None:
    """The first level from which on the tier leaks no more, None where it still leaks at the last."""
    first = None
    for sigma, judged in rungs:
        leaks = getattr(judged, tier).verdict == "leaks"
        first = None if leaks else (sigma if first is None else first)
    return first


def _verdict(plain: SummaryRow, informed: SummaryRow) -> str:
    return "agrees" if plain.verdict == informed.verdict else "differs"


def _rung(sigma: float, judged: Judged) -> Rung:
    plain, informed = judged.best("plain"), judged.best("informed")
    blind = informed and informed.kappa
    return Rung(sigma, plain, informed, blind.rate if blind else None, _strict_ceiling(informed))


def _strict_ceiling(cell: CellResult | None) -> float | None:
    events = cell.bound.events if cell and cell.bound else []
    return next((event.ceiling for event in events if event.event == "strict image"), None)
