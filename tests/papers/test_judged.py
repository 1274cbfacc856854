"""The papers judged again: what is attacked by whom, which verdicts fall, and from which noise on a defense withstands.

Attacks have tests of their own; here cells are made by hand from the settings that were asked for.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness.experiment import CellSettings
from harness.papers import TABLES, Request, judged
from harness.papers.judged import published
from harness.results import Bound, Ceiling, CellResult, Control, Lineup, Outcomes, RunFolder
from harness.scoring import rate_of

Asked = list[CellSettings]


def made(settings: CellSettings, successes: int) -> CellResult:
    """What a cell with so many successes comes to, of an attack that works."""
    attack, count = settings.build_attack(), settings.victims
    leaks = successes > 1
    event = Ceiling(event="strict image", kappa=0.1, ceiling=0.4)
    return CellResult(
        dataset=settings.dataset, model=settings.model, defense=settings.defense, defense_args=settings.defense_args,
        tap=settings.tap, seeds=list(settings.seeds), victims=count, attack=settings.attack, tier=attack.tier,
        suite=settings.suite, noise="gaussian", asr={"strict": rate_of(np.arange(count) < successes)},
        confirmed=successes, lineup=Lineup(p_value=2e-4 if leaks else 0.5, confirmed_p_value=1e-4 if leaks else 1.0),
        verdict="leaks" if leaks else "resilient", outcomes=Outcomes(success=successes, failure=count - successes),
        controls=[Control(name="positive", held=True)], bound=Bound(theorem="a", events=[event]),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[Request, Asked]]:
    def start(successes: Callable[[CellSettings], int], **options: Any) -> tuple[Request, Asked]:
        asked: Asked = []

        def cell(settings: CellSettings) -> Any:
            asked.append(settings)
            return SimpleNamespace(cell=made(settings, successes(settings)))

        stub: Any = SimpleNamespace(with_told=lambda one: [cell(one).cell], folder=RunFolder(tmp_path))
        return Request(stub, tmp_path, quick=True, **options), asked

    return start


def informed(settings: CellSettings) -> bool:
    return settings.build_attack().tier == "informed"


def test_a_verdict_falls_where_only_those_who_know_bring_images_back(run: Any) -> None:
    request, asked = run(lambda cell: 30 if cell.defense == "none" or (informed(cell) and cell.tap == "T2.step") else 0)
    table = TABLES["judged-verdicts"](request)
    assert len(table.rows) == len(published(quick=True))
    at_hand = [row for row in table.rows if row["verdict"] != "not at hand"]
    assert at_hand and {row["data"] for row in at_hand} == {"mnist"}  # LFW is not bundled
    for row in at_hand:
        undefended = row["defense"] == "non-private"
        assert row["plain"] == ("N" if undefended else "Y")
        assert row["falls"] == ("falls" if row["tap"] == "T2.step" and not undefended else "")
        assert row["informed"] == ("N" if undefended or row["falls"] else "Y")
        assert row["verdict"] == (
            "-" if row["paper"] == "-" else "agrees" if row["paper"] == row["informed"] else "differs"
        )
        assert row["informed strict"] == ("30/60" if row["informed"] == "N" else "0/60")
    assert {cell.prior for cell in asked} == {"auto"} and {cell.attack for cell in asked} == {"cpl", "map", "identify"}
    assert table.notes[0].startswith(f"{sum(row['falls'] == 'falls' for row in at_hand)} of {len(at_hand)} ")


def test_places_are_those_of_the_paper() -> None:
    full = published(quick=False)
    assert {place.source: sum(one.source == place.source for one in full) for place in full} == {
        "Table III": 36, "Table X": 4, "noise": 21, "pruning": 33,
    }  # fmt: skip
    leaky = [one.resists for one in full if one.source == "Table III" and one.method in ("Quantile", "AdaClip")]
    assert leaky == ["N"] * 12  # as printed, on both datasets at all three surfaces
    noise = {(one.data, one.method): one.resists for one in full if one.source == "noise"}
    assert noise["lfw", "variance 0.01"] == "Y" and noise["lfw", "variance 0.001"] == "-"
    assert noise["mnist", "variance 0.01"] == "-"
    assert {one.batch for one in full if one.data == "lfw"} == {1, 3}


def test_a_ladder_ends_where_both_withstand(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = judged.Ladder("one", "fed_cdp", 0.001)
    monkeypatch.setattr(judged, "LADDERS", (ladder,))
    assert list(ladder.rungs(quick=True)) == [0.001, 0.01, 0.1, 1.0, 10.0] and len(list(ladder.rungs(False))) == 9
    request, _ = run(lambda cell: 30 if cell.defense_args["sigma"] < (0.05 if informed(cell) else 0.005) else 0)
    table = TABLES["judged-withstand"](request)
    assert [(row["noise"], row["plain"], row["informed"], row["leaks no more from"]) for row in table.rows] == [
        ("0.001", "N", "N", ""), ("0.01", "Y", "N", "plain"), ("0.1", "Y", "Y", "informed"),
    ]  # fmt: skip
    assert {row["ceiling"] for row in table.rows} == {"0.400"}
    assert [row["verdict"] for row in table.rows] == ["agrees", "differs", "agrees"]
    with Image.open(tmp_path / "withstand.png") as picture:
        assert picture.width > 300 and len(set(np.asarray(picture.convert("L")).flatten().tolist())) > 10


def test_a_ladder_that_leaks_again_begins_later() -> None:
    rungs: Any = [
        (sigma, SimpleNamespace(plain=SimpleNamespace(verdict=verdict)))
        for sigma, verdict in ((1, "leaks"), (2, "inconclusive"), (3, "leaks"), (4, "resilient"), (5, "resilient"))
    ]
    assert judged._withstands(rungs, "plain") == 4
    assert judged._withstands(rungs[:3], "plain") is None
