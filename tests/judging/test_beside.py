"""What clients of several steps tell beside images: labels, who took part, and what one step tells."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.attacks.membership import Membership
from harness.judging.beside import ALONE, MEMBERSHIP, WHO, companions, distinct_places, label_counts
from harness.judging.capture import CaptureRecord, read_capture
from harness.judging.declared import Group, groups_of
from harness.judging.federation import federations
from harness.judging.stage import CapturedStage, Kin, kin_of

Federation = Callable[..., list[Path]]
ROOT = Path("none")


def captured_groups(folders: list[Path], optimizer: str, attacks: list[str]) -> tuple[list[Group], Kin]:
    for folder in folders:
        facts = json.loads((folder / "capture.json").read_text())
        (folder / "capture.json").write_text(json.dumps(facts | {"optimizer": optimizer}))
    clients = federations([read_capture(folder) for folder in folders])
    return groups_of(clients, "clients", attacks, "digits", "cpu"), kin_of(clients, "digits", ROOT)


def test_labels_are_counted_where_gradients_add_up(federation: Federation) -> None:
    groups, kin = captured_groups(federation(3, batch=4, steps=2), "sgd", ["cpl", "identify"])
    found = label_counts([group.captured for group in groups], kin)
    assert found.count == 24 and found.p_value is not None and found.p_value < 0.001
    assert found.found is not None and found.chance is not None and found.found > 20 > found.chance
    (alone,) = companions(groups, kin, ROOT)  # who took part is asked for already
    assert alone.name == ALONE and [cell.attack for cell in alone.cells] == ["identify", "cpl"]
    assert alone.captured.clients == 8 and alone.captured.examples == 1 and bool(alone.captured.target.any())


def test_members_are_told_after_steps_of_adam(federation: Federation) -> None:
    groups, kin = captured_groups(federation(3, batch=2, steps=2, adam=True), "adam", ["cpl", "identify"])
    said = label_counts([group.captured for group in groups], kin).said
    assert said.startswith("label counts cannot be read: 2 step(s) of adam send no sum of gradients")
    who, alone = companions(groups, kin, ROOT)
    assert (who.name, who.cells[0].attack, alone.cells[0].attack) == (WHO, MEMBERSHIP, MEMBERSHIP)
    for group, most in ((who, 0.35), (alone, 0.15)):
        ranks = []
        scene = CapturedStage(ROOT, 64, group.captured, group.cell, kin.look_alikes, kin.public).set(group.cells[0])
        for row, (images, labels) in enumerate(zip(scene.truth.images, scene.truth.labels, strict=True)):
            for image, label in zip(images, labels, strict=True):
                others = kin.look_alikes.images[kin.look_alikes.labels == label][:30]
                seen, lineup = scene.observation.take(torch.tensor([row])), torch.cat([image[None], others])[None]
                near = Membership().distances(seen, lineup, label[None])[0]
                ranks.append(float((near < near[0]).sum()) / len(others))
        assert sum(ranks) / len(ranks) < most


@pytest.mark.parametrize(
    ("facts", "places"),
    [
        ({"batch_size": 4, "local_steps": 4, "examples": 6, "epochs": 2}, [0, 1, 2, 3, 4, 5]),
        ({"batch_size": 3, "local_steps": 2}, [0, 1, 2, 3, 4, 5]),
        ({"batch_size": 2, "accumulate": 2, "local_steps": 1}, [0, 1, 2, 3]),
    ],
)
def test_each_example_has_one_place(facts: dict[str, int], places: list[int], federation: Federation) -> None:
    (captured,) = federations([read_capture(one) for one in federation(1, batch=1)])
    common = {"model": "mlp", "image_shape": (1, 8, 8), "classes": 10, "learning_rate": 0.1}
    record = CaptureRecord.model_validate(common | facts)
    assert distinct_places(type(captured)(**{**vars(captured), "record": record})) == places
