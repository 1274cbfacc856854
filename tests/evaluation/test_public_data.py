"""What an informed attacker is handed of the world: never a victim nor a decoy, never to a plain attacker."""

from pathlib import Path

import pytest
import torch

from harness.datasets import Dataset
from harness.datasets.prior import Prior, fit_prior
from harness.evaluation import observe
from harness.evaluation.observe import Scene, Stage
from harness.experiment import CellSettings, cell_settings
from harness.scoring.lineup_pool import by_pixels, class_pools


def cell(**changes: object) -> CellSettings:
    return cell_settings(**({"dataset": "digits", "model": "mlp", "victims": 20, "prior": "auto"} | changes))


def pixels(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.flatten(0, -4)}


def lineup_images(scene: Scene, seed: int) -> set[bytes]:
    """Everything that stands in a lineup of the scene: truths and decoys."""
    data, truth = scene.dataset, scene.truth
    pixelwise = by_pixels(truth.images.double(), data.images, None)
    pools = class_pools(pixelwise, truth.indices.numpy(), data.labels.numpy(), seed, 200)
    return set().union(*(pixels(data.images[torch.from_numpy(pool.images)]) for pool in pools))


@pytest.mark.parametrize("name", [
    "digits", "cancer", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mnist-sample", "cifar10-sample")),
])  # fmt: skip
def test_the_prior_never_saw_a_victim_or_a_decoy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Dataset] = []

    def watched(public: Dataset) -> Prior:
        seen.append(public)
        return fit_prior(public)

    monkeypatch.setattr(observe, "fit_prior", watched)
    stage = Stage(Path("no data root"), 64)
    for seed in range(5):
        scene = stage.set(cell(dataset=name, model=None, seeds=(seed,), victims=30))
        assert scene.observation.prior is not None
        (public,) = seen  # fitted once, whatever the seed
        victims, known = pixels(scene.truth.images), pixels(public.images)
        lineups = lineup_images(scene, seed)
        assert len(victims) == 30 and victims <= lineups and len(lineups) > 60
        assert not (victims | lineups) & known


def test_without_a_prior_victims_come_from_all_examples() -> None:
    stage = Stage(Path("no data root"), 64)
    scene = stage.set(cell(prior="none"))
    assert scene.observation.prior is None and len(scene.dataset.labels) == 1797
    assert len(stage.set(cell()).dataset.labels) == 898


def test_a_plain_attacker_sees_the_same_whatever_is_public() -> None:
    """Behind the whole dataset, an own file of public data moves nothing but the prior."""
    observation = Stage(Path("no data root"), 64).set(cell()).observation
    plain = observation.known_to("plain")
    assert plain.prior is None and observation.known_to("informed").prior is observation.prior
    assert plain.fingerprint() != observation.fingerprint()


def test_the_prior_is_beside_the_observation_in_its_precision() -> None:
    observation = Stage(Path("no data root"), 64).set(cell(dtype="float64")).observation
    prior = observation.prior
    assert prior is not None
    assert {value.dtype for value in (prior.means, prior.directions, prior.scales, prior.rest)} == {torch.float64}
    assert prior.means.shape == (10, 64) and (prior.name, prior.size) == ("digits, public half", 899)


def test_a_cell_without_a_prior_keeps_its_name() -> None:
    assert "prior" not in cell(prior="none").identity() and cell().identity()["prior"] == "auto"
