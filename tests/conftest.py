"""What all tests share. Imported before any test module: ``harness`` tunes the libraries underneath torch first."""

import harness  # noqa: F401

# isort: split
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations: on a busy machine waiting for threads makes them ten times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
