"""What clients of several steps tell beside images: labels, who took part, and what one step tells."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.attacks.membership import Membership
from harness.base.kinds import IMAGES
from harness.experiment import cell_settings
from harness.judging.beside import ALONE, MEMBERSHIP, WHO, _of_one_step, companions, distinct_places, label_counts
from harness.judging.capture import CaptureRecord, read_capture
from harness.judging.declared import Group, groups_of
from harness.judging.federation import federations
from harness.judging.stage import CapturedStage, PublicSplit, public_split
from harness.reports.html import judged
from harness.scoring.strongest import NO_TIME

Federation = Callable[..., list[Path]]
ROOT = Path("none")


def captured_groups(folders: list[Path], optimizer: str, attacks: list[str]) -> tuple[list[Group], PublicSplit]:
    for folder in folders:
        facts = json.loads((folder / "capture.json").read_text())
        (folder / "capture.json").write_text(json.dumps(facts | {"optimizer": optimizer}))
    clients = federations([read_capture(folder) for folder in folders])
    return groups_of(clients, "clients", attacks, "digits", "cpu"), public_split(clients, "digits", ROOT)


def test_labels_are_counted_where_gradients_add_up(federation: Federation) -> None:
    groups, split = captured_groups(federation(3, batch=4, steps=2), "sgd", ["cpl", "identify"])
    found = label_counts([group.captured for group in groups], split)
    assert found.count == 24 and found.p_value is not None and found.p_value < 0.001
    assert found.found is not None and found.chance is not None and found.found > 20 > found.chance
    (alone,) = companions(groups, split, ROOT)  # who took part is asked for already
    assert alone.name == ALONE and [cell.attack for cell in alone.cells] == ["identify", "cpl"]
    assert alone.captured.clients == 8 and alone.captured.examples == 1 and bool(alone.captured.target.any())


def test_clients_who_share_images_are_one_draw_of_labels(federation: Federation) -> None:
    """Many of them are no more evidence than one of them."""
    p_values = list[float]()
    for count in (1, 8):
        folders = federation(count, batch=2, same_data=True, apart=True, name=f"of {count}")
        groups, split = captured_groups(folders, "sgd", ["cpl"])
        p_values.append(label_counts([group.captured for group in groups], split).p_value or 0.0)
    assert p_values[0] > 0.005 and p_values[1] > 0.5 * p_values[0]


ONE_STEP: dict[str, tuple[dict[str, tuple[int, int, bool]], tuple[str, ...], str, bool | None]] = {
    "all of eight": ({"cpl": (8, 8, True)}, (), "cpl leaks, as it must: 8 of 8 images come back", True),
    "one of one": ({"cpl": (1, 1, False), "map": (0, 1, False)}, (),
                   "cpl brings 1 of 1 images back, too few to test (p = 0.03)", None),
    "one of eight": ({"cpl": (1, 8, False)}, (), "cpl brings 1 of 8 images back, no more than chance may bring", None),
    "none": ({"cpl": (0, 8, False)}, (), "cpl brings nothing back, so that their failure on what", False),
    "nothing asked for": ({}, (), "no attack that reconstructs was asked for", None),
    "no time": ({}, ("cpl",), "no attack had the time", False),
}  # fmt: skip


@pytest.mark.parametrize(("tried", "late", "said", "held"), ONE_STEP.values(), ids=ONE_STEP)
def test_what_one_step_tells_is_said_as_it_was(
    tried: dict[str, tuple[int, int, bool]], late: tuple[str, ...], said: str, held: bool | None
) -> None:
    made = {
        name: SimpleNamespace(
            attack=name, identified=None, not_applicable_reason=None, succeeds=leaks, victims=count, tested_p=0.03,
            outcomes=SimpleNamespace(success=back), kind=IMAGES,
        )
        for name, (back, count, leaks) in tried.items()
    }  # fmt: skip
    asked = [cell_settings(dataset="digits", model="mlp", attack=name) for name in (*tried, *late)]
    alone: Any = SimpleNamespace(cells=asked[: len(tried)], late=[(cell, NO_TIME) for cell in asked[len(tried) :]])
    run: Any = SimpleNamespace(cell=lambda cell: SimpleNamespace(cell=made[cell.attack]))
    found = _of_one_step(alone, run)
    assert found.said.startswith(f"{ALONE} of the same job: {said}") and found.held is held


def test_members_are_told_after_steps_of_adam(federation: Federation) -> None:
    groups, split = captured_groups(federation(3, batch=2, steps=2, adam=True), "adam", ["cpl", "identify"])
    said = label_counts([group.captured for group in groups], split).said
    assert said.startswith("label counts cannot be read: 2 step(s) of adam send no sum of gradients")
    who, alone = companions(groups, split, ROOT)
    assert (who.name, who.cells[0].attack, alone.cells[0].attack) == (WHO, MEMBERSHIP, MEMBERSHIP)
    for group, most in ((who, 0.35), (alone, 0.15)):
        ranks = []
        scene = CapturedStage(ROOT, 64, group.captured, group.cell, split.look_alikes, split.public).set(group.cells[0])
        for row, (images, labels) in enumerate(zip(scene.truth.images, scene.truth.labels, strict=True)):
            for image, label in zip(images, labels, strict=True):
                others = split.look_alikes.images[split.look_alikes.labels == label][:30]
                seen, lineup = scene.observation.take(torch.tensor([row])), torch.cat([image[None], others])[None]
                near = Membership().distances(seen, lineup, label[None])[0]
                ranks.append(float((near < near[0]).sum()) / len(others))
        assert sum(ranks) / len(ranks) < most


def test_the_page_knows_what_is_beside_by_name() -> None:
    assert (judged.ALONE, judged.WHO) == (ALONE, WHO)


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
