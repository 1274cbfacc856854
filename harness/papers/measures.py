"""Who makes ours of the rows of a grid: attacked cells, trained federations, epsilons; and when ours agrees."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.experiment import CellSettings, cell_settings
from harness.papers.accuracy import NOTES, Accuracies, Measured
from harness.papers.grid import Grid, Values, at_hand, tau_of_successes
from harness.papers.measured import AGREES, DIFFERS, NOT_AT_HAND, below_non_private, orders
from harness.results import StoredCell
from harness.study.runner import WORDS, Request
from harness.training.chance import CHANCE_NOTE

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
    """What a measure has to say of its data."""

    def __init__(self, table: Grid, request: Request) -> None:
        self.table, self.request = table, request
        self.accuracies = Accuracies(request) if "accuracy" in table.measure else None
        self.told: list[str] = []

    def of(self, method: str, data: str, share: float = 1.0, **changes: Any) -> Measured | None:
        """Accuracy of a method on a dataset, see :meth:`harness.papers.accuracy.Accuracies.of`."""
        assert self.accuracies is not None  # a table with accuracies
        return self.accuracies.of(method, data, share, **changes)

    def agrees(self, values: Values) -> bool:
        """Whether a row with ours keeps the file's rule."""
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


class Attacks(Lines):
    """An attacked cell per row; of a table ``attack and accuracy`` the defense's accuracy beside it."""

    def rows(self, printed: list[Row]) -> Iterator[Values]:
        """Yield each row with what the attack came to."""
        made = [row | self._row(row) for row in self.request.dealt(printed, "row")]
        self.request.require_whole()
        yield from made

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
    """What a table may print of a cell."""
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
            yield (
                group
                | bare
                | {
                    "method": method,
                    "accuracy": str(ours[method] or "-"),
                    "paper": value,
                    "verdict": verdicts[method],
                }
            )

    def _trained(self, method: str, group: Row) -> Measured | None:
        facts = self.table.facts
        changes: Mapping[str, Any] = {name: group[field] for name, field in facts.get("sizes", {}).items()}
        arguments = {} if method == "non-private" else {facts["argument"]: group[facts["argument"]]}
        return self.of(method, group.get("data") or facts["data"], defense_args=arguments, **changes)
