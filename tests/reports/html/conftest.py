"""Small runs as ``harness evaluate`` and ``harness train`` leave them, made without attacking anything."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.reports.pictures import save_grid
from harness.results import (
    CellResult,
    Control,
    Lineup,
    Outcomes,
    Rate,
    ResultDocument,
    RunFolder,
    Statement,
    Summary,
    VictimRecord,
    write_atomic,
)
from harness.results.card import Card, CardCell, CardTraining, MeasuredVictims, Reported
from harness.results.record import Bound, Ceiling
from harness.scoring.summarise import summarise
from harness.scoring.verdict import fault_of

TAPS = {2: "T2.step", 1: "T1.out", 0: "T0.in"}
MakeCell = Callable[..., CellResult]
WriteRun = Callable[..., Path]


VOID = {"meta", "img", "br", "input", "link"}


class Outline(HTMLParser):
    """Elements with their attributes; fails where one is left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, words: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words.append(words)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def make_cell(defense: str = "none", surface: int = 2, **changes: Any) -> CellResult:
    """A cell of 60 victims that leaks, or with ``verdict`` something else."""
    leaks = changes.get("verdict", "leaks") == "leaks"
    came_back = 57 if leaks else 0
    rate = Rate(rate=came_back / 60, successes=came_back, n=60, ci95=(0.861, 0.99) if leaks else (0.0, 0.06))
    error = 0.01 if leaks else 0.69
    facts = {
        "dataset": "mnist-sample", "model": "lenet", "defense": defense, "defense_args": {"sigma": 6.0},
        "attack": "cpl", "attack_args": {"max_iterations": 300}, "surface": surface, "tap": TAPS[surface],
        "seeds": [0], "victims": 60, "cohort": {"clients": 100, "rounds": 100}, "metrics": {
            "rmse": Summary(mean=error, median=error), "psnr": Summary(mean=20.0),
            "tau": Summary(mean=19.0 if leaks else 300.0),
        },
        "asr": {"strict": rate}, "confirmed": came_back, "lineup": Lineup(rate=0.9, p_value=0.0001 if leaks else 0.9),
        "verdict": "leaks", "verdict_reason": "images come back" if leaks else "no leak was found",
        "controls": [Control(name="positive", held=True, detail="the attack leaks undefended")],
        "outcomes": Outcomes(success=came_back, failure=60 - came_back),
        "noise": "gaussian" if defense.startswith("fed_") else None,
        "privacy": [
            Statement(view="server", claimed_epsilon=0.82, epsilon=2.31, guarantee="client-LDP", notes="why"),
        ],
    }  # fmt: skip
    facts |= changes
    facts.setdefault("key", hashlib.sha256(repr(sorted(facts.items(), key=str)).encode()).hexdigest()[:20])
    return CellResult(**facts)


def make_victims(cell: CellResult) -> list[VictimRecord]:
    leaks = cell.verdict == "leaks"
    return [
        VictimRecord(
            cell=cell.key or "", dataset=cell.dataset, defense=cell.defense, attack=cell.attack, tap=cell.tap, seed=0,
            victim=number, outcome="success" if leaks else "failure", rmse=(0.01 if leaks else 0.6) + 0.001 * number,
            psnr=40.0 - number, ssim=0.9, tau=float(3 + number) if leaks else 300.0,
        )
        for number in range(12)
    ]  # fmt: skip


def make_run(folder: Path, cells: Sequence[CellResult], pictures: bool = True) -> Path:
    """A run folder of these cells."""
    place = RunFolder(folder)
    fault = fault_of(cells)
    document = ResultDocument(
        environment={"versions": {"torch": "2.11"}}, cells=cells, summary=summarise(cells), valid=fault is None,
        valid_reason=fault,
    )  # fmt: skip
    place.write_results(document, [victim for cell in cells for victim in make_victims(cell)])
    for cell in cells if pictures else ():
        write_atomic(place.picture(cell.key or ""), a_picture())
    return folder


@lru_cache
def a_picture() -> bytes:
    images = np.random.default_rng(0).random((2, 1, 8, 8))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "grid.png")
        save_grid(file, images, [("iteration 1", images)], images, ["RMSE 0.1"] * 2, "a title")
        return file.read_bytes()


def make_training(folder: Path, defense: str = "fed_cdp", **settings: Any) -> Path:
    """A training folder of three rounds."""
    statement = Statement(view="third party", claimed_epsilon=0.8, epsilon=2.5, guarantee="sample-DP", notes="n")
    given = {"dataset": "mnist-sample", "defense": defense, "defense_args": {"sigma": "6"}, "rounds": 3}
    document = {
        "schema_version": 1, "kind": "training", "environment": {}, "units": "", "parameters": 10, "train_examples": 10,
        "settings": given | settings,
        "test_examples": 10, "overlap": 1.0, "accuracy": 0.81, "privacy": [asdict(statement)], "weights": {},
        "rounds": [{"round": one, "accuracy": 0.81 * one / 3, "participants": 5, "seconds": 1.0} for one in (1, 2, 3)],
        "seconds": 3.0,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training.json").write_text(json.dumps(document))
    return folder


def make_judged(folder: Path, **changes: Any) -> Path:
    """What ``harness judge`` leaves of three captures whose truth is not known, with the picture of what it made."""
    check = {"name": "noise is on every tensor", "outcome": "violated", "detail": "it is off", "p_value": 0.0}
    estimate = {
        "attack": "cpl", "estimates": ["plausibly reconstructed", "no", "no"], "reason": "stand-ins come back",
        "left": [1e-9, 0.4, 0.5], "left_shuffled": [0.5, 0.5, 0.5], "left_usually": 1e-8, "labels": [[1], [0], [3]],
    }  # fmt: skip
    record = {"model": "lenet", "defense": {"name": "fed_cdp", "settings": {"sigma": 6}}, "framework": "flower"}
    document = {
        "valid": True, "captures": 3, "images_each": 1, "record": record, "checks": [check], "estimates": [estimate],
        "results": None,
    }  # fmt: skip
    write_atomic(folder / "judged.json", json.dumps(document | changes).encode())
    write_atomic(folder / "pictures" / "judged_cpl.png", a_picture())
    return folder


def make_card(cell: CellResult, **changes: object) -> Card:
    (row,) = summarise([cell])
    facts: dict[str, Any] = {
        "environment": {"versions": {"harness": "0.1.2", "torch": "2.14"}, "machine": "x86_64", "threads": 1},
        "command": "harness evaluate --defense fed_cdp", "row": row,
        "cells": [CardCell(settings={}, result=cell, victims=MeasuredVictims())],
    }  # fmt: skip
    return Card(**facts | changes).sealed()


def make_cards() -> list[Card]:
    statement = Statement(view="server", epsilon=12.5, delta=1e-5, unit="example", guarantee="sample-DP", notes="why")
    trained = CardTraining(settings={}, accuracy=0.906, rounds=20, test_examples=360, privacy=[statement])
    event = Ceiling(event="strict image", ceiling=0.25)
    return [
        make_card(make_cell("none"), reported=Reported(source="a paper, Table III", data="mnist", resists="Y")),
        make_card(
            make_cell("fed_cdp", 1, verdict="resilient", bound=Bound(theorem="Gaussian", events=[event])),
            training=trained, statement=statement,
        ),
        make_card(make_cell("fed_sdp", 0, verdict="inconclusive", bound=Bound(reason="nothing is clipped"))),
        make_card(make_cell("dssgd", 0), status="unreliable", reason="negative control swap failed"),
        make_card(make_cell("pruning", 0, not_applicable_reason="too large", verdict="inconclusive", asr={})),
        *(make_card(make_cell("noise", 0, defense_args={"amount": float(one)})) for one in range(4)),
    ]  # fmt: skip


@pytest.fixture
def a_cell() -> MakeCell:
    return make_cell


@pytest.fixture
def a_run() -> WriteRun:
    return make_run


@pytest.fixture
def a_training() -> WriteRun:
    return make_training


@pytest.fixture
def a_judged() -> WriteRun:
    return make_judged


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run of three defenses at three surfaces under two attacks, and a training run."""
    root = tmp_path_factory.mktemp("grid")
    words = {"none": "leaks", "fed_sdp": "leaks", "fed_cdp": "resilient"}
    doubtful = ("fed_sdp", 0)
    cells = [
        make_cell(
            defense, surface, attack=attack, verdict="inconclusive" if (defense, surface) == doubtful else verdict
        )
        for defense, verdict in words.items()
        for surface in TAPS
        for attack in ("cpl", "dlg")
    ]
    return [make_run(root / "eval", cells), make_training(root / "train")]


@pytest.fixture(scope="session")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures that were judged without a truth."""
    return make_judged(tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="session")
def outline_of() -> Callable[[str], Outline]:
    return Outline


@pytest.fixture
def a_card() -> Callable[..., Card]:
    return make_card


@pytest.fixture(scope="session")
def cards() -> list[Card]:
    """A board's, of every kind of verdict."""
    return make_cards()
