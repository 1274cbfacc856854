"""Ours of the tables on what a defense costs: seconds per local iteration, beside accuracy and resilience."""

from collections.abc import Iterator
from typing import Any

from harness.experiment import cell_settings
from harness.papers.accuracy import METHODS, TABLE_2
from harness.papers.grid import Values, at_hand
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, orders
from harness.papers.measures import Lines, Row
from harness.study.runner import WORDS
from harness.training.costs import IterationBench, Methods

CLIENTS, REPEATS, QUICK_REPEATS = 10, 200, 15
TABLE_REPEATS = 10  # an iteration on tables is a hundred times shorter
TOLERANCE = 1.1


class _Timed(Lines):
    """Rows of a file are datasets, whose printed numbers are those of the methods in ``facts``."""

    def seconds(self, data: str, methods: Methods) -> dict[str, float] | None:
        """Seconds per local iteration and client; None where the dataset is not at hand."""
        name = at_hand(data, self.request.data_root)[0]
        if name is None:
            return None
        bench = IterationBench(name, None, TABLE_2[data].batch_size, self.request.device, self.request.data_root)
        repeats = self.repeats * (TABLE_REPEATS if bench.data.columns else 1)
        return {method: value / CLIENTS for method, value in bench.medians(methods, CLIENTS, repeats).items()}

    @property
    def repeats(self) -> int:
        """Interleaved repeats of which the median counts."""
        return QUICK_REPEATS if self.request.quick else REPEATS


class Times(_Timed):
    """Table IX: interleaved medians of one local iteration, per client."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield a row per dataset and method; only ratios within a dataset compare."""
        for group in printed:
            ours = self.seconds(group["data"], self.table.methods)
            paper = dict(zip(self.table.methods, group["seconds"], strict=True))
            for method in self.table.methods:
                yield {"data": group["data"], "method": method} | _ratios(method, ours, paper)

    def lines(self, name: str) -> list[str]:
        """How often an iteration is repeated."""
        if name != "repeats":
            return super().lines(name)
        return [
            f"one iteration of {CLIENTS} clients at once, divided by them; medians of {self.repeats} interleaved "
            f"repeats, {TABLE_REPEATS} times as many on tables ({REPEATS} without --quick); C=4, sigma=6; paper: one "
            "client, other hardware and another library"
        ]


def _ratios(method: str, ours: dict[str, float] | None, paper: dict[str, float]) -> Values:
    printed = paper[method] / paper["non-private"]
    found: dict[str, Any] = {"paper_ms": 1000 * paper[method], "paper_ratio": printed, "verdict": NOT_AT_HAND}
    if ours is None:
        return found
    ratio = ours[method] / ours["non-private"]
    verdict = AGREES if ratio <= printed * TOLERANCE else DIFFERS
    return found | {"ms": 1000 * ours[method], "ratio": ratio, "verdict": verdict}


class AdaptiveClipping(_Timed):
    """Table X: trains every method, times a local iteration and attacks it on MNIST."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield a row per dataset and method."""
        methods: dict[str, str] = self.table.facts["methods"]
        resists = {method: self._resists(name) for method, name in self.request.dealt(methods.items(), "row")}
        runs = [(method, group["data"]) for group in printed for method in methods]
        trained = {(method, data): self.of(methods[method], data) for method, data in self.request.dealt(runs, "run")}
        self.request.require_whole()
        for group in printed:
            data = group["data"]
            ours = {method: trained[method, data] for method in methods}
            paper = dict(zip(methods, group["accuracies"], strict=True))
            seconds = self.seconds(data, {method: METHODS[name] for method, name in methods.items()})
            verdicts = orders(paper, ours)
            for place, method in enumerate(methods):
                yield {
                    "data": data, "method": method, "accuracy": str(ours[method] or "-"), "paper": paper[method],
                    "ms": 1000 * seconds[method] if seconds else None, "paper_ms": 1000 * group["seconds"][place],
                    "resists": resists[method], "paper_resists": self.table.facts["resists"][method],
                    "verdict": verdicts[method],
                }  # fmt: skip

    def _resists(self, method: str) -> str:
        defense, arguments = METHODS[method]
        cell = self.request.run.cell(
            cell_settings(
                dataset=at_hand("mnist", self.request.data_root)[0], defense=defense, defense_args=arguments,
                victims=self.request.count(*self.table.victims or (1, 1)), seeds=self.request.seeds,
                device=self.request.device, **self.table.settings,
            )
        ).cell  # fmt: skip
        return WORDS[cell.verdict_alone]
