"""Rules that every attack must keep. Each check runs a built attack and raises AssertionError where one is broken.

The victims are the caller's; by default four digits, undefended, on a small network. No check needs an attack to
succeed, so few iterations do. No label or image is ever handed over, so an attack that needs the truth cannot run.
"""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from harness.attacks import Attack, Reconstruction, run_attack
from harness.attacks.engine import CAP, CONVERGED, DIVERGED, HOPELESS
from harness.base.columns import TableShape
from harness.datasets import Dataset
from harness.datasets.prior import Prior, fit_prior
from harness.models import RowModel
from harness.observation import Observation, Simulated, Simulation
from harness.tampering import Tamper

# Victims without a defense, and what an adversary reads of them.

CLASSES = 10


@cache
def _digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels)


def digits(rows: int, examples: int = 1) -> tuple[Tensor, Tensor]:
    """Images (R, n, 1, 8, 8) in [0, 1] and labels (R, n) of R victims with n of scikit-learn's digits each."""
    images, labels = (part[: rows * examples].clone() for part in _digits())
    return images.unflatten(0, (rows, examples)), labels.unflatten(0, (rows, examples))


@cache
def digits_prior() -> Prior:
    """Return what scikit-learn's digits from the 400th on say of the others, for attacks that know public data."""
    images, labels = _digits()
    names = tuple(map(str, range(CLASSES)))
    return fit_prior(Dataset("digits, from the 400th on", images[400:], labels[400:], names, "scikit-learn"))


def digits_simulation(network: RowModel, examples: int = 1) -> Simulation:
    """The undefended round of ``network`` for 300 observations of scikit-learn's digits from the 400th on."""
    images, labels = (part[400 : 400 + 300 * examples] for part in _digits())

    def play(weights: Tensor, count: int, quiet: bool) -> Simulated:
        shown = images[: count * examples].unflatten(0, (count, examples)).to(weights)
        told = labels[: count * examples].unflatten(0, (count, examples))
        return Simulated(shown, told, network.gradient(weights.expand(count, -1), shown, told))

    return Simulation("digits", min(300, len(images) // examples), play)


def undefended(
    images: Tensor,
    labels: Tensor,
    classes: int = CLASSES,
    model: str = "lenet",
    weights: Tensor | None = None,
    tamper: Tamper | None = None,
    **facts: Any,
) -> Observation:
    """The raw batch gradients of images (R, n, C, H, W) with labels (R, n), each row under a network of its own.

    Args:
        images: pixels in [0, 1]; their precision is that of the whole observation.
        labels: in 0 .. classes - 1.
        classes: K.
        model: a registered network.
        weights: (R, P); fresh ones by default.
        tamper: what a server does to them, knowing scikit-learn's digits from the 400th on.
        facts: what else an :class:`Observation` may hold.
    """
    rows, examples = labels.shape
    columns = facts.get("columns")
    shape = tuple(images.shape[2:]) if columns is None else TableShape(columns)
    network = RowModel(model, shape, classes, front=tamper and tamper.front)
    network.to(torch.device("cpu"), images.dtype)
    keys = tuple((0, victim) for victim in range(rows))
    weights = network.initial_weights(list(keys)) if weights is None else weights
    weights = weights.to(images.dtype)
    if tamper is not None:
        weights = tamper.send(network, weights, _digits()[0][400:].to(weights), 0)
    return Observation(network, weights, network.gradient(weights, images, labels), examples, keys, **facts)


def assert_attack_contract(attack: Attack, observation: Observation | None = None) -> None:
    """All checks of this module; ``observation`` has four rows or more, and public data for attacks that know some."""
    observation = observation or _read_digits(attack)
    assert_result(attack, observation)
    assert_rows_apart(attack, observation)
    assert_frozen(attack, observation)


def _read_digits(attack: Attack) -> Observation:
    seen = undefended(*digits(4), model="mlp", prior=digits_prior(), tamper=attack.tamper(1, 1))
    return replace(seen, simulation=digits_simulation(seen.model))


def assert_result(attack: Attack, observation: Observation) -> Reconstruction:
    """Every row has a result: of the right shape, finite, the best iterate by matching loss, with why it stopped."""
    assert observation.labels is None, "check an attack on victims whose labels it is not told"
    result, rows = run_attack(attack, observation), observation.rows
    shape = (rows, observation.examples, *observation.model.image_shape)
    assert tuple(result.images.shape) == shape, f"images have shape {tuple(result.images.shape)} instead of {shape}"
    assert result.images.isfinite().all(), "images have values that are not finite"
    assert tuple(result.labels.shape) == shape[:2], f"labels have shape {tuple(result.labels.shape)}"
    assert result.labels.min() >= 0 and result.labels.max() < observation.model.classes, "there is no such label"
    for field in fields(Reconstruction):
        assert len(getattr(result, field.name)) == rows, f"{field.name} has not one entry per victim"
    solved_at_once = result.initial_loss <= attack.stop_below(observation)
    assert ((result.loss <= result.initial_loss) | solved_at_once).all(), "a result is worse than its start"
    assert ((result.iterations >= 1) & (result.iterations <= attack.max_iterations)).all(), "too many iterations"
    assert set(result.stop_reason.tolist()) <= {CAP, CONVERGED, DIVERGED, HOPELESS}, "it stopped for no known reason"
    assert (result.iterations[result.stop_reason == CAP] == attack.max_iterations).all(), "stopped before the cap"
    assert ((result.restart >= 0) & (result.restart < attack.starts)).all(), "there is no such restart"
    if attack.box:
        assert result.images.min() >= 0 and result.images.max() <= 1, "images leave the box"
    return result


def assert_rows_apart(attack: Attack, observation: Observation) -> None:
    """A victim's result is the same to the bit however victims are grouped, and when the attack is run again."""
    everyone, whole = list(range(observation.rows)), run_attack(attack, observation)
    in_pairs = run_attack(attack, observation, chunk=2 * attack.starts)
    assert_same_bits(in_pairs, everyone, whole, everyone)
    last = everyone[-1]
    assert_same_bits(run_attack(attack, observation.take(torch.tensor([last]))), [0], whole, [last])


def assert_frozen(attack: Attack, observation: Observation, spoil: float = torch.nan) -> None:
    """Assert that a second victim whose reading is ``spoil`` counts as diverged at once, and that no other row
    notices."""
    target = observation.target.clone()
    target[1] = spoil
    clean, dirty = run_attack(attack, observation), run_attack(attack, replace(observation, target=target))
    assert dirty.stop_reason[1] == DIVERGED and dirty.iterations[1] == 1, "went on with what is no number"
    assert dirty.images.isfinite().all() and dirty.images.shape == clean.images.shape, "has no image to show for it"
    others = [row for row in range(observation.rows) if row != 1]
    assert_same_bits(dirty, others, clean, others)


def assert_same_bits(one: Reconstruction, rows: list[int], other: Reconstruction, other_rows: list[int]) -> None:
    """Some rows of two results are equal in everything."""
    left, right = _rows_of(one, rows), _rows_of(other, other_rows)
    differing = [name for name in left if not torch.equal(left[name], right[name])]
    assert not differing, f"{differing} depend on the other victims, or on more than the key"


def _rows_of(result: Reconstruction, rows: list[int]) -> dict[str, Tensor]:
    return {field.name: getattr(result, field.name)[rows] for field in fields(Reconstruction)}
