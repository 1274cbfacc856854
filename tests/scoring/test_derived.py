"""Verdicts that somebody edited are told from those that their victims bear out."""

from collections.abc import Callable

import pytest

from harness.results import CellResult, Control, Lineup, Outcomes, Rate, VictimRecord
from harness.scoring.derived import Finding, findings
from harness.version import __version__

PLACE = {"dataset": "d", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step"}
WORKS = Control(name="positive", held=True)


def a_leak() -> CellResult:
    """Of 64 victims all came back, each the nearest of its lineup."""
    return CellResult(
        **PLACE, model="m", seeds=[0], victims=64, key="0" * 20, confirmed=64, outcomes=Outcomes(success=64),
        asr={"strict": Rate(rate=1.0, successes=64, n=64)}, verdict="leaks", controls=[WORKS],
        lineup=Lineup(rate=1.0, mean_rank=0.0, p_value=2e-4, confirmed_p_value=1e-4),
    )  # fmt: skip


def its_victims() -> list[VictimRecord]:
    facts = {"cell": "0" * 20, "seed": 0, "outcome": "success", "rmse": 0.01, "lineup_rank": 1, "lineup_size": 11}
    return [VictimRecord(**PLACE, **facts, victim=number) for number in range(64)]


def found(cell: CellResult, victims: list[VictimRecord], version: str = __version__) -> list[Finding]:
    return findings([cell], {cell.key or "": victims}, version)


EDITS: dict[str, tuple[dict[str, object], str]] = {
    "the verdict": ({"verdict": "resilient"}, "it says resilient, its victims say leaks"),
    "what is confirmed": ({"confirmed": 0}, "0 images are accurate and first, its victims say 64"),
    "how they ended": ({"outcomes": Outcomes(failure=64)}, "0 victims ended as success, its victims say 64"),
    "the mean rank": ({"lineup": Lineup(mean_rank=0.5, p_value=2e-4, confirmed_p_value=1e-4)}, "a mean rank of 0.5"),
    "the p-value": ({"lineup": Lineup(mean_rank=0.0, p_value=0.5, confirmed_p_value=1e-4)}, "p = 0.5"),
}


@pytest.mark.parametrize(("changes", "said"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_cell_differs_from_its_victims(changes: dict[str, object], said: str) -> None:
    assert found(a_leak(), its_victims()) == []
    (one,) = found(a_leak().model_copy(update=changes), its_victims())
    assert one.kind == "differs" and said in one.line


OTHERS: dict[str, tuple[Callable[[], list[VictimRecord]], str, str, str]] = {
    "another version": (its_victims, "0.1.0", "outdated", "made under 0.1.0's rules: resilient; under today's: leaks"),
    "no victims": (list, __version__, "unchecked", "verdict not checked"),
}


@pytest.mark.parametrize(("victims", "version", "kind", "said"), OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_forgery_is_told_apart(
    victims: Callable[[], list[VictimRecord]], version: str, kind: str, said: str
) -> None:
    (one,) = found(a_leak().model_copy(update={"verdict": "resilient"}), victims(), version)
    assert one.kind == kind and said in one.line
