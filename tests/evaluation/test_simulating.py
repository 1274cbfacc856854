"""Public examples meet the very round of the victims: the same tap, defense and weights, and no victim among them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.datasets import Dataset
from harness.evaluation.observe import Scene, Stage
from harness.evaluation.played_round import PlayedRound
from harness.experiment import cell_settings
from harness.observation import Simulation

SHARED: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "victims": 3, "prior": "auto", "shared_weights": True,
}  # fmt: skip
PLACES: list[dict[str, Any]] = [
    {"tap": "T2.step", "batch_size": 2},
    {"tap": "T2.raw", "batch_size": 2},
    {"tap": "T1.out", "defense": "pruning", "defense_args": {"threshold": 0.9}},
    {"tap": "T1.out", "local_steps": 2, "update_model": "avg", "learning_rate": 0.5},
    {"tap": "T0.in", "defense": "secagg_ddp", "clients_per_round": 3, "defense_args": {"protocol": "sum"}},
    {"tap": "T2.step", "defense": "fed_cdp", "observations": 2},
]


def scene(**values: Any) -> Scene:
    return Stage(Path("no data root"), 64).set(cell_settings(**SHARED | values))


def played(made: Scene) -> tuple[Simulation, Tensor]:
    assert made.observation.simulation is not None
    return made.observation.simulation, made.observation.weights[0]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: "-".join(map(str, place.values())))
def test_a_simulated_observation_is_what_its_examples_would_show(place: dict[str, Any]) -> None:
    made = scene(**place)
    (round_, weights), settings = played(made), cell_settings(**SHARED | place)
    got = round_.play(weights, 4, quiet=False)
    assert got.gradients.shape == (4, made.observation.target.shape[1])
    assert got.labels.shape == (4, made.observation.examples) == got.images.shape[:2]
    own = settings.batch_size if place["tap"] == "T2.raw" else 1
    rows, clients = 4 // own, settings.together
    images = got.images.reshape(rows * clients, -1, *made.dataset.image_shape)
    labels = got.labels.reshape(rows * clients, -1)
    keys = [("public", row) for row in range(rows)]
    if clients > 1:
        keys = [(*key, "client", client) for key in keys for client in range(clients)]
    again = PlayedRound(made.observation.model, weights.expand(len(images), -1), images, labels, tuple(keys), settings)
    looks = torch.stack([again.look(look) for look in range(settings.observations)]).mean(0).reshape(4, -1)
    torch.testing.assert_close(got.gradients, looks, rtol=1e-4, atol=1e-5)


def test_quiet_rounds_have_no_noise_and_others_have_their_own() -> None:
    made = scene(defense="fed_cdp", defense_args={"sigma": 0.5})
    round_, weights = played(made)
    quiet, loud = (round_.play(weights, 30, quiet=silent).gradients for silent in (True, False))
    noise, known = loud - quiet, made.observation.noise
    assert known is not None and isinstance(known.deviation, float)
    assert float(noise.std()) == pytest.approx(known.deviation, rel=0.02)
    assert len(noise.unique(dim=0)) == 30
    assert torch.equal(quiet, played(scene(defense="fed_cdp", noise_scale=0.0))[0].play(weights, 30, False).gradients)


@pytest.mark.parametrize("examples", [1, 4])
def test_nobody_who_is_private_plays(examples: int) -> None:
    made = scene(batch_size=examples)
    round_, weights = played(made)
    shown = round_.play(weights, round_.count, quiet=True).images
    public = {image.numpy().tobytes() for image in shown.flatten(0, 1)}
    assert public.isdisjoint(image.numpy().tobytes() for image in made.dataset.images)
    assert len(public) > 300
    assert all(len(row.flatten(1).unique(dim=0)) == examples for row in shown[:20])


def test_what_is_handed_over_leads_to_no_private_example() -> None:
    made = scene()
    assert made.observation.simulation is not None
    held, found = [made.observation.simulation.play], []
    while held:
        thing = held.pop()
        found.append(thing)
        held += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
        assert not isinstance(getattr(thing, "__self__", None), Stage)
    data = [thing for thing in found if isinstance(thing, Dataset)]
    assert [one.name for one in data] == [made.observation.prior and made.observation.prior.name]
    assert not any(isinstance(thing, Stage | Scene) for thing in found)


def test_there_is_one_only_where_weights_are_shared_and_data_are_public() -> None:
    assert scene(shared_weights=False).observation.simulation is None
    assert scene(prior="none").observation.simulation is None
    shared = scene().observation
    assert shared.simulation is not None and shared.known_to("plain").simulation is None
    assert shared.fingerprint() != shared.known_to("plain").fingerprint()
    assert shared.fingerprint() == scene().observation.fingerprint()


def test_learned_alone_without_shared_weights_is_a_mistake(small: Any, tmp_path: Path) -> None:
    settings = cell_settings(**SHARED | {"shared_weights": False, "attack": "learned"})
    with pytest.raises(UsageError, match="use --shared-weights"):
        small.play([settings], tmp_path)


@pytest.mark.slow
def test_a_whole_run_with_its_controls(small: Any, tmp_path: Path) -> None:
    noise = {"defense": "noise", "defense_args": {"applies_to": "gradient", "amount": 0.002}}
    settings = cell_settings(
        **SHARED | noise | {"victims": 24, "attack": "learned", "attack_args": {"simulations": 800}}
    )
    document = small.play([settings], tmp_path)
    (cell,) = (one for one in document.cells if one.role == "cell")
    assert document.valid and cell.verdict == "leaks" and cell.tier == "informed" and not cell.flags
    assert {check.name: check.held for check in cell.controls} == {
        "positive": True, "positive_sigma0": True, "noise_x100": True, "swap": True, "blind": True,
    }  # fmt: skip
    assert cell.metrics["gradient_evaluations"].mean == 801
