"""The comparison with public peers hands them what our attacks are handed, in their terms."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peers.py"
# Like the peer's: a download, an attack that asks for a size only, and pictures.
THEIR_SCRIPT = """
raise RuntimeError("download")
dummy_data = torch.zeros(gt_data.size())
plt.imshow(tt(dummy_data[0]))
for iters in range(3):
    dummy_data = dummy_data + original_dy_dx[-1].sum() + criterion
raise RuntimeError("pictures")
"""


@pytest.fixture(scope="module")
def peers() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Stage(tmp_path_factory.mktemp("data"), 8).set(cell_settings(victims=3))


def test_a_peer_is_handed_the_gradient_of_its_network_at_the_truth(peers: dict[str, Any], scene: Scene) -> None:
    mean, deviation = torch.tensor([[[0.13]]]), torch.tensor([[[0.31]]])
    victims = list(peers["handed"](scene))
    for victim, images, labels in zip(victims, scene.truth.images, scene.truth.labels, strict=True):
        for network, seen in (
            (victim.network, images),
            (peers["OfNormalised"](victim.network, mean, deviation), (images - mean) / deviation),
        ):
            loss = functional.cross_entropy(network(seen), labels)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            torch.testing.assert_close(list(gradients), victim.gradient)
    assert victims[0].gradient[-1].argmin() == scene.truth.labels[0, 0]  # by which the peer infers labels
    assert not torch.equal(victims[0].gradient[-1], victims[1].gradient[-1])


def test_of_a_script_the_attack_alone_runs(peers: dict[str, Any], scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(THEIR_SCRIPT)
    (tmp_path / "utils.py").write_text("cross_entropy_for_onehot = 2.0\n")
    attack: Callable[[Any], torch.Tensor] = peers["dlg"](tmp_path)
    victim = next(peers["handed"](scene))
    expected = 3 * (2.0 + victim.gradient[-1].sum())
    torch.testing.assert_close(attack(victim), expected.expand(1, 1, 28, 28), atol=1e-5, rtol=0)


def test_a_diverged_image_counts(peers: dict[str, Any], scene: Scene) -> None:
    made = scene.truth.images.flatten(0, 1).clone()
    made[1] = torch.nan
    outcome = peers["judged"]("peer", scene, made, 6.0)
    assert (outcome.strict, len(outcome.rmse)) == (2, 3) and outcome.rmse[1] > 0.3
    assert str(outcome) == "peer: 2 of 3 strict, median RMSE 0.000, 2.00 s per victim"
