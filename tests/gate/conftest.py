"""Synthetic cells for the gate: victims whose ranks and errors are drawn, no attack is run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.gate import GateCell, Victim

SETTINGS = {
    "dataset": "digits", "model": "mlp", "defense": "fed_cdp", "attack": "cpl", "tap": "T2.step", "batch_size": 1,
    "noise_scale": 1.0, "defense.sigma": 1.0, "defense.clip": 4.0,
}  # fmt: skip

Made = Callable[..., GateCell]


def synthetic_cell(leak: float = 0.0, victims: int = 32, draw: int = 0, first: int = 0, **settings: Any) -> GateCell:
    """Victims of whom a share ``leak`` is reconstructed, the others at chance.

    Args:
        leak: chance of each victim to be reconstructed.
        victims: how many.
        draw: key of the random numbers; the same draw gives the same victims.
        first: number of the first victim; others than the baseline's are not paired.
        **settings: changes of the settings.
    """
    random = np.random.default_rng(draw)
    open_to = random.random(victims) < leak
    ranks = np.where(open_to, 0.0, random.random(victims)).round(4)
    rmses = np.where(open_to, np.exp(random.normal(-5, 1, victims)), np.exp(random.normal(-0.5, 0.2, victims)))
    made = {
        str(first + v): Victim(float(ranks[v]), float(f"{rmses[v]:.4g}"), float(open_to[v])) for v in range(victims)
    }
    return GateCell(SETTINGS | settings, made)


@pytest.fixture(scope="session")
def cell() -> Made:
    """The function above: test modules cannot import it from here."""
    return synthetic_cell
