"""What an attack made is shared between cells that show it the same; how it met the truth is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.evaluation.attacking import attack_scene
from harness.evaluation.observe import Stage
from harness.results import RunFolder


def test_tau_is_of_the_truth_it_was_measured_against(small: Any, tmp_path: Path, attacks: list[str]) -> None:
    settings = small.cell(attack_args={"max_iterations": 30})
    scene = Stage(tmp_path, 64).set(settings)
    other = replace(scene, truth=replace(scene.truth, images=1 - scene.truth.images))
    seen: set[str] = set()
    own, again, foreign = (
        attack_scene(settings, one, RunFolder(tmp_path), 64, reuse=False, seen=seen) for one in (scene, scene, other)
    )
    assert len(attacks) == 2  # the same scene once
    assert torch.equal(own.reconstruction.images, foreign.reconstruction.images)
    assert torch.equal(own.tau, again.tau) and (own.tau < 30).all()
    assert (foreign.tau == 30).all()
