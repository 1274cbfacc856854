"""What several tests of training share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_accounting(coarse_losses: None) -> None:
    """Training is tested here, not the epsilons' last digits."""


@pytest.fixture(scope="session")
def train_plainly() -> Callable[..., None]:
    """Trains a module on a client's batches of a round, with one of torch's optimizers, as anybody does."""
    from torch.nn.functional import cross_entropy

    from harness.training.rounds import sample_batches

    def train(training: Any, round_index: int, client: int, module: Any, optimizer: Any) -> None:
        for places in sample_batches(training.settings, round_index, [client]).places[0]:
            chosen = training.data[client][places]
            optimizer.zero_grad()
            cross_entropy(module(training.train.images[chosen]), training.train.labels[chosen]).backward()
            optimizer.step()

    return train


class _KilledError(Exception):
    pass


@pytest.fixture
def killed_after() -> Callable[[int], AbstractContextManager[Callable[[Any], None]]]:
    """A context that gives an ``on_round`` which kills the run after so many rounds, and sees to it that it did."""

    @contextmanager
    def killed_after(rounds: int) -> Iterator[Callable[[Any], None]]:
        def kill(record: Any) -> None:
            if record.round == rounds:
                raise _KilledError

        with pytest.raises(_KilledError):
            yield kill

    return killed_after
