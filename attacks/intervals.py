"""Intervals: the most probable image among those that rounding, signs and omitted numbers leave possible.

A rounded number lies between two known borders, a sign is a half-line, and what was left out because it is small is no
larger than the least number that was sent. Within its bounds every number is as likely as any other; one that chance
rounded is the likelier the nearer it is. Beyond them its probability falls as a normal tail. The prior is that of
``map``. Error feedback adds what one round lost to the next: what was written then is known from the rounds before, so
that the bounds are on sums of gradients.

Sources: K. Yue et al., "Gradient Obfuscation Gives a False Sense of Security in Federated Learning" (USENIX Security
2023, "ROG"), whose attacker does not use bounds; for likelihoods of rounded and signed measurements, A. Zymnis, S. Boyd
and E. Candes, "Compressed Sensing with Quantized Measurements" (IEEE Signal Processing Letters, 2010).
"""

import math
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from harness.attacks.attack import ATTACKS, Dummy, validated_attack
from harness.attacks.map import MaximumAPosteriori, Placed
from harness.attacks.residual import gaussian_tail
from harness.base.coding import ByChance
from harness.base.errors import UsageError
from harness.base.ranges import Positive
from harness.base.vectors import group_sums, spread
from harness.observation import Observation

# What is known exactly may be off by that share of the root mean square: less makes the loss too steep to descend.
_FLOOR = 1e-2
_TINY = 1e-30
Bounds = tuple[Tensor, Tensor]
_BOUNDS: WeakKeyDictionary[Observation, Bounds] = WeakKeyDictionary()


@ATTACKS.register("intervals")
@validated_attack
class Intervals(MaximumAPosteriori):
    """``softness``: how far beyond its bounds a number may be, in their distance. ``blur``: the same of signs, in root
    mean squares of the candidate's tensor."""

    softness: Positive = 0.1
    blur: Positive = 0.01
    reads_level: ClassVar[bool] = False
    by_vectors: ClassVar[bool] = False
    reads_coding: ClassVar[bool] = True

    def superfluous(self, observation: Observation) -> str | None:
        if observation.coding is not None:
            return None
        return "attack 'intervals' reads rounded numbers, and here none are; a suite leaves it out: 'map' does the same"

    def labels_of_starts(self, observation: Observation) -> Tensor | None:
        bounds_of(observation)  # before any work
        return super().labels_of_starts(observation)

    def start(self, observation: Observation, keys: list[tuple[int | str, ...]]) -> Tensor:
        if observation.prior is None:
            raise UsageError("attack 'intervals' needs public data; use --prior auto, or --prior FILE.npz of your own")
        return super().start(observation, keys)

    def stop_below(self, observation: Observation) -> Tensor:
        return torch.full_like(observation.target[:, 0], -math.inf)

    def mismatch(self, observation: Observation, candidate: Tensor, dummy: Dummy) -> Tensor:
        assert isinstance(dummy, Placed)
        written, (low, high) = as_written(observation, candidate), bounds_of(observation)
        width, floor = high - low, _FLOOR * observation.target.square().mean(1, keepdim=True).sqrt()
        scale = torch.where(width.isfinite(), self.softness * width + floor, self.blur * _sizes(observation, written))
        beyond = gaussian_tail((written - high) / scale) + gaussian_tail((low - written) / scale)
        if isinstance(observation.coding, ByChance):
            beyond = beyond + observation.coding.unlikely(written, observation.target, observation.model.layout.sizes)
        unlikely = beyond.sum(1, dtype=torch.float64).to(candidate.dtype)
        return unlikely + dummy.coordinates.square().sum((1, 2)) / 2

    def doubt(self, observation: Observation, images: Tensor, labels: Tensor) -> str | None:
        return None  # it needs no noise, and refuses what has any


def bounds_of(observation: Observation) -> Bounds:
    """Between which numbers (R, P) those of each row lay before they were written.

    What was left out by a rule that tells nothing of its size may be any number; all else is exact where nothing was
    made coarser.

    Raises:
        UsageError: nothing is known of them.
    """
    if observation not in _BOUNDS:
        coding, clipping, target = observation.coding, observation.clipping, observation.target
        if observation.noise is not None:
            raise UsageError("noise hides the bounds that attack 'intervals' reads; use --attack map")
        if clipping is not None and clipping.bound is None:
            raise UsageError("clients scale by bounds that nobody knows, which 'intervals' needs; use --attack map")
        if coding is None:
            far = torch.where(target == 0, math.inf, 0.0).to(target) if observation.sparse else torch.zeros_like(target)
            found: Bounds | None = target - far, target + far
        else:
            found = coding.bounds(target, observation.model.layout)
        if found is None:
            raise UsageError("what was read bounds no numbers, which 'intervals' needs; use --attack map")
        _BOUNDS[observation] = found
    return _BOUNDS[observation]


def as_written(observation: Observation, candidate: Tensor) -> Tensor:
    """Return what candidates (R, P) would have had to write: under error feedback, with what was lost in rounds before.

    What is lost in a round is all that was to be sent so far, less what was sent: both sums are known.
    """
    coding, rounds = observation.coding, observation.model.layout.rounds
    if rounds == 1 or coding is None or not coding.feedback:
        return candidate
    own, sent = (values.unflatten(1, (rounds, -1)).cumsum(1) for values in (candidate, observation.target))
    return torch.cat([own[:, :1], own[:, 1:] - sent[:, :-1]], 1).flatten(1)


def _sizes(observation: Observation, candidate: Tensor) -> Tensor:
    """The root mean square of each tensor of candidates (R, P): signs tell no size, so that they are compared by it."""
    sizes = observation.model.layout.sizes
    counts = torch.tensor(sizes, dtype=candidate.dtype, device=candidate.device)
    return spread((group_sums(candidate.detach().square(), sizes) / counts).sqrt().clamp_min(_TINY), sizes)
