"""Sources of our numbers in a grid's rows: attacked cells, trained federations, epsilons; and rules of agreement."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.experiment import CellSettings, cell_settings
from harness.papers.accuracy import METHODS, NOTES, TABLE_2, Accuracies, Measured
from harness.papers.grid import Grid, Values, at_hand, tau_of_successes
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, below_non_private, orders
from harness.results import StoredCell
from harness.study.runner import WORDS, Request
from harness.training.chance import CHANCE_NOTE
from harness.training.costs import IterationBench, Methods

Row = dict[str, Any]


def said(agrees: bool) -> str:
    """Return the verdict."""
    return AGREES if agrees else DIFFERS


def _success(values: Values, tolerance: float) -> bool:
    """The success rate lies within the tolerance of the printed one, or its interval contains that."""
    near = abs((values["rate"] or 0.0) - values["asr"]) <= tolerance
    return near or values["low"] <= values["asr"] <= values["high"]


def _near(ours: Any, printed: Any, tolerance: float) -> bool:
    """A number, or every one of several, differs from the printed one by less than the tolerance."""
    pairs = zip(ours, printed, strict=True) if isinstance(ours, list) else [(ours, printed)]
    return all(abs(one - other) < tolerance for one, other in pairs)


#: By the name that a file gives: whether ours agrees.
RULES: dict[str, Callable[..., bool]] = {
    "success": _success,
    "same": lambda values, ours, paper="paper": values[ours] == values[paper],
    "near": lambda values, tolerance, paper="paper": _near(values["ours"], values[paper], tolerance),
}


class Lines:
    """Lines that a measure states about its data."""

    def __init__(self, table: Grid, request: Request) -> None:
        self.table, self.request = table, request
        self.accuracies = Accuracies(request) if "accuracy" in table.measure else None
        self.told: list[str] = []

    def of(self, method: str, data: str, share: float = 1.0, **changes: Any) -> Measured | None:
        """Accuracy of a method on a dataset, see :meth:`harness.papers.accuracy.Accuracies.of`."""
        assert self.accuracies is not None  # a table with accuracies
        return self.accuracies.of(method, data, share, **changes)

    def agrees(self, values: Values) -> bool:
        """Return whether a row with ours keeps the file's rule."""
        name, *parameters = self.table.rule
        return RULES[name](values, *parameters)

    @property
    def data(self) -> list[str]:
        """The datasets of the rows that are kept."""
        rows = self.table.printed(self.request.quick)
        return list(dict.fromkeys(row.get("data") or self.table.facts["data"] for row in rows))

    def lines(self, name: str) -> list[str]:
        """The lines of ``@name``."""
        if name == "accuracy":
            assert self.accuracies is not None
            return self.accuracies.header(*self.data)
        if name == "data":
            return [at_hand(data, self.request.data_root)[1] for data in self.data]
        return {"notes on accuracy": NOTES, "trends": NOTES[:1], "chance": [CHANCE_NOTE], "told": self.told}[name]


class Dealt(Lines):
    """Rows that do not need each other."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield each row with ours."""
        made = [row | self._row(row) for row in self.request.dealt(printed, "row")]
        self.request.require_whole()
        yield from made

    def _row(self, row: Row) -> Values:
        raise NotImplementedError


class Attacks(Dealt):
    """An attacked cell per row; of a table ``attack and accuracy`` the defense's accuracy beside it."""

    def _row(self, row: Row) -> Values:
        dataset = at_hand(row["data"], self.request.data_root)[0]
        if dataset is None:
            return {"attacked": None, "beside": "", "verdict": NOT_AT_HAND}
        settings = self.settings(row, dataset)
        found = _attacked(self.request.run.cell(settings)) | {"attacked": settings.tap, "beside": ""}
        if beside := row.get("beside_tap"):
            other = self.request.run.cell(self.settings(row | {"tap": beside}, dataset)).cell.verdict_alone
            found |= {"beside": f"{beside}: {WORDS[other]} ({other})"}
        if self.accuracies:
            made = self.of(settings.defense, row["data"], defense_args=self._arguments(row))
            found |= {"accuracy": str(made)}
        return found | {"verdict": self._verdict(row | found)}

    def settings(self, row: Row, dataset: str) -> CellSettings:
        """The cell of a row."""
        own = {name: row[name] for name in ("attack", "tap", "batch_size") if name in row}
        quick = self.table.facts.get("quick", {}) if self.request.quick else {}
        defense, arguments = self.table.methods.get(row.get("defense", ""), (None, {}))
        if defense:
            own |= {"defense": defense, "defense_args": arguments}
        if "varies" in self.table.facts:
            own |= {"defense_args": self._arguments(row)}
        return cell_settings(
            **(self.table.settings | own | quick), dataset=dataset, seeds=self.request.seeds,
            victims=self.request.count(*self.table.victims or (1, 1)), device=self.request.device,
        )  # fmt: skip

    def _arguments(self, row: Row) -> dict[str, Any]:
        """Those of a sweep: the row's level is the argument that varies."""
        return {self.table.facts["varies"]: row["level"]} | self.table.settings.get("defense_args", {})

    def _verdict(self, values: Values) -> str:
        return "-" if values.get("paper") == "-" else said(self.agrees(values))


def _attacked(stored: StoredCell) -> dict[str, Any]:
    """Return what a table may print of a cell."""
    cell, strict = stored.cell, stored.cell.asr["strict"]
    low, high = strict.ci95 or (0.0, 1.0)
    return {
        "rate": strict.rate, "low": low, "high": high, "successes": strict.successes, "trials": strict.n,
        "rmse": cell.metrics["rmse"].mean, "distance": cell.metrics["rmse_raw"].median,
        "tau": cell.metrics["tau"].mean, "tau_of_successes": tau_of_successes(stored),
        "resists": WORDS[cell.verdict_alone],
        "says": "protects" if cell.verdict_alone == "resilient" else cell.verdict_alone,
    }  # fmt: skip


class Orders(Lines):
    """Federations trained by every method; the rows of a file are groups, whose ``printed`` are those of the methods.

    ``facts``: ``group``, what is dealt; ``sizes``: fields of a group that are training settings; ``argument`` and
    ``field``: the defense's argument that a group sets.
    """

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield a row per group and method."""
        made = [list(self._group(group)) for group in self.request.dealt(printed, self.table.facts["group"])]
        self.request.require_whole()
        for rows in made:
            yield from rows

    def _group(self, group: Row) -> Iterator[Values]:
        facts = self.table.facts
        paper = dict(zip(facts["methods"], group["printed"], strict=True))
        ours = {method: self._trained(method, group) for method in paper}
        if "told" in facts:
            self.told.append(below_non_private(facts["told"].format_map(group), ours))
        verdicts = orders(paper, ours)
        for method, value in paper.items():
            bare = {facts["argument"]: "-"} if facts.get("bare_argument") and method == "non-private" else {}
            found = {"method": method, "accuracy": str(ours[method] or "-"), "paper": value}
            yield group | bare | found | {"verdict": verdicts[method]}

    def _trained(self, method: str, group: Row) -> Measured | None:
        facts = self.table.facts
        changes: Mapping[str, Any] = {name: group[field] for name, field in facts.get("sizes", {}).items()}
        arguments = {} if method == "non-private" else {facts["argument"]: group[facts["argument"]]}
        return self.of(method, group.get("data") or facts["data"], defense_args=arguments, **changes)


# --------------------------------------------------------------------------------------
# Ours of the tables on what a defense costs: seconds per local iteration, beside accuracy and resilience.


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
        """Return the lines of a name; those of ``repeats`` say how often an iteration is repeated."""
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
