"""The models that a server gave out, round by round, as its clients' captures have them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.base.errors import UsageError
from harness.judging.capture import Capture


def released_models(captures: Sequence[Capture]) -> dict[int, dict[str, NDArray[np.float64]]]:
    """What clients were sent at the beginning of each captured round, by its number, in order.

    Raises:
        UsageError: clients of one round were sent different models, so that no single one was given out.
    """
    of_round = dict[int, Capture]()
    for one in captures:
        first = of_round.setdefault(one.record.round, one)
        if first is not one and not _alike(first, one):
            raise UsageError(
                f"captures {str(first.folder)!r} and {str(one.folder)!r} of round {one.record.round} begin with "
                "different models; name captures of one job"
            )
    return {number: _model(of_round[number]) for number in sorted(of_round)}


def _alike(one: Capture, other: Capture) -> bool:
    return set(one.before) == set(other.before) and all(
        np.array_equal(np.asarray(one.before[name]), np.asarray(other.before[name])) for name in one.before
    )


def _model(capture: Capture) -> dict[str, NDArray[np.float64]]:
    return {name: np.asarray(capture.before[name], dtype=np.float64) for name in capture.before}
