"""The commands on the page: they make the same cells again, and no name in them can do anything else."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attacks.suites import reading
from harness.reports.html.commands import _quoted, evaluate_commands, train_command
from harness.reports.html.places import shown_cells
from harness.reports.html.run_data import RunData
from harness.reports.html.runs import read_runs
from harness.reports.html.tables import privacy_table
from harness.results import CellResult, Lineup


def commands(*cells: CellResult, settings: dict | None = None) -> list[str]:
    run = RunData("run", Path("run"), cells=list(cells), settings=settings or {})
    return evaluate_commands(shown_cells([run]))


def test_a_cell_of_a_training_run_names_the_run(a_cell: Callable) -> None:
    """Whose statements the figure shows; its model alone would be attacked as if trained otherwise."""
    files = {"weights": "my run/models/round_00002.pt", "rounds": 3}
    asked = {"trained": {"folder": "my run", "rounds": 2}, "round": 2, **files}
    [command] = commands(a_cell(key="a"), settings={"a": asked})
    assert "--training 'my run' --round 2" in command
    assert "--weights" not in command and "--rounds" not in command


STATEMENT = {
    "view": "server", "epsilon": 2.5, "delta": 1e-5, "guarantee": "sample-DP local view", "unit": "example",
    "notes": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("trained", "of"),
    [
        ({"folder": "some/run", "rounds": 2}, "mnist-sample, 2 rounds trained (run)"),
        (None, "mnist-sample, 100 planned rounds"),
        ("hostile folder", "mnist-sample, 100 planned rounds"),
        ({"folder": 3, "rounds": "many"}, "mnist-sample, 100 planned rounds"),
    ],
)
def test_a_statement_is_of_the_rounds_that_ran(a_cell: Callable, trained: object, of: str) -> None:
    cell = a_cell(key="a", privacy=[STATEMENT], cohort={"rounds": 100})
    run = RunData("run", Path("run"), cells=[cell], settings={"a": {"trained": trained}})
    (row,) = privacy_table([run], shown_cells([run])).rows
    assert of in [value.shown for value in row]


def test_cells_of_a_grid_are_one_command(a_cell: Callable) -> None:
    cells = [a_cell(name, surface, key=f"{name}{surface}") for name in ("none", "fed_cdp") for surface in (2, 0)]
    settings = {cell.key: {"defense_args": {}, "attack_args": {}, "learning_rate": 0.1} for cell in cells}
    [command] = commands(*cells, settings=settings)
    assert command == (
        "harness evaluate --defense none,fed_cdp --attack cpl --tap T2.step,T0.in --dataset mnist-sample "
        "--model lenet --victims 60 --seed 0 --learning-rate 0.1"
    )


def test_other_arguments_are_another_command(a_cell: Callable) -> None:
    made = commands(a_cell("fed_cdp", defense_args={"sigma": 1.0}), a_cell("fed_cdp", defense_args={"sigma": 6.0}))
    assert [command.split("--defense-arg ")[1].split()[0] for command in made] == [
        "fed_cdp.sigma=1.0", "fed_cdp.sigma=6.0",
    ]  # fmt: skip


def test_victims_are_counted_per_seed(a_cell: Callable) -> None:
    [command] = commands(a_cell(victims=60, seeds=[0, 1, 2]))
    assert "--victims 20 --seed 0,1,2" in command


def test_a_command_is_understood_by_harness_evaluate(a_cell: Callable) -> None:
    from harness.cli.evaluate import cells_from, merge

    cell = a_cell("fed_cdp", defense_args={"sigma": 3.0, "noise_scale": 1.0}, attack_args={"restarts": 2})
    words = shlex.split(commands(cell)[0])[2:]
    options: dict = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        options.setdefault(name.removeprefix("--").replace("-", "_"), []).append(value)
    options["victims"] = int(options["victims"][0])
    options |= {name: int(options[name][0]) for name in ("clients", "rounds") if name in options}
    [merged] = merge(options, None, None)
    [made] = cells_from(merged, "cpu")
    assert (made.defense, made.tap, made.victims) == ("fed_cdp", "T2.step", 60)
    assert made.build_defense().sigma == 3.0 and made.build_attack().restarts == 2


def test_training_can_be_made_again(tmp_path: Path, a_training: Callable) -> None:
    [run] = read_runs([a_training(tmp_path, "fed_cdp")])
    assert train_command(run) == (
        "harness train --dataset mnist-sample --defense fed_cdp --rounds 3 --defense-arg sigma=6"
    )


def test_a_delta_that_protects_nobody_is_said(tmp_path: Path, a_training: Callable) -> None:
    """Of ten examples, on the page of a training run as in the terminal."""
    [run] = read_runs([a_training(tmp_path, "fed_cdp")])
    assert run.training is not None
    for delta, said in ((0.1, "n; delta 0.1 is at least one over the 10 examples"), (0.09, "n")):
        stated = [replace(one, delta=delta, unit="example") for one in run.training.privacy]
        run.training = run.training.model_copy(update={"privacy": stated})
        [row] = privacy_table([run], []).rows
        assert any(value.shown.startswith(said) for value in row) and (delta == 0.1) == ("published whole" in str(row))


def test_a_secret_key_is_no_seed_to_repeat(tmp_path: Path, a_training: Callable) -> None:
    [run] = read_runs([a_training(tmp_path, "fed_cdp", seed=0)])
    assert "--seed 0" in train_command(run) and run.training is not None
    run.training = run.training.model_copy(update={"secret": True})
    command, _, said = train_command(run).partition(" # ")
    assert "--seed" not in command and said.startswith("splits and initial weights come out again; noise and sampling")


@given(st.text(max_size=60))
def test_a_name_is_one_harmless_word(name: str) -> None:
    [word] = shlex.split(_quoted(name))
    assert not word.startswith("-")


@pytest.mark.parametrize("name", ["$(touch x)", "`id`", "a; rm -rf /", "a\nb", "--out", "a' 'b"])
def test_what_a_shell_would_obey_is_quoted(name: str) -> None:
    assert len(shlex.split(_quoted(name))) == 1
    assert "\n" not in _quoted(name)


@pytest.mark.parametrize(("skips", "whole"), [(True, False), (False, True)])
def test_a_suite_that_ran_on_where_its_place_was_settled_runs_on_again(
    a_cell: Callable, skips: bool, whole: bool
) -> None:
    first, *others = reading("auto-9", texts=False)
    leak = Lineup(p_value=2e-4, confirmed_p_value=2e-4)
    skipped = {"not_applicable_reason": f"skipped: settled by {first}", "verdict": "inconclusive"} if skips else {}
    cells = [a_cell(attack=first, suite="auto-9", lineup=leak, key=first)]
    cells += [a_cell(attack=name, suite="auto-9", lineup=leak, key=name, **skipped) for name in others]
    [command] = commands(*cells)
    assert "--attack auto-9" in command and command.endswith(" --all-members") == whole
