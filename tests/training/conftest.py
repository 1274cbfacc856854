"""What several tests of training share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_accounting(coarse_losses: None) -> None:
    """Training is tested here, not the epsilons' last digits."""


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
