"""Which coordinates were left out, where noise that came after covers their zeros: all but the largest that were read.

Whoever knows how many coordinates a defense sends takes the others for what they are, noise alone. Without that a
candidate's whole gradient is held against one most of which was thrown away, and is improbable although it is true.
"""

from dataclasses import replace

from harness.observation import Observation


def uncovered(observation: Observation) -> Observation:
    """The same with zeros wherever nothing but noise is likely to be; as it is where noise covers no zeros.

    Each row keeps as many coordinates as may carry anything, those of largest magnitude. Where noise is larger than
    what was sent these are partly noise, which the known level of it allows for.
    """
    if observation.carrying is None:
        return observation
    target = observation.target
    magnitudes = target.abs()
    least = magnitudes.topk(observation.carrying, dim=1).values[:, -1:]
    return replace(observation, target=target.where(magnitudes >= least, 0.0))
