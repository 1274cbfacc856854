"""Undefended victims on scikit-learn's 8x8 digits, what an adversary reads of them, and notes to attack."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.datasets import Dataset, divide, load_dataset
from harness.datasets.prior import Prior, fit_prior
from harness.observation import Observation
from harness.testing import digits as draw_digits
from harness.testing import digits_prior, undefended
from harness.testing.attacks import digits_simulation


@pytest.fixture(scope="session")
def observe() -> Callable[..., Observation]:
    """See :func:`harness.testing.undefended`."""
    return undefended


@pytest.fixture(scope="session")
def digits() -> Callable[..., tuple[Tensor, Tensor]]:
    """See :func:`harness.testing.digits`."""
    return draw_digits


@pytest.fixture(scope="session")
def victims() -> Callable[..., Observation]:
    """The observation of R victims with n digits each, beside public digits."""

    def read(rows: int, examples: int = 1, dtype: torch.dtype = torch.float32, **facts: Any) -> Observation:
        images, labels = draw_digits(rows, examples)
        prior = digits_prior().to(images.device, dtype)
        seen = undefended(images.to(dtype), labels, **{"prior": prior} | facts)
        return replace(seen, simulation=digits_simulation(seen.model, examples))

    return read


@pytest.fixture(scope="session")
def notes() -> Dataset:
    """All notes."""
    return load_dataset("notes", Path())


@pytest.fixture(scope="session")
def sides(notes: Dataset) -> tuple[Dataset, Prior]:
    """The private notes, and what the public ones say of them."""
    data = divide(notes, "notes", "auto", Path())
    return data.private, fit_prior(data.public)
