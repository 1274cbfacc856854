"""Reading of victims' rounds by an adversary: the gradient, and the running statistics beside it where they travel."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.vectors import filled
from harness.datasets import Victims
from harness.evaluation.played_round import Key, PlayedRound
from harness.evaluation.sending import Sent
from harness.experiment import CellSettings
from harness.models import RowModel
from harness.models.batch_norm import Buffers, KnownBatches, recovered, shares_of

Remembered = Mapping[str, Tensor]
"""What clients keep (V, ...) from one round to the next, by name."""
NOTHING: Remembered = MappingProxyType({})


class Reading(NamedTuple):
    """Gradients (V, P), or (V, n, P) of every example, and running statistics (V, channels) after the local steps.

    The latter are empty where the network has no BatchNorm in training mode. ``kept``: what clients keep of the round
    (V, ...) for their next one, which no adversary gets.
    """

    gradients: Tensor
    running: Buffers
    kept: Remembered = NOTHING

    @classmethod
    def joined(cls, parts: Iterable["Reading"], rows: int) -> "Reading":
        """So many victims' as one; parts are made one by one, since large networks fill the memory but once."""
        others: list[tuple[Buffers, Remembered]] = []

        def gradients() -> Iterator[Tensor]:
            for part in parts:
                others.append((part.running, part.kept))
                yield part.gradients

        whole = filled(gradients(), rows)
        running, kept = (
            {name: torch.cat([state[name] for state in every]) for name in every[0]}
            for every in zip(*others, strict=True)
        )
        return cls(whole, running, kept)


def read_round(
    model: RowModel, weights: Tensor, truth: Victims, part: slice, keys: list[Key], settings: CellSettings,
    sent: Sent | None = None, remembered: Remembered = NOTHING,
) -> Reading:  # fmt: skip
    """Return what the adversary makes of some victims' round.

    Args:
        sent: what a server that tampers sends to their clients.
        remembered: what all victims, each one client, keep (V, ...) of rounds before.
    """
    images, labels = truth.images[part].to(weights), truth.labels[part].to(weights.device)
    together = settings.together
    if together > 1:
        # A victim is a whole round of clients, all of which honest servers send the same model.
        images, labels = (
            values.reshape(-1, values.shape[1] // together, *values.shape[2:]) for values in (images, labels)
        )
        weights = weights.repeat_interleave(together, 0) if sent is None else sent.to_all(model, weights, together)
        keys = [(*key, "client", client) for key in keys for client in range(together)]
    own = {name: values[part] for name, values in remembered.items()}
    if len(keys) == 1:
        # One row alone takes other CPU kernels than the same row among many.
        images, labels = images.repeat(2, *[1] * 4), labels.repeat(2, 1)
        weights, keys = weights.repeat(2, 1), keys * 2
        own = {name: values.repeat(2, 1) for name, values in own.items()}
    rows = part.stop - part.start
    played = PlayedRound(model, weights, images, labels, tuple(keys), settings, own)
    looks = (played.look(repetition)[:rows] for repetition in range(settings.observations))
    # In the mean of several clients a zero was left out by all of them.
    one_by_one = together == 1 or not settings.tap.of_round
    gradients = average(looks, one_by_one and settings.build_defense().sparse_at(settings.tap))
    # A secure sum is of the running statistics too.
    running = {
        name: values.unflatten(0, (-1, together)).double().mean(1).to(values.dtype)[:rows]
        for name, values in played.running().items()
    }
    kept = {name: values[:rows] for name, values in played.kept.items()} if together == 1 else {}
    return Reading(gradients, running, kept)


def known_batches(model: RowModel, running: Buffers, settings: CellSettings) -> KnownBatches | None:
    """Return what the adversary knows of the batches of victims whose network normalises them as a whole; None of
    others.

    Raises:
        UsageError: ``batch_norm`` is set and the network has none that is trained so.
    """
    if not model.normalised:
        if settings.batch_norm is not None:
            raise UsageError(f"model {model.name!r} has no BatchNorm in training mode; leave --batch-norm out")
        return None
    if settings.batch_norm == "hidden":
        return KnownBatches(settings.batch_size)
    steps, together = settings.local_steps if settings.tap.of_update else 1, settings.together
    counts = {name: places * settings.batch_size for name, places in model.places.items()}
    found = recovered(model.normalised, running, counts, steps)
    shares = {}
    for name in found:
        own = shares_of(model.normalised[name], steps)
        shares[name] = tuple(share / sum(own) / together for share in own) * together
    return KnownBatches(settings.batch_size, found, shares)


def average(looks: Iterable[Tensor], sparse: bool = False) -> Tensor:
    """The mean of R >= 1 tensors of one shape, one in memory at a time; equal looks give exactly the look itself.

    Args:
        looks: what was read, look by look.
        sparse: zeros are coordinates known to be left out; each is averaged over the looks that have it.

    Returns:
        The mean in the dtype of the looks, taken in float64.
    """
    iterator = iter(looks)
    first = next(iterator)
    second = next(iterator, None)
    if second is None:
        return first
    mean, times = first.double(), _there(first, sparse)
    for look in chain([second], iterator):
        there = _there(look, sparse)
        times = times + there
        # A running mean does not move, not even by rounding, when it meets itself.
        mean = mean + there * (look.double() - mean) / times.clamp(min=1)
    return mean.to(first.dtype)


def _there(look: Tensor, sparse: bool) -> Tensor:
    """1 for each coordinate of the look that was not left out; one number where none ever is."""
    return (look != 0).double() if sparse else torch.ones((), dtype=torch.float64, device=look.device)
