"""Tables of Bayesian DP and of global DP, at federations of a moment: rows, words, and how noise was chosen."""

from collections import Counter
from pathlib import Path

import pytest

from harness.evaluation import Run
from harness.papers import TABLES, Request, clients
from harness.papers import grid as tables
from harness.papers.clients import clipping_bound
from harness.papers.grid import grid
from harness.papers.measured import Measured
from harness.privacy import GaussianRelease
from harness.privacy.bayesian import moments_accountant
from harness.results import RunFolder
from harness.training import RoundRecord, TrainDocument, read_training


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """A data root with nothing in it but what is bundled, two examples per client and three rounds."""
    small = {"QUICK_EXAMPLES": 2, "QUICK_ROUNDS": 3, "BATCH": 1, "MOST_ROUNDS": 2, "QUICK_WARM_UP_ROUNDS": 1}
    for name, value in small.items():
        monkeypatch.setattr(clients, name, value)
    first = grid("global-dp").model_copy(update={"rows": grid("global-dp").rows[:1]})
    monkeypatch.setattr(tables, "grid", lambda name: first if name == "global-dp" else grid(name))
    return Request(Run(tmp_path, RunFolder(tmp_path)), tmp_path, quick=True)


def trained(request: Request, defense: str) -> list[TrainDocument]:
    folders = sorted(request.run.folder.path.glob("trained/*/training.json"))
    documents = [read_training(path.parent) for path in folders]
    return [one for one in documents if one.settings["defense"] == defense]


def _row(document: TrainDocument, level: str, direction: str) -> dict:
    return next(row for row in document.bayesian if (row["level"], row["direction"]) == (level, direction))


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_clients(here: Request, number: int) -> None:
    table = TABLES[f"bayesian-dp-table{number}"](here)
    (row,), printed = table.rows, grid(f"bayesian-dp-table{number}").printed()[0]
    (private,) = trained(here, "global_dp")
    spent = GaussianRelease(private.settings["defense_args"]["sigma"], 0.3, "poisson", count=3)
    assert moments_accountant().epsilon(spent, 1e-3).epsilon == pytest.approx(printed["epsilon"], abs=1e-3)
    assert float(row["DP ε"]) == pytest.approx(printed["epsilon"], abs=0.01)
    assert row["DP, BDP"].startswith(f"{private.accuracy:.3f}")
    assert row["BDP ε"] == f"{_row(private, 'client mean', 'max')['epsilon']:.2f}"
    assert row["BDP ε, fixed n"] == f"{_row(private, 'client', 'max')['epsilon']:.2f}"
    assert (row["paper's BDP ε"], row["paper's DP, BDP"]) == (
        printed["bayesian"], f"{printed['paper_dp']}%, {printed['paper_bdp']}%",
    )  # fmt: skip
    assert private.settings["split"] == grid(f"bayesian-dp-table{number}").facts["split"]
    assert any("not differential privacy" in note for note in table.notes)
    assert any("chosen once for all cells" in line for line in table.header)
    assert any("2 examples per client instead of 600" in line for line in table.header)


def test_photographs_that_are_not_at_hand(here: Request) -> None:
    table = TABLES["bayesian-dp-table3"](here)
    assert [row["verdict"] for row in table.rows] == ["not at hand"]
    assert "APTOS 2019 (retina): not at hand" in table.header[0]


@pytest.mark.slow
def test_joint(here: Request) -> None:
    table = TABLES["bayesian-dp-table4"](here)
    assert [row["verdict"] == "not at hand" for row in table.rows] == [True, False, False]
    for row, printed in zip(table.rows[1:], grid("bayesian-dp-table4").printed()[1:], strict=True):
        assert (row["split"], row["paper's DP"], row["paper's BDP"]) == (
            printed["split"], f"{printed['dp']}%", f"{printed['bdp']}%",
        )  # fmt: skip
        within = float(row["client ε"]) <= printed["client"] and float(row["instance ε"]) <= 0.1
        assert within == (int(row["rounds"]) > 0)
    noised = trained(here, "fed_sdp")
    assert len(noised) == 2 * 3 and {one.settings["defense_args"]["noise_at"] for one in noised} == {"client"}
    sigmas = Counter(one.settings["defense_args"]["sigma"] for one in noised)
    assert sigmas[1e-6] == 2  # the pilots
    sequential = [GaussianRelease(sigma / 2, 0.01, "poisson", count=30 * 3) for sigma in sigmas if sigma > 1e-3]
    spent = [moments_accountant().epsilon(one, 1e-5).epsilon for one in sequential]
    assert min(abs(epsilon - 0.1) for epsilon in spent) < 1e-3


def test_global(here: Request) -> None:
    (row,) = TABLES["global-dp"](here).rows
    (private,) = trained(here, "global_dp")
    arguments = private.settings["defense_args"]
    assert (arguments["epsilon"], arguments["max_delta"], arguments["sigma"]) == (8.0, 1e-3, clients.SIGMA)
    assert (row["N"], row["K"], row["theirs"], row["their accuracy"]) == (100, 50, 11, "0.78")
    assert row["rounds"] == 2 and row["stopped by"] == "the most rounds, 2"
    assert row["S"] == f"{arguments['clip']:.3g}" and row["accuracy"].startswith(f"{private.accuracy:.3f}")


@pytest.mark.slow
def test_global_stops_by_delta(here: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SIGMA", 0.7)
    monkeypatch.setattr(clients, "MOST_ROUNDS", 20)
    (row,) = TABLES["global-dp"](here).rows
    assert row["rounds"] < 20 and "delta above 0.001 for epsilon 8" in row["stopped by"]


@pytest.mark.slow
def test_resuming_trains_nothing_again(here: Request) -> None:
    table = TABLES["bayesian-dp-table2"](here)
    stamps = {path: path.stat().st_mtime_ns for path in here.run.folder.path.rglob("training.json")}
    again = Request(Run(here.data_root, here.run.folder, resume=True), here.data_root, quick=True)
    assert TABLES["bayesian-dp-table2"](again).document() == table.document()
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_the_bound_is_the_median_of_the_first_tenth() -> None:
    norms = [3.0, 1.0, 2.0] + [100.0] * 27
    rounds = [RoundRecord(round=1 + n, update_norm=norm, participants=1, seconds=0) for n, norm in enumerate(norms)]
    assert clipping_bound(TrainDocument.model_construct(rounds=rounds)) == 2.0


@pytest.mark.parametrize(
    ("dp", "bdp", "verdict"),
    [(0.3, 0.5, "agrees"), (0.5, 0.3, "differs"), (0.05, None, "chance"), (0.3, None, "differs")],
)
def test_verdicts_of_the_joint_table(dp: float, bdp: float | None, verdict: str) -> None:
    def measured(accuracy: float) -> Measured:
        return Measured(accuracy, accuracy < 0.1, {1: accuracy}, 1)

    assert clients._verdict(measured(dp), None if bdp is None else measured(bdp)) == verdict
