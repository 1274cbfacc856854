"""Learned: a linear inverse, fitted to public examples that are run through the very defense at the same weights.

It plays the round itself, so it needs to be told nothing of clipping, masks, bounds or noise: whatever the defense
does to what is read, it does to the public examples too. That takes victims who share weights.
"""

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from harness.attacks.attack import ATTACKS, validated_attack
from harness.attacks.closed_form import ClosedForm
from harness.attacks.linear_inverse import LinearInverse, fit_inverse
from harness.base.errors import UsageError
from harness.observation import Observation, Simulation, Tier

FLOATS = 2 * 10**8
"""The most numbers of simulated gradients that are held."""
FEWEST = 20


@ATTACKS.register("learned")
@validated_attack
class Learned(ClosedForm):
    """The linear estimator of least mean square error; images of a batch in the order of their labels.

    ``simulations``: at most so many public observations. They are learned from without noise where the defense can be
    played without; lambda is chosen by what is left of noisy ones.
    """

    simulations: Annotated[int, Field(ge=FEWEST, le=5000)] = 2000
    tier: ClassVar[Tier] = "informed"
    uses_labels: ClassVar[bool] = False

    def solved(self, observation: Observation) -> Tensor:
        """The estimates (R, n*D).

        Raises:
            UsageError: public examples cannot be run through the round, or too few of them fit into memory.
        """
        if observation.simulation is None:
            raise UsageError(
                "attack 'learned' runs public examples through the round of victims who share weights; use "
                "--shared-weights and --prior auto (rounds with control variates cannot be played so)"
            )
        networks, which = observation.weights.unique(dim=0, return_inverse=True)
        inverses = [_fit(self._task(observation, weights)) for weights in networks]
        # One at a time: products of several rows take kernels that differ by how many there are.
        made = [inverses[number].of(row) for number, row in zip(which.tolist(), observation.target, strict=True)]
        return torch.stack(made)

    def effort(self, observation: Observation) -> int:
        return self._count(observation) if observation.simulation else 0

    def _task(self, observation: Observation, weights: Tensor) -> "_Task":
        assert observation.simulation is not None
        bits = hashlib.sha256(weights.detach().cpu().numpy().tobytes()).digest()
        return _Task(observation.simulation, bits, self._count(observation), observation.noise is not None, weights)

    def _count(self, observation: Observation) -> int:
        assert observation.simulation is not None
        fitting = FLOATS // observation.target.shape[1]
        count = min(self.simulations, fitting, observation.simulation.count)
        if count < FEWEST:
            raise UsageError(
                f"attack 'learned' has room for {fitting} simulated gradients of this network and needs {FEWEST}; use "
                "a smaller --model, or another attack"
            )
        return count


@dataclass(frozen=True)
class _Task:
    """What an inverse is fitted to: public examples under some weights (P,), which ``bits`` stand for."""

    simulation: Simulation
    bits: bytes
    count: int
    noisy: bool
    weights: Tensor = field(compare=False)


@lru_cache(maxsize=2)
def _fit(task: _Task) -> LinearInverse:
    quiet = task.simulation.play(task.weights, task.count, quiet=True)
    order = quiet.labels.sort(dim=1, stable=True).indices
    images = quiet.images[torch.arange(len(order), device=order.device)[:, None], order].flatten(1)
    read = task.simulation.play(task.weights, task.count, quiet=False).gradients if task.noisy else None
    return fit_inverse(images, quiet.gradients, read)
