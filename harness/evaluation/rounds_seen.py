"""Several rounds of the same examples, or of the same client, by one who keeps every message: the model moves on.

In every round the server averages the message that was seen with those of other clients, whose examples are new each
time, and plain averaging moves the model. Noise is new in every round, and follows the defense's schedule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from harness.base.coding import Coding, Largest
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.datasets import Dataset, Victims
from harness.evaluation.played_round import Key, PlayedRound
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.models import RowModel
from harness.models.batch_norm import LayerStatistics
from harness.observation import Chosen, Noise, Observation


def moved(
    model: RowModel, weights: Tensor, truth: Victims, keys: Sequence[Key], settings: CellSettings, others: Dataset,
    chunk: int = 128, remembered: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:  # fmt: skip
    """The weights (V, P) that a round leads to from weights (V, P), each victim's in a federation of its own.

    Args:
        model: the network.
        weights: before the round.
        truth: the victims' examples, which they train on again.
        keys: of the victims, with which their message is the one that was seen.
        settings: of the round.
        others: what the round's other clients hold: examples at random, none of the victim's.
        chunk: most clients trained together.
        remembered: what the victims keep (V, ...) of rounds before; the other clients are new.
    """
    played = _published(settings)
    clients, whole = settings.clients_per_round, settings.together > 1
    together, parts = max(1, chunk // clients), []
    for first in range(0, len(keys), together):
        rows = slice(first, min(first + together, len(keys)))
        images, labels = _own_round(truth, rows, clients) if whole else _cohort(truth, rows, keys[rows], played, others)
        # The first is the victim, with the noise that was seen.
        each = tuple(
            (*key, "client", client) if client or whole else key for key in keys[rows] for client in range(clients)
        )
        start = weights[rows].repeat_interleave(clients, 0)
        kept = {name: _of_first(values[rows], clients) for name, values in remembered.items()}
        made = PlayedRound(model, start, images.to(weights), labels.to(weights.device), each, played, kept)
        parts.append(made.update())
    return (weights.double() + torch.cat(parts).to(weights.device)).to(weights.dtype)


def _of_first(values: Tensor, clients: int) -> Tensor:
    """Values (V, ...) for the first of each victim's clients (V * K, ...), and zeros for the others."""
    every = values.new_zeros(len(values), clients, *values.shape[1:])
    every[:, 0] = values
    return every.flatten(0, 1)


_ONE_STEP = {"local_steps": 1, "epochs": 1, "client_examples": None, "update_model": "first"}


def _published(settings: CellSettings) -> CellSettings:
    """Return the settings of the same round as the server applies it. Where a local step is read, its batch is all that
    a client has."""
    changes = {} if settings.tap.of_update else _ONE_STEP
    return settings.model_copy(update={"tap": Tap.PUBLISHED, "observations": 1, **changes})


def _own_round(truth: Victims, rows: slice, clients: int) -> tuple[Tensor, Tensor]:
    """Images (V * K, n, ...) and labels (V * K, n) of victims who are a whole round of clients each."""
    images, labels = (part[rows].reshape(-1, part.shape[1] // clients, *part.shape[2:])
                      for part in (truth.images, truth.labels))  # fmt: skip
    return images, labels


def _cohort(
    truth: Victims, rows: slice, keys: Sequence[Key], settings: CellSettings, others: Dataset
) -> tuple[Tensor, Tensor]:
    """Return images (V * K, n, ...) and labels (V * K, n) of each victim and the other clients of its round."""
    images, labels, beside = truth.images[rows], truth.labels[rows], settings.clients_per_round - 1
    drawn = [
        _apart(own.unique().cpu(), len(others.labels), beside * images.shape[1], (*key, settings.round))
        for own, key in zip(truth.indices[rows], keys, strict=True)
    ]
    places = torch.stack(drawn).reshape(len(keys), beside, images.shape[1])
    images, labels = (
        torch.cat([own[:, None], values[places].to(own)], 1).flatten(0, 1)
        for own, values in ((images, others.images), (labels, others.labels))
    )
    return images, labels


def _apart(own: Tensor, size: int, count: int, key: tuple[int | str, ...]) -> Tensor:
    """Positions (count,) at random, none of them among a victim's ``own``, which are in order."""
    places = torch.randint(size - len(own), (count,), generator=generator("beside", *key))
    for position in own:
        places += places >= position
    return places


# A client that draws each round's examples from all that it has.


def drawn(settings: CellSettings, keys: Sequence[Key]) -> Tensor:
    """Draw which of its examples each client takes in each round that is seen: (V, T, b), different ones within a
    round."""
    held, first = settings.distinct, settings.round
    rounds = range(first, first + settings.rounds_seen)
    orders = [[torch.randperm(held, generator=generator("drawn", *key, number)) for number in rounds] for key in keys]
    return torch.stack([torch.stack(one)[:, : settings.examples] for one in orders])


def of_places(truth: Victims, places: Tensor) -> Victims:
    """The victims' examples in some of their places (V, b)."""
    rows = torch.arange(len(places))[:, None]
    return Victims(*(values[rows, places] for values in (truth.images, truth.labels, truth.indices)))


def row_by_row(rounds: Sequence[Observation], held: int) -> Observation:
    """Rounds in which clients train on other examples as one observation, a row (V * T) for each round of a client.

    Args:
        rounds: of the same V clients.
        held: how many examples each of them has.

    Raises:
        UsageError: what is known of them differs from round to round in what attackers take to be the same.
    """
    first, count = rounds[0], len(rounds)

    def rows(name: str) -> Tensor | None:
        parts = [getattr(one, name) for one in rounds]
        return None if parts[0] is None else torch.stack(parts, 1).flatten(0, 1)

    alike = {name: _alike(name, [getattr(one, name) for one in rounds])
             for name in ("clipping", "carrying", "cut", "sparse", "coding")}  # fmt: skip
    if len({one.noise and one.noise.facts() for one in rounds}) > 1:
        raise _changes("noise")
    keys = [(*key, "round", number) for key in first.keys for number in range(count)]
    named = {name: rows(name) for name in ("weights", "target", "labels", "correction", "certainty", "trained")}
    return replace(first, keys=tuple(keys), client=(count, held), **named, **alike)


# Rounds that were read one by one, as one observation.


def combined(rounds: Sequence[Observation]) -> Observation:
    """Several rounds of the same victims as one observation, their weights and gradients one after another.

    Raises:
        UsageError: what is known of them differs from round to round in what attackers take to be the same.
    """
    first, count = rounds[0], len(rounds)
    if count == 1:
        return first
    rounds, units = _in_one_unit(rounds)
    values = {field.name: [getattr(one, field.name) for one in rounds] for field in fields(Observation)}
    joined = {name: _joined(values[name]) for name in ("weights", "target", "certainty", "trained")}
    alike = {name: _alike(name, values[name]) for name in ("clipping", "cut", "sparse")}
    model = ModelOverRounds(first.model, count, units)
    known: dict[str, Any] = {
        "noise": _noise(values["noise"], first.model.layout.total),
        "carrying": _carrying(values["carrying"]),
        "coding": _coding(values["coding"], model),
    }
    return replace(first, model=model, simulation=None, **joined, **alike, **known)


def _in_one_unit(rounds: Sequence[Observation]) -> tuple[Sequence[Observation], tuple[float, ...] | None]:
    """The rounds in units in which their clips are at one bound, that of the first, and the factors (None: all 1)."""
    clips = [one.clipping for one in rounds if one.clipping is not None]
    bounds = [one.bound for one in clips if one.bound is not None]
    known = len(bounds) == len(rounds) and min(bounds) > 0 and max(bounds) < math.inf
    alike = known and len({replace(one, bound=None) for one in clips}) == 1
    if not alike or len(set(bounds)) == 1:
        return rounds, None
    if any(_in_units_of_its_own(one) for one in rounds):
        raise _changes("clip")
    units = tuple(bounds[0] / bound for bound in bounds)
    return [
        replace(one, clipping=clips[0], target=one.target * unit, noise=one.noise and one.noise.times(unit))
        for one, unit in zip(rounds, units, strict=True)
    ], units


def _in_units_of_its_own(one: Observation) -> bool:
    """Return whether more than gradients and their noise is stated in the unit of gradients."""
    level = None if one.noise is None else one.noise.level
    held = level is not None and (level.least > 0 or level.most < math.inf)
    coding = None if isinstance(one.coding, Largest) and not one.coding.feedback else one.coding
    stated = (one.cut, coding, one.correction, one.certainty, one.trained)
    return (
        held or one.by_steps or any(value is not None for value in stated) or bool(one.carrying and one.carrying.least)
    )


def _changes(name: str) -> UsageError:
    return UsageError(
        f"the defense's {name} changes from round to round, and no attack combines such rounds; leave --rounds-seen out"
    )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there, -1) if len(there) == len(parts) else None


def _alike(name: str, values: Sequence[Any]) -> Any:
    if any(value != values[0] for value in values):
        raise _changes(name)
    return values[0]


def _noise(rounds: Sequence[Noise | None], parameters: int) -> Noise | None:
    """The noise of all rounds: a schedule gives each a level of its own."""
    noises = [one for one in rounds if one is not None]
    if not noises:
        return None
    first = noises[0]
    unlike = any((one.law, one.grouping) != (first.law, first.grouping) for one in noises)
    if len(noises) < len(rounds) or unlike or any(one.mixture is None for one in noises):
        return Noise("unknown", None, unread=True, bare=True)
    marks: dict[str, Any] = {"unread": any(one.unread for one in noises), "bare": any(one.bare for one in noises)}
    deviations = [one.deviation for one in noises]
    if any(one is None for one in deviations):
        level = first.level if all(one.level == first.level for one in noises) else None
        level = level and replace(level, rounds=len(rounds))
        lost = level is None and first.level is not None
        return replace(first, deviation=None, level=level, **marks | {"unread": marks["unread"] or lost})
    if first.mixture:
        marks |= {"mixture": (), "whitening": _whitening(noises)}
    if any(isinstance(one, Tensor) for one in deviations) or len(set(deviations)) > 1:
        joined = torch.cat([torch.as_tensor(one, dtype=torch.float64).expand(parameters) for one in deviations])
        return replace(first, deviation=joined, **marks)
    return replace(first, **marks)


def _whitening(rounds: Sequence[Noise]) -> Tensor:
    """(T, T), what makes the noise of T rounds independent, and of deviation 1, float64."""
    mixtures = [
        torch.tensor(one.mixture, dtype=torch.float64) * one.deviation
        for one in rounds
        if one.mixture and one.deviation is not None
    ]
    mixed = torch.nn.utils.rnn.pad_sequence(mixtures, batch_first=True)
    factor = torch.linalg.cholesky(mixed @ mixed.T)
    return torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)


def _carrying(rounds: Sequence[Chosen | None]) -> Chosen | None:
    """Return which coordinates carry anything, of every round; None where that is not known of all rounds alike."""
    first = rounds[0]
    if first is None or any(one != first for one in rounds):
        return None
    return replace(first, counts=first.counts * len(rounds))


def _coding(rounds: Sequence[Coding | None], model: RowModel) -> Coding | None:
    first = _alike("coding", rounds)
    return first.at(first.unit, model.layout.shapes) if isinstance(first, Coding) else None


# --------------------------------------------------------------------------------------
# One network in several rounds of a training: its weights of each round side by side, and so its gradients.
#
# Whoever keeps every message of a client has one long gradient of the same examples, a part for each round. Attacks
# that compare gradients, or add up log-likelihoods over coordinates, then combine rounds as they are.


class ModelOverRounds(RowModel):
    """A network whose weights are those of T rounds (R, T * P), and its gradients those of each round at its weights.

    What is no gradient is of the first round. ``units`` (T,) are what gradients of each round are multiplied by, so
    that bounds which differ from round to round are one number in them.
    """

    def __init__(self, single: RowModel, rounds: int, units: tuple[float, ...] | None = None) -> None:
        self.single, self.rounds, self.units = single, rounds, units
        self.name, self.image_shape, self.classes, self.front = single.name, single.image_shape, single.classes, None
        self.plain_module, self.normalised, self.uncovered = single.plain_module, {}, single.uncovered
        self.layout = single.layout.over(rounds)

    @property
    def of_one_round(self) -> RowModel:
        return self.single

    @property
    def evaluates_alone(self) -> bool:
        return self.single.evaluates_alone

    @property
    def group(self) -> int:
        return max(2, self.single.group // self.rounds)

    def without_idle_weights(self) -> None:
        return None

    def to(self, device: torch.device, dtype: torch.dtype) -> "RowModel":
        self.single.to(device, dtype)
        return self

    def initial_weights(self, keys: list[tuple[int | str, ...]]) -> Tensor:
        return self.single.initial_weights(keys).repeat(1, self.rounds)

    def state(self, weights: Tensor) -> dict[str, Tensor]:
        return self.single.state(self._first(weights))

    def logits(self, weights: Tensor, images: Tensor) -> Tensor:
        return self.single.logits(self._first(weights), images)

    def gradient(self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool = False) -> Tensor:
        made = self.single.gradient(*self._each(weights, images, targets), create_graph)
        return self._in_units(made.reshape(len(weights), -1))

    def per_example_gradients(
        self, weights: Tensor, images: Tensor, targets: Tensor, create_graph: bool = False
    ) -> Tensor:
        made = self.single.per_example_gradients(*self._each(weights, images, targets), create_graph)
        return self._in_units(made.unflatten(0, (-1, self.rounds)).transpose(1, 2).flatten(2))

    def batch_norm_statistics(self, weights: Tensor, images: Tensor) -> list[LayerStatistics]:
        return self.single.batch_norm_statistics(self._first(weights), images)

    def plain(self, weights: Tensor) -> nn.Module:
        return self.single.plain(weights[: self.single.layout.total])

    def _in_units(self, gradients: Tensor) -> Tensor:
        if self.units is None:
            return gradients
        return (gradients.unflatten(-1, (self.rounds, -1)) * gradients.new_tensor(self.units)[:, None]).flatten(-2)

    def _first(self, weights: Tensor) -> Tensor:
        return weights[..., : self.single.layout.total]

    def _each(self, weights: Tensor, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Every round as a row of its own: weights (R * T, P), and the same images and targets in each."""
        rows = weights.reshape(-1, self.single.layout.total)
        return rows, images.repeat_interleave(self.rounds, 0), targets.repeat_interleave(self.rounds, 0)
