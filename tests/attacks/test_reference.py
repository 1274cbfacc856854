"""The batched engine computes what PyTorch's own optimizers compute on the plain network, one victim at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.attacks import ATTACKS, Attack, Reconstruction, run_attack, run_reference
from harness.base.building import build
from harness.base.errors import UsageError
from harness.observation import Clipping, Noise, Observation

Victims = Callable[..., Observation]
AT_ONCE = [
    name for name in ATTACKS
    if issubclass(kind := ATTACKS[name], Attack) and kind.closed_form and kind.reads != "texts"
]  # fmt: skip
SETTINGS = {"imprint": {"bins": 16}, "loki": {"bins": 16}, "learned": {"simulations": 300}}


def both(name: str, settings: dict[str, Any], observation: Observation) -> tuple[Reconstruction, Reconstruction]:
    attack = build(ATTACKS, name, settings)
    return run_attack(attack, observation), run_reference(attack, observation)


@pytest.mark.parametrize(
    ("name", "settings", "examples", "facts"),
    [
        pytest.param("cpl", {"max_iterations": 1}, 1, {}, id="cpl"),
        pytest.param("idlg", {"max_iterations": 1}, 1, {}, id="idlg", marks=pytest.mark.slow),
        pytest.param("dlg", {"max_iterations": 1}, 1, {}, id="dlg"),
        pytest.param("cpl", {"max_iterations": 1, "tv": 1e-3, "restarts": 2}, 1, {}, id="cpl-tv-restarts"),
        pytest.param("cpl", {"max_iterations": 1}, 2, {"clipping": Clipping(1.0, "layer", "example")}, id="scale-free"),
        pytest.param("idlg", {"max_iterations": 1}, 1, {"model": "mlp"}, id="idlg-mlp"),
        pytest.param("cpl", {"max_iterations": 1, "masked": "yes"}, 1, {}, id="masked"),
        pytest.param("map", {"max_iterations": 1}, 1, {"noise": Noise("gaussian", 0.1)}, id="map"),
        pytest.param(
            "map", {"max_iterations": 1}, 1,
            {"noise": Noise("laplace", 0.1), "clipping": Clipping(0.5, "layer", "example")}, id="map-clipped-laplace",
        ),
        pytest.param("map", {"max_iterations": 1}, 2, {"noise": Noise("gaussian", None)}, id="map-estimated"),
        pytest.param("inverting_gradients", {"max_iterations": 8}, 1, {}, id="inverting-gradients"),
        pytest.param("gradinversion", {"max_iterations": 8, "warm_up": 3, "group": 0}, 1, {}, id="gradinversion"),
        pytest.param("inverting_gradients", {"max_iterations": 3}, 1, {"model": "vit"}, id="transformer"),
    ],
)  # fmt: skip
def test_the_first_iterations_agree(
    name: str, settings: dict[str, Any], examples: int, facts: dict[str, Any], victims: Victims
) -> None:
    batched, reference = both(name, settings, victims(2, examples, dtype=torch.float64, **facts))
    assert (batched.images - reference.images).abs().max() < 1e-8
    assert torch.allclose(batched.loss, reference.loss, rtol=1e-6, atol=1e-12)
    assert torch.allclose(batched.initial_loss, reference.initial_loss, rtol=1e-10)
    assert (batched.loss < batched.initial_loss).all()
    for field in ("labels", "stop_reason", "iterations", "evaluations", "restart"):
        assert torch.equal(getattr(batched, field), getattr(reference, field).to(getattr(batched, field)))


@pytest.mark.parametrize("name", [
    name if name == "spear" else pytest.param(name, marks=pytest.mark.slow) for name in AT_ONCE
])  # fmt: skip
def test_what_is_computed_at_once_is_descended_by_no_engine(name: str, victims: Victims) -> None:
    attack = build(ATTACKS, name, SETTINGS.get(name, {}))
    observation = victims(3, model="mlp2", tamper=attack.tamper(1, 1))
    batched, reference = run_attack(attack, observation), run_reference(attack, observation)
    # One row alone takes other kernels.
    torch.testing.assert_close(batched.images, reference.images, rtol=1e-3, atol=1e-3)
    assert torch.equal(batched.labels, reference.labels)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("cpl", {"max_iterations": 12}), pytest.param("dlg", {"max_iterations": 15}, marks=pytest.mark.slow)],
)
def test_full_runs_have_equal_outcomes(
    name: str, settings: dict[str, Any], victims: Victims, digits: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> None:
    batched, reference = both(name, settings, victims(3, dtype=torch.float64))
    images, labels = digits(3, 1)
    successes = [
        (result.images.clamp(0, 1) - images).square().flatten(1).mean(1).sqrt() <= 0.1
        for result in (batched, reference)
    ]
    assert torch.equal(*successes) and successes[0].sum() >= 2
    assert torch.equal(batched.stop_reason, reference.stop_reason)
    assert torch.equal(batched.labels, reference.labels) and torch.equal(batched.labels, labels)


def test_progress_counts_victims(victims: Victims) -> None:
    done: list[int] = []
    run_reference(build(ATTACKS, "cpl", {"max_iterations": 1, "restarts": 2}), victims(2), progress=done.append)
    assert done == [1, 1]


@pytest.mark.parametrize(
    ("name", "settings", "facts", "message"),
    [
        ("cpl", {"scale": "known_clip"}, {}, "--engine batched"),
        ("cpl", {}, {"update_model": "unroll", "local_steps": 2}, "--engine batched"),
        ("gradinversion", {"restarts": 2, "group": 0.01}, {}, "group=0"),
    ],
)
def test_refused(name: str, settings: dict[str, Any], facts: dict[str, Any], message: str, victims: Victims) -> None:
    with pytest.raises(UsageError, match=message):
        run_reference(build(ATTACKS, name, settings), replace(victims(1, 2), **facts))
