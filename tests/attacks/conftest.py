"""Undefended victims on scikit-learn's 8x8 digits, and what an adversary reads of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from harness.models import RowModel
from harness.surfaces import Observation


@pytest.fixture(scope="session")
def observe() -> Callable[..., Observation]:
    """Reads the raw batch gradients of images (R, n, C, H, W) with labels (R, n), each row under its own network."""

    def read(
        images: Tensor, labels: Tensor, classes: int, model: str = "lenet", weights: Tensor | None = None, **facts: Any
    ) -> Observation:
        rows, examples = labels.shape
        network = RowModel(model, tuple(images.shape[2:]), classes).to(torch.device("cpu"), images.dtype)
        keys = tuple((0, victim) for victim in range(rows))
        weights = network.initial_weights(list(keys)) if weights is None else weights
        weights = weights.to(images.dtype)
        target = network.gradient(weights, images, labels)
        return Observation(network, weights, target, examples, keys, **facts)

    return read


@pytest.fixture(scope="session")
def digits() -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Images (R, n, 1, 8, 8) in [0, 1] and labels (R, n) of R victims with n digits each."""
    data = load_digits()
    images, labels = torch.tensor(data.images / 16.0, dtype=torch.float32)[:, None], torch.tensor(data.target)

    def draw(rows: int, examples: int = 1) -> tuple[Tensor, Tensor]:
        count = rows * examples
        return images[:count].unflatten(0, (rows, examples)), labels[:count].unflatten(0, (rows, examples))

    return draw


@pytest.fixture(scope="session")
def victims(
    observe: Callable[..., Observation], digits: Callable[[int, int], tuple[Tensor, Tensor]]
) -> Callable[..., Observation]:
    """The observation of R victims with n digits each."""

    def read(rows: int, examples: int = 1, dtype: torch.dtype = torch.float32, **facts: Any) -> Observation:
        images, labels = digits(rows, examples)
        return observe(images.to(dtype), labels, 10, **facts)

    return read
