"""Coordinates of a gradient that no image moves are left out while an attack descends: they only cost time."""

from collections.abc import Callable
from dataclasses import replace

from harness.observation import Observation

Lean = Callable[[Observation], Observation]
"""Makes of some of its rows what is attacked in their place."""


def as_it_is(observation: Observation) -> Observation:
    """The same."""
    return observation


def without_idle_coordinates(observation: Observation) -> Lean:
    """What leaves these coordinates out of rows of an observation.

    They stay where something was read there, noise for example, since losses would be others; and for attackers who
    know more than the gradient, who reckon with every coordinate.
    """
    told = (observation.noise, observation.prior, observation.simulation, observation.model.front)
    found = observation.model.without_idle_weights() if all(one is None for one in told) else None
    if found is None:
        return as_it_is
    model, kept = found[0], found[1].to(observation.target.device)
    if observation.target.count_nonzero() != observation.target[:, kept].count_nonzero():
        return as_it_is

    def lean(rows: Observation) -> Observation:
        correction = None if rows.correction is None else rows.correction[:, kept]
        return replace(
            rows, model=model, weights=rows.weights[:, kept], target=rows.target[:, kept], correction=correction
        )

    return lean
