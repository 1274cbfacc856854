"""The places of which Wei et al. say whether a defense resists: Tables III and X, and the two sweeps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.federation.taps import SURFACES, Tap
from harness.reproduction.fed_acdp import table3, table10
from harness.reproduction.fed_acdp.accuracy import METHODS
from harness.reproduction.fed_acdp.paper_accuracy import TABLE_10
from harness.reproduction.fed_acdp.paper_attacks import TABLE_3
from harness.reproduction.fed_acdp.sweeps import (
    DATASETS,
    PROTECTS_FROM,
    QUICK_NOISE,
    QUICK_PRUNING,
    SHARES,
    STOPS_FROM,
    VARIANCES,
)


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
    return [*_table3(quick), *_table10(), *_noise(quick), *_pruning(quick)]


def _table3(quick: bool) -> Iterator[Published]:
    for (surface, method, data), (resists, _, _) in TABLE_3.items():
        tap = Tap.RECEIVED if surface == 0 and method == "Fed-SDP" else SURFACES[surface]
        batch = table3.LFW_BATCH if data == "lfw" and surface != 2 and not quick else 1
        defense, arguments = table3.DEFENSES[method]
        yield Published("Table III", method, data, tap, defense, arguments, batch, resists)


def _table10() -> Iterator[Published]:
    for method, name in table10.METHODS.items():
        defense, arguments = METHODS[name]
        yield Published("Table X", method, "mnist", "T2.step", defense, arguments, resists=TABLE_10[method][2])


def _noise(quick: bool) -> Iterator[Published]:
    levels: Mapping[str, Sequence[float]] = QUICK_NOISE if quick else dict.fromkeys(DATASETS, VARIANCES)
    for data, variances in levels.items():
        for variance in variances:
            arguments = {"amount": variance, "param": "var", "applies_to": "gradient"}
            resists = _from(STOPS_FROM, data, variance)
            yield Published("noise", f"variance {variance:g}", data, "T2.step", "noise", arguments, resists=resists)


def _pruning(quick: bool) -> Iterator[Published]:
    levels: Mapping[str, Sequence[float]] = QUICK_PRUNING if quick else dict.fromkeys(DATASETS, SHARES)
    for data, shares in levels.items():
        for share in shares:
            resists = _from(PROTECTS_FROM, data, share)
            yield Published(
                "pruning", f"{share:.0%} pruned", data, "T1.out", "pruning", {"threshold": share}, resists=resists
            )


def _from(levels: Mapping[str, float], data: str, level: float) -> str:
    return "-" if data not in levels else ("Y" if level >= levels[data] else "N")
