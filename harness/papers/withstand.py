"""From which noise on each defense withstands: the plain attacks, those that know it, and any attacker at all."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.papers.grid import Comparison, at_hand, number
from harness.reports.noise_ladders import Rung, save_noise_ladders
from harness.results import CellResult, SummaryRow
from harness.study.runner import QUICK_VICTIMS, VICTIMS, WORDS, Judged, Request, attacks_of, judge, strict

_PICTURE = "withstand.png"
_LEFT_OUT = "quick: whole decades of noise, and for the plain tier the papers' own attack alone"


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
            line, *([_LEFT_OUT] if request.quick else []),
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
            "begins to withstand": " and ".join(marks), "verdict": _verdict(judged.plain, judged.informed),
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
    return Rung(sigma, plain, informed, blind.rate if blind else None, _ceiling(informed))


def _ceiling(cell: CellResult | None) -> float | None:
    events = cell.bound.events if cell and cell.bound else []
    return next((event.ceiling for event in events if event.event == "strict image"), None)
