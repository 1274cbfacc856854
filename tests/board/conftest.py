"""A small run with its training and a suite of two attacks, its card, and a folder where that was made again."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.board import collect, read_card
from harness.board.comparing import Workspace, rebuild
from harness.results.card import Card

FEDERATION = "--clients 4 --clients-per-round 4 --rounds 2 --learning-rate 0.1 --dataset digits --model logistic"
ATTACKED = (
    f"evaluate --defense fed_cdp --defense-arg sigma=1 --attack tiny --surface 0 --victims 24 {FEDERATION} "
    "--steps-per-round 2 --no-pictures"
)
TRAINED = (
    f"train --defense fed_cdp --defense-arg sigma=1 {FEDERATION} --local-steps 2 --batch-size 4 --split iid "
    "--client-sampling all --batch-sampling poisson --seed 0"
)


@contextmanager
def the_suite() -> Iterator[pytest.MonkeyPatch]:
    """``tiny``, with an older version that was dropped, and ``mixed``, with members for texts and for images, known for
    as long as they are needed."""
    from harness.attacks import SUITES
    from harness.attacks.suites import DROPPED, LATEST

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DROPPED, "tiny-1", "0.1.7")
        patch.setitem(SUITES, "tiny-2", {"analytic": {}, "identify": {}})
        patch.setitem(LATEST, "tiny", "tiny-2")
        patch.setitem(SUITES, "mixed-1", {"token_rows": {}, "patches": {}, "identify": {}})
        patch.setitem(LATEST, "mixed", "mixed-1")
        yield patch


@pytest.fixture(autouse=True)
def a_suite() -> Iterator[None]:
    with the_suite():
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of ``harness evaluate`` and ``harness train``."""
    from harness.cli import run

    folder = tmp_path_factory.mktemp("runs")
    with the_suite() as patch:
        patch.setenv("HARNESS_DATA", str(folder / "none"))
        assert run([*ATTACKED.split(), "--out", str(folder / "attacked")]) == 0
        assert run([*TRAINED.split(), "--out", str(folder / "trained")]) == 0
    return [folder / "attacked", folder / "trained"]


@pytest.fixture(scope="session")
def card(runs: list[Path]) -> Card:
    with the_suite():
        (made,) = collect(runs).cards
    return made


@pytest.fixture(scope="session")
def again(card: Card, tmp_path_factory: pytest.TempPathFactory) -> tuple[Card, Path]:
    """The card made again from nothing, and the folder of that."""
    folder = tmp_path_factory.mktemp("again")
    with the_suite():
        return rebuild(card, Workspace(folder / "none", folder / "made")), folder / "made"


@pytest.fixture
def file(card: Card, tmp_path: Path) -> Path:
    path = tmp_path / "card.json"
    path.write_bytes(card.content())
    assert read_card(path) == card
    return path


@pytest.fixture
def made(again: tuple[Card, Path], tmp_path: Path) -> Path:
    """A copy of the folder, so that only what a wrong card asks for beyond it is made."""
    return Path(shutil.copytree(again[1], tmp_path / "made"))
