"""Captures of the same clients in several rounds: put side by side they are what ``evaluate`` combines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.base.errors import UsageError
from harness.capture import CaptureRecord, write_capture
from harness.cli import run
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings
from harness.judging.capture import Capture, read_capture
from harness.judging.declared import groups_of
from harness.judging.federation import federations
from harness.judging.series import over_rounds
from harness.judging.stage import CapturedStage

VICTIMS, ROUNDS, SIGMA = 4, 3, 0.05


def _scene(tmp_path: Path, batch: int = 2) -> Scene:
    settings = cell_settings(
        dataset="digits", model="mlp", defense="fed_cdp", defense_args={"sigma": SIGMA}, attack="identify",
        tap="T2.step", victims=VICTIMS, rounds_seen=ROUNDS, prior="none", batch_size=batch,
    )  # fmt: skip
    return Stage(tmp_path, 64).set(settings)


def _written(scene: Scene, folder: Path, order: list[int], **changes: Any) -> list[Path]:
    """A capture of each client in each round, the rounds in that order of folders; ``changes`` are of the last one."""
    seen, found = scene.observation, []
    size = seen.weights.shape[1] // ROUNDS
    model = seen.model.single  # type: ignore[attr-defined]
    for place, number in enumerate(order):
        part = slice(number * size, (number + 1) * size)
        for row in range(VICTIMS):
            facts = {"client": f"hospital {row}", "round": number, "first_round": 0}
            images, labels = scene.truth.images[row], scene.truth.labels[row]
            if (place, row) == (len(order) - 1, VICTIMS - 1):
                facts |= {name: value for name, value in changes.items() if name in facts}
                images, labels = changes.get("images", images), changes.get("labels", labels)
            record = CaptureRecord(
                model="mlp", image_shape=(1, 8, 8), classes=10, learning_rate=0.05, batch_size=len(labels),
                defense={"name": "fed_cdp", "settings": {"sigma": SIGMA}}, **facts,
            )  # fmt: skip
            before = {name: value.numpy() for name, value in model.state(seen.weights[row, part]).items()}
            sent = {name: value.numpy() for name, value in model.layout.split(seen.target[row, part]).items()}
            where = folder / f"{place} {row}"
            found.append(write_capture(where, record, before, images=images, labels=labels, gradient=sent))
    return found


def _captures(folders: list[Path]) -> list[Capture]:
    return [read_capture(one) for one in folders]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_rounds_side_by_side_are_what_evaluate_combines(order: list[int], tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    clients = over_rounds(federations(_captures(_written(scene, tmp_path, order))), ROUNDS)
    (group,) = groups_of(clients, "captures", ["identify"], "none", "cpu", rounds_seen=ROUNDS)
    judged = CapturedStage(tmp_path, 64, group.captured, group.cell, None, None).set(group.cell)
    ours, theirs = scene.observation, judged.observation
    assert torch.equal(theirs.weights, ours.weights)
    assert torch.allclose(theirs.target, ours.target, atol=1e-6)
    assert theirs.noise == ours.noise and theirs.clipping == ours.clipping
    assert theirs.rows == VICTIMS  # R looks are one victim
    assert theirs.model.rounds == ROUNDS  # type: ignore[attr-defined]


def test_a_single_round_is_judged_as_before(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    found = federations(_captures(_written(scene, tmp_path, [0])))
    assert over_rounds(found, 1)[0] is found[0]


@pytest.mark.parametrize(
    ("changes", "rounds", "words"),
    [({}, 4, "lower it, or leave that client out"), ({"round": 1}, ROUNDS, "two captures of round 1"),
     ({"client": None}, ROUNDS, 'add "client"'), ({"client": "hospital 9"}, ROUNDS, "captured in 2 round"),
     ({"images": torch.zeros(2, 1, 8, 8)}, ROUNDS, "other examples in round 2 than in round 0")],
)  # fmt: skip
def test_what_does_not_fit_together_is_one_line(
    changes: dict[str, Any], rounds: int, words: str, tmp_path: Path
) -> None:
    scene = _scene(tmp_path)
    with pytest.raises(UsageError, match=words) as error:
        over_rounds(federations(_captures(_written(scene, tmp_path, [0, 1, 2], **changes))), rounds)
    assert "\n" not in str(error.value)


def test_the_order_of_one_steps_examples_makes_no_difference(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    turned = {"images": scene.truth.images[-1].flip(0), "labels": scene.truth.labels[-1].flip(0)}
    (clients,) = over_rounds(federations(_captures(_written(scene, tmp_path, [0, 1, 2], **turned))), ROUNDS)
    assert (clients.clients, len(clients.later)) == (VICTIMS, ROUNDS - 1)


def test_without_truth_nobody_knows_that_examples_are_the_same(tmp_path: Path) -> None:
    scene = _scene(tmp_path)
    folders = _written(scene, tmp_path, [0, 1, 2])
    captures = [replace(one, truth=None) for one in _captures(folders)]
    with pytest.raises(UsageError, match="needs each capture's truth"):
        over_rounds(federations(captures), ROUNDS)


def test_the_command_judges_rounds_and_says_of_how_many_a_row_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checks read every round."""
    scene = _scene(tmp_path, batch=1)
    named = [str(one) for one in _written(scene, tmp_path, [0, 1, 2])]
    assert run(["judge", *named, "--attack", "cpl", "--rounds-seen", "4", "--out", str(tmp_path / "o")]) == 2
    assert "lower it" in capsys.readouterr().err
    asked = [
        "judge",
        *named,
        "--attack",
        "identify",
        "--prior",
        "digits",
        "--rounds-seen",
        "3",
        "--out",
        str(tmp_path / "o"),
        "--json",
    ]
    code = run(asked)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    document = json.loads(printed.out)
    assert document["captures"] == VICTIMS
    (row,) = document["results"]["summary"]
    assert row["rounds_tried"] == [3] and row["options"]["rounds_seen"] == 3 and row["victims"] == VICTIMS
