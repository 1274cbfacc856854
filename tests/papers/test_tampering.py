"""Servers that tamper, beside the papers and behind secure sums: what is run, what is said of it, and the picture."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness.experiment import CellSettings
from harness.papers import TABLES, Request
from harness.papers import tampering as sums
from harness.papers.epsilons import configurations
from harness.papers.tampering import CELLS
from harness.reports.noise_ladders import Sums, save_secure_sums
from harness.results import Bound, Ceiling, CellResult, Control, Outcomes, RunFolder
from harness.scoring import rate_of

Asked = list[CellSettings]


def made(settings: CellSettings, share: float) -> CellResult:
    """What a cell comes to in which so large a share of images comes back, and blindly one in fifty."""
    attack, images = settings.build_attack(), settings.victims * settings.examples
    count, guessed = np.arange(images) < share * images, rate_of(np.arange(images) < images / 50)
    event = Ceiling(event="strict image", kappa=0.02, ceiling=0.3, measured=rate_of(count))
    noisy = settings.defense_args.get("sigma", 0.0) > 0
    return CellResult(
        dataset=settings.dataset, model=settings.model, attack=settings.attack, tier=attack.tier,
        batch_size=settings.batch_size, tap=settings.tap, defense=settings.defense, victims=settings.victims,
            seeds=[0], cohort={"rounds": 20},
        asr={"strict": rate_of(count)}, verdict="leaks" if share > 0.2 else "inconclusive", seconds=3.0,
        controls=[] if attack.tier == "plain" else [Control(name="blind", held=True, by_luck=guessed)],
        bound=Bound(theorem="a", events=[event]) if noisy else Bound(reason="none"), outcomes=Outcomes(),
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., tuple[Any, Asked]]:
    def run(share: Callable[[CellSettings], float], **options: Any) -> tuple[Any, Asked]:
        asked: Asked = []

        def cell(settings: CellSettings) -> Any:
            asked.append(settings)
            return SimpleNamespace(cell=made(settings, share(settings)))

        stub: Any = SimpleNamespace(cell=cell, folder=RunFolder(tmp_path))
        return TABLES["tampering"](Request(stub, tmp_path, **{"quick": True, **options})), asked

    return run


def tampers(settings: CellSettings) -> bool:
    return settings.build_attack().tier == "tampering"


def noisy(settings: CellSettings) -> bool:
    return settings.defense_args.get("sigma", 0.0) > 0


def test_ours_stand_beside_the_papers_and_beside_what_noise_promises(table: Any) -> None:
    made, asked = table(lambda cell: 0.02 if noisy(cell) or not (tampers(cell) or cell.attack == "spear") else 0.9)
    rows = {(row["attack"], row["batch"]): row for row in made.rows[: len(CELLS)]}
    assert (
        rows["imprint", 64]["verdict"] == rows["loki", 8]["verdict"] == rows["trap_weights", 100]["verdict"] == "agrees"
    )
    assert rows["spear", 4]["verdict"] == "differs" and rows["trap_weights", 8]["verdict"] == "-"
    assert rows["loki", 8]["clients"] == 10 and rows["loki", 8]["s per victim"] == "0.25"
    behind = made.rows[len(CELLS) :]
    assert {row["verdict"] for row in behind if row["noise"] == "none"} == {"-"}
    assert {row["verdict"] for row in behind if row["noise"] != "none"} == {"agrees"}
    assert {(row["attack"], row["server"]) for row in behind} >= {("cpl", "honest"), ("loki", "tampers")}
    assert all(cell.prior == "auto" for cell in asked if cell.defense == "secagg_ddp")


def test_more_behind_noise_than_blindly_is_told(table: Any) -> None:
    made, _ = table(lambda cell: 0.9 if tampers(cell) else 0.0)
    behind = [row for row in made.rows[len(CELLS) :] if row["noise"] != "none"]
    assert {row["verdict"] for row in behind if row["server"] == "tampers"} == {"differs"}
    assert {row["verdict"] for row in behind if row["server"] == "honest"} == {"agrees"}


@pytest.mark.parametrize("quick", [True, False])
def test_layers_of_bins_are_equally_large_and_the_noise_is_that_of_the_paper(table: Any, quick: bool) -> None:
    _, asked = table(lambda cell: 0.5, quick=quick)
    behind = [cell for cell in asked if cell.defense == "secagg_ddp" and cell.batch_size == sums.BATCH]
    for cell in behind:
        if cell.attack in ("imprint", "loki"):
            copies = cell.clients_per_round if cell.attack == "loki" else 1
            assert cell.attack_args["bins"] * copies == sums.BINS * sums.BATCH * cell.clients_per_round
    one = configurations()[sums.CONFIGURATION]
    assert {round(cell.defense_args["sigma"] ** 2 / one.clients / one.sigma**2, 6) for cell in behind} == {0, 1}
    assert {cell.clients_per_round for cell in behind} == set(sums.QUICK_CLIENTS if quick else sums.CLIENTS)
    victims = {(cell.attack, cell.clients_per_round): cell.victims for cell in behind}
    assert victims["loki", 50] == (2 if quick else 4) and victims["cpl", 2] == (2 if quick else 20)


def test_the_picture_has_a_panel_for_each_noise(table: Any, tmp_path: Path) -> None:
    table(lambda cell: 0.5, victims=3)
    with Image.open(tmp_path / sums.PICTURE) as picture:
        assert picture.width > 2 * picture.height and len(set(np.asarray(picture.convert("L")).flatten().tolist())) > 10
    with pytest.raises(ValueError, match="no secure sum"):
        save_secure_sums(tmp_path / "none.png", [Sums("nothing", {})])
