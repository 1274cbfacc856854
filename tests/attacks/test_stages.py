"""Updates of other optimizers are attacked in stages: the declared optimizer says which, and they bring images back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.attacks import ATTACKS, reconstructing, run_attack
from harness.attacks.candidates import dummy_gradient
from harness.attacks.cpl import CPL
from harness.attacks.identify import Identify
from harness.attacks.inverting_gradients import InvertingGradients
from harness.attacks.relu_layer import of_rank
from harness.attacks.rows import Rows
from harness.attacks.stages import alike, least_share, readable, signs, stages_of
from harness.attacks.step_signs import at_second_step, by_signs, is_of_two, tells_both
from harness.attacks.suites import LATEST, SUITES
from harness.base.building import build
from harness.base.errors import UsageError
from harness.evaluation.observe import Scene, Stage
from harness.experiment import cell_settings
from harness.models import RowModel
from harness.observation import Observation


def scene(optimizer: str, root: Path, **values: Any) -> Scene:
    usual = {"dataset": "digits", "tap": "T1.out", "victims": 3, "labels": "known", "model": "mlp2"}
    return Stage(root, 64).set(cell_settings(**usual | {"optimizer": optimizer} | values))


def with_signs_alone(observation: Observation, rows: list[int]) -> Observation:
    """The same, but of some rows no coordinate is small enough to be read."""
    target = observation.target.clone()
    target[rows] = target[rows].sign().where(target[rows] != 0, 1.0)
    return replace(observation, target=target)


@pytest.mark.parametrize(
    ("optimizer", "values", "expected"),
    [
        ("sgd", {"local_steps": 2, "update_model": "unroll"}, [(40, False)]),
        ("sgd:momentum=0.9", {}, [(40, False)]),
        ("sgd:momentum=0.9", {"local_steps": 2, "update_model": "path"}, [(40, False)]),
        ("sgd:momentum=0.9", {"local_steps": 2, "update_model": "unroll"}, [(40, False)]),
        ("adam:lr=0.001", {"local_steps": 2, "update_model": "unroll"}, [(20, True), (20, False)]),
        ("adam:lr=0.001", {}, [(40, False)]),
        ("sgd:momentum=0.9", {"local_steps": 17, "update_model": "unroll"}, [(40, True)]),
    ],
)  # fmt: skip
def test_the_declared_optimizer_chooses_the_stages(
    optimizer: str, values: dict[str, Any], expected: list[tuple[int, bool]], tmp_path: Path
) -> None:
    made = stages_of(scene(optimizer, tmp_path, **values).observation, 40)
    assert [(stage.iterations, stage.path) for stage in made] == expected
    assert all(stage.blur is None for stage in made)


def test_where_no_magnitude_is_read_signs_are_compared_ever_more_sharply(tmp_path: Path) -> None:
    seen = scene("adam:lr=0.001", tmp_path).observation
    mixed = with_signs_alone(seen, [1])
    assert readable(seen).all() and readable(mixed).tolist() == [True, False, True]
    assert [rows.tolist() for rows in alike(mixed)] == [[0, 2], [1]]
    stages = stages_of(mixed.take(torch.tensor([1])), 100)
    blurs = [stage.blur or 0.0 for stage in stages]
    assert sum(stage.iterations for stage in stages) == 100 and blurs == sorted(blurs, reverse=True)
    assert (blurs[0], blurs[-1]) == (10.0, pytest.approx(0.01))
    # A row's result is its own, whatever is read of the rows beside it.
    attack = InvertingGradients(max_iterations=4)
    together = run_attack(attack, mixed)
    alone = [run_attack(attack, mixed.take(torch.tensor([row]))).images for row in range(3)]
    assert torch.equal(together.images, torch.cat(alone))


@pytest.mark.parametrize(
    ("factor", "blur", "least", "most"), [(1, 1e-3, 0.0, 0.05), (-1, 1e-3, 3.9, 4.0), (1, 10.0, 0.7, 1.0)]
)
def test_signs_are_compared_whatever_the_scale(factor: float, blur: float, least: float, most: float) -> None:
    gradient = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor([1e-6, 1e3]).repeat_interleave(25)
    found = signs(factor * gradient * scales, gradient, (25, 25), blur)
    assert ((least <= found) & (found <= most)).all()


@pytest.mark.slow
def test_signs_of_a_convolutional_networks_step_bring_images_back(tmp_path: Path) -> None:
    made = scene("adam:lr=0.001", tmp_path, model="lenet")
    assert not readable(made.observation).any()
    start, found = (run_attack(InvertingGradients(max_iterations=count), made.observation).images for count in (1, 200))
    assert rmse(found, made) < 0.6 * rmse(start, made)


def rmse(images: Tensor, made: Scene) -> float:
    return float((images.clamp(0, 1) - made.truth.images).square().mean((1, 2, 3, 4)).sqrt().median())


@pytest.mark.parametrize("optimizer", ["adam:lr=0.001", "adam:lr=0.001,betas=0.8/0.9", "adamw:lr=0.001"])
def test_two_adaptive_steps_tell_the_signs_of_both_gradients(optimizer: str, tmp_path: Path) -> None:
    made = scene(optimizer, tmp_path, model="lenet", local_steps=2, update_model="unroll")
    seen, truth = made.observation, made.truth
    told, ends = by_signs(seen, 1.0), (seen.weights, at_second_step(by_signs(seen, 1.0)))
    for place, (at, signs_told) in enumerate(zip(ends, told.target.chunk(2, 1), strict=True)):
        part = slice(place, place + 1)
        own = seen.model.gradient(at, truth.images[:, part], truth.labels[:, part]).sign()
        assert (own == signs_told)[signs_told != 0].double().mean() > 0.98
        assert (signs_told != 0).sum() > 0.9 * (told.target != 0).sum() / 2
    assert tells_both(seen).all() and stages_of(seen, 40)[0].both and not stages_of(seen, 40)[-1].both


@pytest.mark.parametrize(
    ("optimizer", "values"),
    [("rmsprop:lr=0.001", {}), ("adam:lr=0.001,clip_grad_norm=1", {}), ("adam:lr=0.001", {"local_steps": 3}),
     ("adam:lr=0.001,weight_decay=0.1", {}), ("sgd:momentum=0.9", {})],
)  # fmt: skip
def test_other_steps_tell_no_signs(optimizer: str, values: dict[str, Any], tmp_path: Path) -> None:
    seen = scene(optimizer, tmp_path, **{"local_steps": 2, "update_model": "unroll"} | values).observation
    assert not is_of_two(seen) and not any(one.both for one in stages_of(seen, 40))


@pytest.mark.slow
@pytest.mark.parametrize("attack", [InvertingGradients, CPL])
def test_signs_of_two_adaptive_steps_bring_images_back(attack: Any, tmp_path: Path) -> None:
    seen = scene("adam:lr=0.001", tmp_path, model="lenet", local_steps=2, update_model="unroll")
    start, found = (run_attack(attack(max_iterations=count), seen.observation).images for count in (1, 300))
    assert rmse(found, seen) < 0.5 * rmse(start, seen)


@pytest.mark.parametrize("optimizer", ["sgd:lr=0.001,momentum=0.9", "adam:lr=0.0001", "sgd:lr=0.001"])
def test_many_steps_share_the_points_of_a_path(optimizer: str, tmp_path: Path) -> None:
    made = scene(optimizer, tmp_path, model="mlp", local_steps=20, update_model="path")
    seen, taken = made.observation, list[int]()

    class Counted(RowModel):
        def gradient(self, weights: Tensor, images: Tensor, labels: Tensor, *, create_graph: bool) -> Tensor:
            taken.append(images.shape[1] * len(images) // seen.rows)
            return seen.model.gradient(weights, images, labels, create_graph=create_graph)

    counted = Counted("mlp", seen.model.image_shape, seen.model.classes)
    found, start = (
        dummy_gradient(replace(seen, model=model, update_model=way), made.truth.images, made.truth.labels, False)
        for model, way in ((counted, "path"), (seen.model, "avg"))
    )
    assert sum(taken) == 20 and len(taken) == (1 if seen.optimizer.is_plain else 16)
    # Taken at fewer points the way explains the update better still than gradients at its start.
    if seen.optimizer.is_linear:
        assert (found - seen.target).norm() < (start - seen.target).norm()


def test_steps_with_momentum_are_played_from_the_first_iteration(tmp_path: Path) -> None:
    """Of SGD: who takes gradients on the straight line between the weights first, never comes back from there."""
    made = scene("sgd:lr=0.1,momentum=0.9", tmp_path, model="lenet", victims=4, local_steps=2, update_model="unroll")
    images = run_attack(CPL(max_iterations=100), made.observation).images
    assert (images - made.truth.images).flatten(2).square().mean(2).sqrt().max() < 0.1


def test_an_unrolled_adaptive_optimizer_begins_where_the_path_ended(tmp_path: Path) -> None:
    seen = scene("adam:lr=0.001", tmp_path, local_steps=3, update_model="unroll").observation
    way = run_attack(CPL(max_iterations=4), replace(seen, update_model="path"))
    own = run_attack(CPL(max_iterations=8), seen)
    began = run_attack(CPL(max_iterations=1), seen)
    assert (own.initial_loss < began.initial_loss).all() and (own.iterations > way.iterations).all()


def test_a_row_is_finished_when_its_lightest_step_is(tmp_path: Path) -> None:
    """Of three steps with momentum .9 the last one weighs 1 of 2.71 + 1.9 + 1."""
    seen = scene("sgd:lr=0.05,momentum=0.9", tmp_path, local_steps=3, update_model="unroll").observation
    assert least_share(seen) == pytest.approx(1 / 5.61)
    assert CPL().stop_below(seen) == pytest.approx(1e-7 / 5.61**2 * seen.target.square().sum(1).clamp_min(1.0))
    assert least_share(replace(seen, update_model="path")) == 1.0


@pytest.mark.parametrize(
    ("attack", "arguments", "batch", "most"),
    [("spear", {}, 1, 0.1), ("spear", {}, 4, 0.1),
     pytest.param("cpl", {"max_iterations": 40}, 4, 0.17, marks=pytest.mark.slow)],
)  # fmt: skip
def test_magnitudes_that_are_read_give_the_batch_of_an_adaptive_step_away(
    attack: str, arguments: dict[str, Any], batch: int, most: float, tmp_path: Path
) -> None:
    made = scene("adam:lr=0.001", tmp_path, batch_size=batch)
    images = run_attack(build(ATTACKS, attack, arguments), made.observation).images.clamp(0, 1)
    off = torch.cdist(made.truth.images.flatten(2), images.flatten(2)).amin(2) / 8
    assert off.median() < most


@pytest.mark.parametrize("model", ["mlp2", "lenet"])
def test_who_compares_likelihoods_knows_how_exactly_each_coordinate_is_read(model: str, tmp_path: Path) -> None:
    made = scene("adam:lr=0.001", tmp_path, model=model)
    truth, label = made.truth.images[:, 0], made.truth.labels[:, 0]
    near = (truth + 0.02 * torch.randn(5, *truth.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    candidates = torch.cat([truth[:, None], near.transpose(0, 1)], 1)
    far = Identify().distances(made.observation, candidates, label)
    # An image that is off by a fiftieth is told from the truth, beyond all doubt.
    assert (far.argmin(1) == 0).all() and (far[:, 1:] > far[:, :1] + 100).all()


@pytest.mark.parametrize(
    ("attack", "batch", "said"), [("levels", 1, "the same for all"), ("slope", 2, "gradients that add up")]
)
def test_who_cannot_read_an_adaptive_step_says_why(attack: str, batch: int, said: str, tmp_path: Path) -> None:
    made = scene("adam:lr=0.001", tmp_path, batch_size=batch, prior="auto")
    with pytest.raises(UsageError, match=said):
        run_attack(reconstructing(build(ATTACKS, attack, {})), made.observation)


def test_a_product_is_found_behind_coordinates_that_are_known_unequally() -> None:
    random = torch.Generator().manual_seed(0)
    left, right = torch.randn(60, 3, generator=random).double(), torch.randn(3, 40, generator=random).double()
    exact = 10.0 ** torch.randint(0, 5, (60, 40), generator=random).double()
    noisy = left @ right + torch.randn(60, 40, generator=random).double() / exact
    found, plain = (of_rank(noisy, weights, 3) - left @ right for weights in (exact, torch.ones_like(exact)))
    assert found.abs().max() < 0.01 < 0.2 < plain.abs().max()


@pytest.mark.parametrize("attack", [
    "cpl", "inverting_gradients", "spear", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dlg", "map")),
])  # fmt: skip
def test_every_pass_has_the_same_images(attack: str, tmp_path: Path) -> None:
    """Three images and not twelve places, the last batch of a pass a smaller one."""
    values = {"batch_size": 2, "epochs": 3, "client_examples": 3, "update_model": "unroll", "prior": "auto"}
    model = "mlp2" if attack == "spear" else "mlp"
    made = scene("sgd:lr=0.01,momentum=0.9", tmp_path, victims=2, model=model, **values)
    seen, settings = made.observation, {} if attack == "spear" else {"max_iterations": 1}
    assert (seen.examples, seen.unknowns, seen.places) == (12, 3, (0, 1, 2, 2) * 3)
    found = run_attack(reconstructing(build(ATTACKS, attack, settings)), seen)
    first = [0, 1, 2]
    assert torch.equal(found.images, seen.in_places(found.images[:, first]))
    assert torch.equal(found.labels, seen.in_places(found.labels[:, first]))
    if attack != "dlg":
        assert torch.equal(found.labels[:, first].sort().values, made.truth.labels[:, first].sort().values)


class Computed(Exception):
    """An attack computes something."""


@pytest.mark.parametrize(
    ("optimizer", "values", "refused"),
    [
        ("sgd:lr=0.01,momentum=0.9", {}, {"learned"}),
        ("sgd:lr=0.01,momentum=0.9", {"local_steps": 2}, {"analytic", "levels", "learned"}),
        ("adam:lr=0.001", {}, {"levels", "learned"}),
        ("adam:lr=0.001", {"batch_size": 2}, {"analytic", "identify", "slope", "levels", "learned"}),
        ("adam:lr=0.001", {"local_steps": 2}, {"analytic", "identify", "rows", "spear", "slope", "levels", "learned"}),
        ("sgd:clip_grad_norm=0.1", {}, {"analytic", "rows", "spear", "slope", "levels", "learned"}),
    ],
)
def test_members_of_the_suite_are_chosen_before_anything_is_computed(
    optimizer: str, values: dict[str, Any], refused: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = "first" if values.get("local_steps", 1) == 1 else "unroll"
    made = scene(optimizer, tmp_path, prior="auto", update_model=update, **values)

    def computes(*_: object, **__: object) -> Tensor:
        raise Computed

    for name in ("gradient", "per_example_gradients"):
        monkeypatch.setattr(RowModel, name, computes)
    monkeypatch.setattr(Rows, "found", computes)  # with a network of its own
    found = set[str]()
    for name, settings in SUITES[LATEST["auto"]].items():
        attack, seen = build(ATTACKS, name, settings), made.observation
        try:
            if isinstance(attack, Identify):
                attack.distances(seen, made.truth.images[:, :1], made.truth.labels[:, 0])
            else:
                run_attack(reconstructing(attack), seen)
        except Computed:
            continue
        except UsageError:
            found.add(name)
    # No transformer reads these images, of patches or of texts.
    assert found == refused | {"patches", "token_rows", "span", "decode"}
