"""Accuracy columns: settings of the paper, one run per settings, chance marked, trends judged; costs and sweeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import load_dataset
from harness.evaluation import Run
from harness.papers import TABLES, Request, fed_acdp, measures
from harness.papers import accuracy as module
from harness.papers import grid as tables
from harness.papers.accuracy import Accuracies
from harness.papers.grid import grid
from harness.papers.measured import Measured, below_non_private, orders
from harness.privacy.views import REPEATABLE
from harness.results import RunFolder
from harness.study import runner as trained
from harness.training import DivergedError
from harness.training.chance import chance_level

TINY = {"clients": 4, "clients_per_round": 2, "rounds": 2, "local_steps": 2}


def request_for(folder: Path, quick: bool = True, resume: bool = False) -> Request:
    return Request(Run(folder, RunFolder(folder), resume=resume), folder, quick=quick)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Federations of a moment: three clients of the samples and of Cancer."""
    for name, value in {"QUICK_CLIENTS": 3, "QUICK_PER_ROUND": 2, "QUICK_ROUNDS": 2, "SAMPLE_STEPS": 2}.items():
        monkeypatch.setattr(module, name, value)
    small = {name: replace(one, examples=4 * one.batch_size) for name, one in module.TABLE_2.items()}
    monkeypatch.setattr(module, "TABLE_2", small)


def test_the_paper_settings(tmp_path: Path) -> None:
    settings = Accuracies(request_for(tmp_path, quick=False)).settings("Fed-αCDP", "cancer")
    assert settings is not None
    assert (settings.clients, settings.clients_per_round, settings.rounds) == (1000, 100, 3)
    assert (settings.local_steps, settings.batch_size, settings.client_examples) == (100, 4, 400)
    assert (settings.learning_rate, settings.server_learning_rate, settings.model) == (0.05, 1.0, None)
    assert (settings.defense, settings.split) == ("fed_acdp", "iid")
    mnist = Accuracies(request_for(tmp_path, quick=False)).settings("Fed-CDP", "mnist", defense_args={"clip": 2.0})
    assert mnist is not None and (mnist.dataset, mnist.split) == ("mnist-sample", "shards")
    assert mnist.defense_args == {"clip": 2.0}
    assert Accuracies(request_for(tmp_path)).settings("Fed-CDP", "lfw") is None


@pytest.mark.usefixtures("coarse_losses")
def test_a_papers_run_says_that_its_noise_is_known(tmp_path: Path) -> None:
    runs = trained.TrainedRuns(request_for(tmp_path))
    settings = Accuracies(runs.request).settings("Fed-CDP", "mnist", **TINY)
    assert settings is not None
    document = runs.document("a run", settings)
    assert document is not None and not document.secret
    notes = [one.notes for one in document.privacy if one.guarantee != "none"]
    assert notes and all(REPEATABLE in one for one in notes)


def test_equal_settings_train_once_and_resume_reuses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies, runs = Accuracies(request_for(tmp_path)), []
    real = trained.train
    monkeypatch.setattr(trained, "train", lambda *given: runs.append(given) or real(*given))
    first = accuracies.of("non-private", "cancer", **TINY)
    assert accuracies.of("non-private", "cancer", share=0.5, **TINY) is not None and len(runs) == 1
    again = Accuracies(request_for(tmp_path, resume=True)).of("non-private", "cancer", **TINY)
    assert len(runs) == 1 and again == first
    Accuracies(request_for(tmp_path, resume=True)).of("non-private", "cancer", **TINY | {"rounds": 1})
    Accuracies(request_for(tmp_path)).of("non-private", "cancer", **TINY)
    assert len(runs) == 3


def test_a_share_of_the_rounds(tmp_path: Path) -> None:
    accuracies = Accuracies(request_for(tmp_path))
    whole, half = (accuracies.of("non-private", "cancer", share, **TINY) for share in (1.0, 0.5))
    assert whole is not None and half is not None
    assert (whole.accuracy, half.accuracy) == (whole.curve[2], whole.curve[1])


def test_divergence_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(*_: object) -> None:
        raise DivergedError("weights hold NaN")

    monkeypatch.setattr(trained, "train", diverges)
    made = Accuracies(request_for(tmp_path)).of("noise", "cancer", **TINY)
    assert made is not None and str(made) == "diverged" and made.chance


def test_chance_is_what_needs_no_training(tmp_path: Path) -> None:
    labels = load_dataset("cancer", tmp_path, "test").labels
    majority = float(labels.bincount().max()) / len(labels)
    assert majority < chance_level("cancer", None, tmp_path) < 0.9
    assert 0.1 < chance_level("mnist-sample", None, tmp_path) < 0.4
    assert str(Measured(0.1, True, {1: 0.1}, 1)) == "0.100 chance"


def test_orders() -> None:
    def made(accuracy: float, chance: bool = False) -> Measured:
        return Measured(accuracy, chance, {1: accuracy}, 1)

    paper = {"non-private": 0.98, "Fed-SDP": 0.92, "Fed-CDP": 0.95}
    ours = {"non-private": made(0.9), "Fed-SDP": made(0.5), "Fed-CDP": made(0.4)}
    assert orders(paper, ours) == {"non-private": "agrees", "Fed-SDP": "differs", "Fed-CDP": "differs"}
    ours |= {"Fed-CDP": made(0.1, chance=True)}
    assert orders(paper, ours | {"Fed-SDP": None}) == {
        "non-private": "agrees", "Fed-SDP": "not at hand", "Fed-CDP": "chance",
    }  # fmt: skip
    assert "above every row" in below_non_private("N=100", ours)
    assert "not above Fed-CDP" in below_non_private("N=100", ours | {"Fed-CDP": made(0.95)})


@pytest.mark.parametrize("table", [
    "table7", *(pytest.param(table, marks=pytest.mark.slow) for table in ("table4", "table5", "table6")),
])  # fmt: skip
def test_tables(table: str, tmp_path: Path, tiny: None) -> None:
    document = TABLES[table](request_for(tmp_path)).document()
    rows = document["rows"]
    assert all(list(row) == list(rows[0]) and list(row)[-1] == "verdict" for row in rows)
    assert any("--quick" in line for line in document["header"])
    assert any("nothing is tuned" in note for note in document["notes"])
    if table != "table4":
        assert {row["accuracy"] for row in rows if row["data"] == "lfw"} == {"-"}
        assert all(row["accuracy"] != "-" for row in rows if row["data"] in ("mnist", "cancer"))


@pytest.mark.parametrize("table", [pytest.param("table8", marks=pytest.mark.slow), "table11"])
def test_tables_over_schedules(table: str, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # The accounting columns take half a minute and have tests of their own.
    for one in (fed_acdp.UnderDecay, fed_acdp.ByAccountant):
        found = {"rounds": 95, "filter": 94, "T": 100, "verdict": "agrees"}
        monkeypatch.setattr(one, "accounted", lambda self, row, found=found: found)
    made = TABLES[table](request_for(tmp_path)).document()["rows"]
    first = next(row for row in made if "linear" in row.values())
    assert first["accuracy"] != "-" and list(first)[-1] == "verdict"
    assert first["paper acc"] == ("0.981" if table == "table8" else "0.984")


def test_table_11_has_both_methods_of_fixed_noise_and_counts_their_epsilon_once(tmp_path: Path) -> None:
    table = grid("table11")
    measure = fed_acdp.ByAccountant(table, request_for(tmp_path))
    rows = [row for row in table.printed() if row["noise"] in ("fixed", fed_acdp.FIXED_ALPHA)]
    assert [(row["accountant"], measure.accounted(row)["verdict"]) for row in rows] == [
        (name, verdict) for verdict in ("agrees", "-") for name in ("base", "advanced", "zcdp", "rdp")
    ]
    assert [row["paper_accuracy"] for row in rows] == [0.956] * 4 + [0.979] * 4


# Tables IX and X and the sweeps, at a few victims and repeats.


def keep(monkeypatch: pytest.MonkeyPatch, name: str, rows: list[list[Any]]) -> None:
    changed = grid(name).model_copy(update={"rows": rows})
    monkeypatch.setattr(tables, "grid", lambda _: changed)


@pytest.mark.slow
def test_times(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "QUICK_REPEATS", 1)
    rows = TABLES["table9"](replace(request_for(tmp_path), victims=2)).rows
    assert len(rows) == 25 and {row["verdict"] for row in rows if row["data"] == "lfw"} == {"not at hand"}
    assert all(float(row["ms"]) > 0 for row in rows if row["data"] == "cancer")
    assert {row["ratio"] for row in rows if row["method"] == "non-private" and row["ms"] != "-"} == {"1.00"}


@pytest.mark.slow
def test_adaptive_clipping(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "QUICK_REPEATS", 1)
    # Attacks take their time and have tests of their own.
    monkeypatch.setattr(measures.AdaptiveClipping, "_resists", lambda self, method: f"{method} 2")
    rows = TABLES["table10"](replace(request_for(tmp_path), victims=2)).rows
    assert [row["method"] for row in rows[:4]] == ["non-private", "Quantile", "AdaClip", "Fed-αCDP[σ]"]
    assert rows[3]["resilient"] == "Fed-αCDP[σ] exponential 2"
    assert all(row["accuracy"] != "-" for row in rows if row["data"] == "cancer")


@pytest.mark.slow
def test_sweep_of_pruning(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, "sweep-pruning", [["mnist", 0.0, "leaks", True], ["mnist", 0.5, "protects", True]])
    rows = TABLES["sweep-pruning"](replace(request_for(tmp_path), victims=2)).rows
    assert [(row["pruned"], row["paper"]) for row in rows] == [("0", "leaks"), ("0.5", "protects")]
    assert all("/2" in row["ASR strict"] and row["accuracy"] != "-" for row in rows)


@pytest.mark.slow
def test_sweep_of_noise(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(monkeypatch, "sweep-noise", [["mnist", 0.0, "-", True]])
    made = TABLES["sweep-noise"](replace(request_for(tmp_path), victims=2))
    (row,) = made.rows
    assert made.summary == "0 of 0 cells agree with the paper"  # which has no number for MNIST
    assert (row["variance"], row["paper"], row["verdict"]) == ("0", "-", "-") and row["accuracy"] != "-"
