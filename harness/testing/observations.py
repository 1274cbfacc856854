"""Victims without a defense, and what an adversary reads of them."""

from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from harness.datasets import Dataset
from harness.datasets.prior import Prior
from harness.datasets.prior_fit import fit_prior
from harness.models import RowModel
from harness.observation import Observation, Simulated, Simulation
from harness.tampering import Tamper

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
    """What scikit-learn's digits from the 400th on say of the others, for attacks that know public data."""
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
    network = RowModel(model, tuple(images.shape[2:]), classes, front=tamper and tamper.front)
    network.to(torch.device("cpu"), images.dtype)
    keys = tuple((0, victim) for victim in range(rows))
    weights = network.initial_weights(list(keys)) if weights is None else weights
    weights = weights.to(images.dtype)
    if tamper is not None:
        weights = tamper.send(network, weights, _digits()[0][400:].to(weights), 0)
    return Observation(network, weights, network.gradient(weights, images, labels), examples, keys, **facts)
