"""An adaptive bound is kept beside the model, and attacks on that model meet and know it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.building import build
from harness.base.errors import UsageError
from harness.cli import run as run_command
from harness.cli.evaluate import cells_from, merge
from harness.defenses import DEFENSES, Remembered
from harness.evaluation.controls import high_noise_control, noiseless_control, positive_control
from harness.evaluation.observe import Stage
from harness.experiment import CellSettings
from harness.federation.memory import read_state, write_state
from harness.training import TrainFolder, Training, TrainOptions, train, train_settings

RATE = 0.05
SETTINGS: dict[str, Any] = {
    "dataset": "cancer", "clients": 12, "clients_per_round": 5, "local_steps": 4, "batch_size": 3, "split": "iid",
    "rounds": 3, "defense": "quantile", "defense_args": {"clip": "0.0001", "rate": "2", "sigma": "0.01"},
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run under a bound that moves fast, from far below every norm."""
    folder = tmp_path_factory.mktemp("trained")
    train(train_settings(**SETTINGS), folder, TrainFolder(folder), TrainOptions(keep=(0, 2, 3)))
    return folder


@pytest.fixture
def older(trained: Path, tmp_path: Path) -> Path:
    """The same run as a version without kept states left it."""
    document = json.loads((trained / "training.json").read_text())
    del document["server_state"]
    (tmp_path / "training.json").write_text(json.dumps(document))
    (tmp_path / "models").symlink_to(trained / "models")
    return tmp_path


def bounds(folder: Path) -> dict[int, float]:
    """The bound before each round, played anew."""
    training = Training(train_settings(**SETTINGS), folder)
    found = {}
    for number in range(3):
        training.play_round(number, 5)
        found[number + 1] = float(training.memory.server["bound"])
    return found


def cells(folder: Path, rounds: str, **options: Any) -> list[CellSettings]:
    given = {"training": str(folder), "round": [rounds], "surface": ["1"], "victims": 3} | options
    (merged,) = merge(given | dict.fromkeys({"weights", "server_state"} - given.keys()), None, None)
    return cells_from(merged, "cpu")


def test_the_state_of_every_kept_round_is_kept(trained: Path) -> None:
    document = json.loads((trained / "training.json").read_text())
    assert document["server_state"] == {str(one): f"models/round_0000{one}.state.json" for one in (2, 3)}
    expected = bounds(trained)
    for number in (2, 3):
        assert float(read_state(trained / document["server_state"][str(number)], KNOWN)["bound"]) == expected[number]


def test_an_attack_meets_and_knows_the_bound_of_the_round(trained: Path) -> None:
    """Updates are far above all bounds: what is sent has exactly the norm of the round's."""
    expected = {0: 0.0001} | bounds(trained)
    assert expected[3] > 1.5 * expected[2] > 2 * expected[0]
    for cell in cells(trained, "0,2,3"):
        observation = Stage(trained, 8).set(cell).observation
        assert observation.clipping.bound == pytest.approx(expected[cell.round] / RATE)
        norms = observation.target.norm(dim=1) * RATE
        torch.testing.assert_close(norms, torch.full_like(norms, expected[cell.round]), rtol=1e-4, atol=0)


def test_a_state_is_part_of_what_names_a_cell_but_not_of_its_undefended_control(trained: Path) -> None:
    two, three = cells(trained, "2,3")
    assert two.server_state_hash != three.server_state_hash
    control = positive_control(two)
    assert (control.server_state, control.server_state_hash) == (None, None) and control.weights == two.weights
    assert {one.server_state_hash for one in (noiseless_control(two), high_noise_control(two))} == {
        two.server_state_hash
    }


@pytest.mark.parametrize("bound", [0.0, -1.0])
def test_a_state_no_run_leaves_ends_the_command_instead_of_hiding_every_leak(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], bound: float
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    write_state(tmp_path / "run" / "models" / "round_00002.state.json", {"bound": torch.tensor(bound)})
    options = ["--training", str(tmp_path / "run"), "--round", "2", "--surface", "1", "--out", str(tmp_path / "runs")]
    assert run_command(["evaluate", *options]) == 2
    shown = capsys.readouterr().err
    assert "'bound' must lie between" in shown and shown.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_stack_remembers_what_its_parts_do_under_their_names() -> None:
    stack = build(DEFENSES, "pruning+quantile", {"pruning.error_feedback": "yes"})
    assert stack.adapts() and list(stack.server_remembers()) == ["quantile.bound"]
    assert list(stack.clients_remember()) == ["pruning.residual"]


@pytest.mark.parametrize(
    "options", [{"defense": ["fed_sdp"]}, {"defense": ["quantile"]}, {"defense_arg": ["clip=1"]}], ids=str
)
def test_another_defense_does_not_take_it_over(trained: Path, options: dict[str, Any]) -> None:
    (cell,) = cells(trained, "2", **options)
    assert cell.server_state is None and cell.weights is not None


def test_rounds_are_those_of_the_training_save_after_its_last(trained: Path) -> None:
    assert [cell.rounds for cell in cells(trained, "0,2,3")] == [3, 3, 4]


def test_an_older_run_says_what_it_lacks(older: Path) -> None:
    assert cells(older, "0")[0].server_state is None
    assert cells(older, "2", defense=["fed_sdp"])[0].server_state is None
    with pytest.raises(UsageError, match=r"did not keep the bound .* train it again with --keep-rounds 2") as caught:
        cells(older, "2")
    assert "\n" not in str(caught.value)


def test_a_state_by_hand(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the report's command for these cells says."""
    files = [str(trained / "models" / f"round_00002{ending}") for ending in (".pt", ".state.json")]
    named = {"training": None, "weights": files[0], "server_state": files[1], "dataset": ["cancer"], "model": ["mlp2"]}
    (cell,) = cells(trained, "2", defense=["quantile"], defense_arg=["clip=0.0001", "rate=2", "sigma=0.01"], **named)
    assert cell.server_state_hash == cells(trained, "2")[0].server_state_hash
    assert run_command(["evaluate", "--training", str(trained), "--server-state", files[1]]) == 2
    assert "choose one" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "defense"), [("0", "quantile"), ("2", "fed_sdp")])
def test_a_state_that_no_cell_goes_by_is_refused(trained: Path, number: str, defense: str) -> None:
    files = [str(trained / "models" / f"round_00002{ending}") for ending in (".pt", ".state.json")]
    named = {"training": None, "weights": files[0], "server_state": files[1], "dataset": ["cancer"], "model": ["mlp2"]}
    with pytest.raises(UsageError, match="no cell uses --server-state"):
        cells(trained, number, defense=[defense], **named)


BROKEN = {
    "missing": (None, "cannot read"),
    "empty": ("", "is not complete JSON"),
    "another document": ("[1]", "valid dictionary"),
    "another type": ('{"bound": {"type": "object", "values": 1}}', "'bound.type'"),
    "ragged": ('{"bound": {"type": "float32", "values": [[1], [1, 2]]}}', "other things than numbers"),
    "words": ('{"bound": {"type": "float32", "values": ["1"]}}', "other things than numbers"),
    "no number": ('{"bound": {"type": "int64", "values": 1e300}}', "other things than numbers"),
    "infinite": ('{"bound": {"type": "float32", "values": Infinity}}', "'bound' holds other things than finite"),
    "whole": ('{"bound": {"type": "int64", "values": 1}}', "'bound' holds other things than finite floating"),
    "zero": ('{"bound": {"type": "float32", "values": 0.0}}', "'bound' must lie between"),
    "negative": ('{"bound": {"type": "float32", "values": -1}}', "'bound' must lie between"),
    "too small to be told from nothing": ('{"bound": {"type": "float64", "values": 1e-30}}', "must lie between 1e-10"),
    "true": ('{"bound": {"type": "float32", "values": true}}', "other things than numbers"),
    "shape": ('{"bound": {"type": "float32", "values": [1.0]}}', r"'bound' has shape \(1,\) instead of \(\)"),
    "nothing": ("{}", "lacks 'bound'"),
    "more": ('{"bound": {"type": "float32", "values": 1}, "b": {"type": "float32", "values": 1}}', "holds 'b'"),
    "of a stack": ('{"quantile.bound": {"type": "float32", "values": 1}}', "holds 'quantile.bound'"),
}
KNOWN = build(DEFENSES, "quantile", {}).server_remembers()


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
def test_damaged_states_are_refused_in_one_line(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "state.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_state(path, KNOWN)
    assert "\n" not in str(caught.value)


def test_numbers_come_back_to_the_bit(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    state = {
        "a.bound": torch.rand((), generator=random), "b": torch.rand(2, 3, generator=random, dtype=torch.float64),
        "c.residual": torch.rand(2, generator=random),
    }  # fmt: skip
    write_state(tmp_path / "s.json", state)
    known = {"a.bound": Remembered(), "b": Remembered((2, 3)), "c.residual": Remembered((None,))}
    found = read_state(tmp_path / "s.json", known)
    assert list(found) == list(state)
    assert all(torch.equal(found[name], state[name]) and found[name].dtype == state[name].dtype for name in state)
