"""Gaussian noise whose scale and whose clipping bound stay the same over a whole run."""

import math
from dataclasses import dataclass
from typing import Literal

from harness.defenses.privacy_facts import PrivacyFacts
from harness.layout import Grouping

Place = Literal["server", "message", "step"]


@dataclass(frozen=True)
class FixedNoise:
    """The noise that a defense adds to clipped vectors, in every round alike.

    Attributes:
        place: where it is added: by the ``server`` to the sum of the clients' clipped messages, by each client to its
            own clipped ``message``, or by each client in a local ``step`` to the sum of its clipped example gradients.
        deviation: its standard deviation on a coordinate.
        bound: largest L2 norm of one clipped vector as a whole: of a message, or of an example's gradient.
    """

    place: Place
    deviation: float
    bound: float


def whole_bound(clip: float, clipping: Grouping, facts: PrivacyFacts) -> float:
    """Largest norm of a vector clipped to ``clip`` as a whole, or tensor by tensor."""
    return clip * (math.sqrt(facts.tensors) if clipping == "layer" else 1.0)
