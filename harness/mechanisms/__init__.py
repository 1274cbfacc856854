"""Mechanisms of distributed differential privacy on integers: rounding, noise, and the ring they are summed in."""
