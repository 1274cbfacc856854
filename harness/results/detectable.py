"""What a client who watches would see of a server that tampers."""

from harness.results.record import Number, Record


class Detectable(Record):
    """Distance of a tampering server's round from an honest one, in what it sends and what comes back.

    ``module``: what was put before the network, in words; null where nothing was;
    ``weights``: the largest Kolmogorov-Smirnov distance, over the network's own tensors of 100 values or more, between
    weights that were sent and those an honest server would have sent, with the ``weights_tensor``; in [0, 1];
    ``gradients``, ``gradients_tensor``: the same of the gradients that clients compute, before any defense, beside
    those of other clients in an honest round; ``gradients_honest``: what that is between honest clients;
    ``dead_units``, ``dead_units_honest``: share of rectified linear units that no example of a client's batch
    activates, as it was sent and as it would be honestly; null where there are none.
    """

    module: str | None = None
    weights: Number = None
    weights_tensor: str | None = None
    gradients: Number = None
    gradients_tensor: str | None = None
    gradients_honest: Number = None
    dead_units: Number = None
    dead_units_honest: Number = None
