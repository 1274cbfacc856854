"""Every attack that reconstructs, by one line in a table: it does so undefended, and keeps the engine's contract."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, Attack, run_attack
from harness.attacks.engine import CAP, CONVERGED
from harness.base.building import build
from harness.base.errors import UsageError
from harness.observation import Observation
from harness.testing import assert_attack_contract
from harness.testing.attacks import assert_result

VICTIMS = 4

# name, settings, network, smallest share of victims reconstructed to a clamped RMSE of at most 0.1
TABLE: list[tuple[str, dict[str, Any], str, float]] = [
    ("analytic", {}, "mlp", 1.0),
    ("imprint", {"bins": 16}, "mlp", 1.0),
    ("blind", {}, "mlp", 0.0),  # a control: it guesses the class mean
    ("cpl", {"max_iterations": 15}, "lenet", 1.0),
    ("dlg", {"max_iterations": 15}, "lenet", 1.0),
    ("idlg", {"max_iterations": 15}, "lenet", 0.75),
    ("learned", {"simulations": 300}, "mlp", 0.25),  # linear in the gradient, whatever the label
    ("intervals", {"max_iterations": 10}, "lenet", 1.0),
    ("levels", {"draws": 160}, "mlp", 0.0),  # of an image it only learns the sizes of its gradient
    ("loki", {"bins": 16}, "mlp", 1.0),
    ("map", {"max_iterations": 10}, "lenet", 1.0),
    ("patches", {}, "vit", 1.0),
    ("inverting_gradients", {"max_iterations": 100, "tv": 1e-5}, "mlp", 1.0),
    ("rows", {"draws": 40}, "mlp2", 1.0),
    ("scale_mia", {}, "mlp2", 1.0),
    ("slope", {"draws": 40}, "mlp", 0.0),  # it hands out a direction, and no image
    ("spear", {}, "mlp2", 0.75),
    ("trap_weights", {}, "mlp2", 0.75),
    ("gradinversion", {"max_iterations": 100, "warm_up": 10, "matching_weight": 1.0}, "mlp", 1.0),
]


def test_every_attack_has_its_line() -> None:
    """Those that read texts have theirs in test_texts.py."""
    of_images = {name for name in ATTACKS if issubclass(ATTACKS[name], Attack) and ATTACKS[name].reads != "texts"}
    assert {name for name, *_ in TABLE} == of_images


@pytest.mark.parametrize(("name", "settings", "network", "at_least"), TABLE, ids=[name for name, *_ in TABLE])
def test_reconstructs_undefended_victims(
    name: str,
    settings: dict[str, Any],
    network: str,
    at_least: float,
    victims: Callable[..., Observation],
    digits: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    attack = build(ATTACKS, name, settings)
    observation = victims(VICTIMS, model=network, tamper=attack.tamper(1, 1))
    images, labels = digits(VICTIMS, 1)
    result = assert_result(attack, observation)
    rmse = (result.images.clamp(0, 1) - images).square().flatten(1).mean(1).sqrt()
    assert (rmse <= 0.1).float().mean() >= at_least
    assert torch.equal(result.labels, labels)

    solved_at_once = result.initial_loss <= attack.stop_below(observation)
    assert ((result.loss < result.initial_loss) | solved_at_once).all()
    assert ((result.stop_reason == CAP) | (result.stop_reason == CONVERGED)).all()
    per_iteration = result.evaluations / result.iterations
    if network == "lenet":  # L-BFGS: at most 20 inner iterations
        assert (per_iteration > 1).all() and (per_iteration <= 20).all()
    elif attack.loss_stop == 0 and (result.stop_reason == CAP).all():  # Adam: one evaluation per iteration and start
        assert torch.equal(result.evaluations, attack.max_iterations * attack.restarts * torch.ones(VICTIMS))


# CPL, DLG, whose labels are unknowns as well, and MAP keep it on the small network too; convolutions are slow.
CONTRACT = [
    *(
        pytest.param(name, settings, network, marks=pytest.mark.slow if network == "lenet" else ())
        for name, settings, network, _ in TABLE
    ),
    *(
        pytest.param(name, settings, "mlp", marks=pytest.mark.slow if name == "dlg" else ())
        for name, settings, *_ in TABLE
        if name in ("cpl", "dlg", "map")
    ),
]
FEW = {"learned": {"simulations": 30}, "slope": {"draws": 10}, "rows": {"searches": 1}}


@pytest.mark.parametrize(("name", "settings", "network"), CONTRACT)
def test_keeps_the_contract(
    name: str, settings: dict[str, Any], network: str, victims: Callable[..., Observation]
) -> None:
    few = FEW.get(name, {"max_iterations": 2, "restarts": 2})
    attack = build(ATTACKS, name, settings | few)
    assert_attack_contract(attack, victims(VICTIMS, model=network, tamper=attack.tamper(1, 1)))


@pytest.mark.parametrize("name", ["blind", "intervals", "learned", "map", "slope"])
def test_without_public_data_those_who_know_the_defense_say_how_to_have_some(
    name: str, victims: Callable[..., Observation]
) -> None:
    attack = build(ATTACKS, name, {})
    assert attack.tier == "informed"
    said = "use --shared-weights and --prior auto" if name == "learned" else f"'{name}' needs public data; use --prior"
    with pytest.raises(UsageError, match=said):
        run_attack(attack, victims(2, model="mlp").known_to("plain"))


@pytest.mark.parametrize(("name", "settings", "network", "at_least"), [
    pytest.param(*line, id=line[0], marks=pytest.mark.slow if line[0] == "learned" else ()) for line in TABLE
])  # fmt: skip
def test_reconstructs_nothing_from_noise(
    name: str,
    settings: dict[str, Any],
    network: str,
    at_least: float,
    victims: Callable[..., Observation],
    digits: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    """The table's success rates are not had without a gradient."""
    attack = build(ATTACKS, name, settings | {"max_iterations": 2})
    observation = victims(VICTIMS, model=network, tamper=attack.tamper(1, 1))
    noise = torch.randn(observation.target.shape, generator=torch.Generator().manual_seed(0))
    observation.target.copy_(24.0 * noise)
    result = run_attack(attack, observation)
    rmse = (result.images.clamp(0, 1) - digits(VICTIMS, 1)[0]).square().flatten(1).mean(1).sqrt()
    assert (rmse > 0.1).all() and result.images.isfinite().all()
