"""DP-SCAFFOLD's accuracy tables: the paper's settings, one rule for every step size, rows and verdicts."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.evaluation import Run
from harness.papers import TABLES, Request, dp_scaffold
from harness.papers.dp_scaffold import FAMILIES, METHODS, ScaffoldRuns, accounted, affordable, synthetic
from harness.papers.measured import SeededRuns
from harness.privacy.scaffold import scaffold_epsilon
from harness.results import RunFolder

SMALL = synthetic(steps=2, rounds=2, users=20, records=20)


def request_for(folder: Path, quick: bool = True, resume: bool = False) -> Request:
    return Request(Run(folder, RunFolder(folder), resume=resume), folder, quick=quick)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Federations of a moment: a few users with twenty records each."""
    monkeypatch.setitem(FAMILIES, "synthetic", SMALL)
    for module, name, value in (
        (dp_scaffold, "QUICK_GRID", (0.1, 1.0)), (dp_scaffold, "QUICK_ROUNDS", 2),
        (dp_scaffold, "FEW_ROUNDS", 2), (dp_scaffold, "affordable", lambda *_: 2),
        (dp_scaffold, "QUICK_SIGMAS", (10.0,)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def test_the_paper_settings() -> None:
    made = synthetic().settings("DP-SCAFFOLD-warm", 0.5, 3)
    assert (made.clients, made.clients_per_round, made.rounds, made.local_steps) == (100, 20, 400, 50)
    assert (made.batch_size, made.client_examples, made.warm_up_rounds) == (800, 4000, 20)
    assert made.learning_rate == pytest.approx(0.5 / 10) and made.delta == pytest.approx(1 / 400_000)
    assert made.defense_args == {"clip": 1.0, "sigma": 60.0}
    assert {name: synthetic().settings(name, 1.0, 0).local_steps for name in METHODS} == {
        name: 1 if name.endswith("FedSGD") else 5 if name.endswith("one pass") else 50 for name in METHODS
    }
    assert synthetic().settings("FedSGD", 1.0, 0).learning_rate == 1.0
    assert {name for name in METHODS if synthetic().settings(name, 1.0, 0).defense == "none"} == {
        name for name in METHODS if not name.startswith("DP-")
    }


@pytest.mark.parametrize(
    ("family", "expected"), [("FEMNIST", (40, 8, 400, 2000, 400)), ("MNIST", (60, 12, 160, 800, 100))]
)
def test_the_images_settings(family: str, expected: tuple[int, ...]) -> None:
    made = FAMILIES[family].settings("DP-SCAFFOLD", 1.0, 0)
    found = (made.clients, made.clients_per_round, made.batch_size, made.client_examples, made.rounds)
    assert found == expected and made.defense_args["sigma"] == 30.0
    assert (made.split, made.level) == ("similarity", 0.0)
    assert FAMILIES[family].least_heterogeneous().level == 1.0
    assert synthetic(sigma=10.0, steps=1).least_heterogeneous() == synthetic(dataset="logistic-0-0")


def test_what_is_trained_at_full_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for(tmp_path, quick=False)
    titles = [(one.title, one.steps, len(methods)) for one, methods in dp_scaffold._groups(request)]
    assert titles == [(f"logistic-{level}-{level}", 50, 10) for level in (0, 1, 5)] + [
        ("logistic-5-5", steps, 4) for steps in (5, 10, 100)
    ]
    assert [(row["data"], row["verdict"]) for row in dp_scaffold._missing(request)] == [
        ("FEMNIST", "not at hand"), ("MNIST", "not at hand"),
    ]  # fmt: skip
    monkeypatch.setattr(dp_scaffold, "at_hand", lambda data, root: (data, ""))
    titles = [one.title for one, _ in dp_scaffold._groups(request)]
    assert "FEMNIST, 10% similar" in titles and "MNIST, 100% similar" in titles


def test_every_private_method_costs_the_same_by_the_paper() -> None:
    costs = {
        name: scaffold_epsilon(accounted(name, synthetic()), "third party", "paper")
        for name in ("DP-FedAvg", "DP-SCAFFOLD", "DP-SCAFFOLD-warm")
    }
    assert list(costs.values()) == pytest.approx([12.91] * 3, abs=5e-3)
    assert accounted("SCAFFOLD", synthetic()) is None
    assert accounted("DP-FedSGD", synthetic()).steps == 1


def test_rounds_within_a_budget() -> None:
    """The trade-off table's own cells."""
    assert affordable(synthetic(sigma=10, user_rate=0.05, steps=40), 3.0) == 72


def test_step_sizes_are_chosen_once_and_found_again(
    tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float, int]] = []
    real = dp_scaffold.held_out_accuracy

    def counted(settings: object, root: Path) -> float:
        asked.append((settings.dataset, settings.learning_rate, settings.seed))
        return real(settings, root)

    monkeypatch.setattr(dp_scaffold, "held_out_accuracy", counted)
    sizes = dp_scaffold.StepSizes(request_for(tmp_path))
    chosen = sizes.of("DP-SCAFFOLD", SMALL)
    assert sizes.of("DP-SCAFFOLD", SMALL) is chosen and len(asked) == 2
    assert {one[0] for one in asked} == {"logistic-0-0"} and {one[2] for one in asked} == {dp_scaffold.SEED}
    assert chosen.accuracies[chosen.first] == max(chosen.accuracies.values())
    again = dp_scaffold.StepSizes(request_for(tmp_path, resume=True)).of("DP-SCAFFOLD", SMALL)
    assert again == chosen and len(asked) == 2
    assert any("DP-SCAFFOLD " in line for line in sizes.header())


def test_records_left_out_are_of_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        dp_scaffold, "accuracy_of", lambda model, weights, data: seen.append(len(data.labels)) or (0.5, 1)
    )
    made = replace(SMALL, records=3200, users=100).settings("FedSGD", 0.1, 0)
    assert dp_scaffold.held_out_accuracy(made, tmp_path) == 0.5
    assert seen == [400_000 - 320_000]


def test_a_size_that_diverges_is_the_worst(tmp_path: Path) -> None:
    wild = SMALL.settings("FedAvg", 1e30, 0).model_copy(update={"server_learning_rate": 1e30})
    assert dp_scaffold.held_out_accuracy(wild, tmp_path) == 0.0


def test_several_runs_unless_quick(tmp_path: Path) -> None:
    assert ScaffoldRuns(request_for(tmp_path, quick=False)).seeds == (0, 1, 2)
    assert ScaffoldRuns(request_for(tmp_path)).seeds == (0,)
    assert ScaffoldRuns(replace(request_for(tmp_path, quick=False), seeds=(4, 7))).seeds == (4, 7)


def test_what_a_cell_shows() -> None:
    assert str(SeededRuns((0.5, 0.6, 0.7), 0.2)) == "0.600 ± 0.100"
    assert str(SeededRuns((0.1,), 0.2)) == "0.100 chance"
    assert str(SeededRuns((0.5, None), 0.2)) == "0.250 ± 0.354 (1 diverged)"


def test_the_last_tenth_counts(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ScaffoldRuns(request_for(tmp_path))
    monkeypatch.setattr(runs._trained, "curve", lambda *_: {number: number / 100 for number in range(1, 101)})
    made = runs.of("FedAvg", replace(SMALL, rounds=100))
    assert made.values == (pytest.approx(0.955),)


@pytest.mark.slow
def test_accuracy_by_algorithm(tmp_path: Path, tiny: None) -> None:
    document = TABLES["dp-scaffold-accuracy"](request_for(tmp_path)).document()
    rows = document["rows"]
    assert [row["method"] for row in rows] == 2 * list(METHODS)
    assert {row["data"] for row in rows} == {"logistic-0-0", "logistic-5-5"}
    assert all((row["proven ε"] == "-") == (not row["method"].startswith("DP-")) for row in rows)
    assert {row["verdict"] for row in rows} <= {"agrees", "differs", "chance"}
    assert any("--quick" in line for line in document["header"]) and any(
        "accuracy points" in note for note in document["notes"]
    )


def test_verdicts_follow_the_order() -> None:
    made = {name: SeededRuns((0.5 if "SCAFFOLD" in name else 0.3,), 0.1) for name in METHODS}
    assert {row["verdict"] for row in dp_scaffold.method_rows(synthetic(), made)} == {"agrees"}
    made["DP-FedAvg"] = SeededRuns((0.6,), 0.1)
    wrong = {row["method"] for row in dp_scaffold.method_rows(synthetic(), made) if row["verdict"] == "differs"}
    assert wrong == {"DP-FedAvg", "DP-SCAFFOLD", "DP-SCAFFOLD-warm"}


def test_the_gap_is_that_of_its_rows(tmp_path: Path, tiny: None) -> None:
    made = TABLES["dp-scaffold-gap"](request_for(tmp_path))
    low, high = (float(row["accuracy"].split()[0]) for row in made.rows)
    points = float(made.notes[0].split("stands ")[1].split()[0])
    assert [row["method"] for row in made.rows] == ["DP-FedAvg", "DP-SCAFFOLD"]
    assert points == pytest.approx(100 * (high - low), abs=0.11)
    assert f"DP-FedAvg {low:.3f}; DP-SCAFFOLD {high:.3f}" in made.notes[1]


@pytest.mark.slow
def test_budgets(tmp_path: Path, tiny: None) -> None:
    request = request_for(tmp_path)
    (row,) = TABLES["dp-scaffold-tradeoff-accuracy"](request).rows
    assert row["K=1"].startswith("2: ") and row["verdict"] == ("agrees" if row["best K"] in (5, 10, 20) else "differs")
    made = TABLES["dp-scaffold-sampling"](request)
    assert [(row["varied"], row["rate"]) for row in made.rows][:5] == [
        ("l", 0.05), ("l", 0.08), ("l", 0.1), ("l", 0.12), ("s", 0.05),
    ]  # fmt: skip
    assert dp_scaffold.RUNS == 3 and made.notes[0].startswith("DP-SCAFFOLD is best with l = ")
