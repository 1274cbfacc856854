"""The round that victims play, and what a tap shows of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.base.vectors import Layout
from harness.experiment import CellSettings
from harness.federation.client_round import first_step
from harness.federation.context import RoundContext, State
from harness.federation.examples import ExampleGradients, NetworkBatch, NetworkGradients
from harness.federation.memory import RoundVariates, read_state, read_variates
from harness.federation.recorders import KeepTap
from harness.federation.server_round import play_round
from harness.federation.taps import TAPS_OF_VARIATES, Tap
from harness.models import RowModel
from harness.models.batch_norm import Buffers, RunningStatistics
from harness.models.example_gradients import MaterialisedGradients

Key = tuple[int | str, ...]


@dataclass(frozen=True)
class PlayedRound:
    """One round of N clients under a cell's settings.

    Attributes:
        model: the network.
        weights: (N, P), what each client starts from.
        images: (N, L*B, C, H, W); local step l uses examples l*B to (l+1)*B. labels: (N, L*B).
        keys: one per client.
        settings: a step of fewer than B examples has them in the first of its places.
        remembered: what clients keep (N, ...) of rounds before; empty in a first one.
    """

    model: RowModel
    weights: Tensor
    images: Tensor
    labels: Tensor
    keys: tuple[Key, ...]
    settings: CellSettings
    remembered: State = field(default_factory=dict)

    def look(self, repetition: int) -> Tensor:
        """The gradient read from the round, with noise of its own for each repetition.

        An update is divided by minus the learning rate and the steps, or what its optimizer makes of them
        (:class:`UpdateReading`); a secure sum has a row for each round of clients.
        """
        settings = self.settings
        context = self._context(repetition)
        seen = self._read(context)
        if not repetition:
            self.kept.update(context.client)
        # A control variate is a mean of gradients already.
        moved = settings.tap.of_update and settings.tap is not Tap.DELTA_C
        # Adding zero makes negative zeros positive, so that observations that are equal are equal to the bit.
        read = settings.update_reading.gradient(seen, self.weights) if moved else seen
        return read.to(self.weights.dtype) + 0.0

    def update(self) -> Tensor:
        """The updates (N, P) of the first look as they are at the tap, one of messages."""
        return self._read(self._context(0))

    @cached_property
    def kept(self) -> State:
        """Return what clients keep (N, ...) of this round, once it was looked at."""
        return {}

    @property
    def _steps(self) -> int:
        return self.settings.local_steps if self.settings.tap.of_update else 1

    def _context(self, repetition: int) -> RoundContext:
        keys = tuple((*key, "look", repetition) if repetition else key for key in self.keys)
        context = round_context(self.settings, self.model, keys, dict(self._server), self._clients)
        return replace(context, step_sizes=self.settings.step_sizes, client=dict(self.remembered))

    @property
    def _clients(self) -> tuple[int, ...]:
        """A victim on its own stands for the client of its number."""
        return tuple(int(key[-1]) for key in self.keys)

    @cached_property
    def _server(self) -> dict[str, Tensor]:
        return server_state(self.settings)

    @cached_property
    def _variates(self) -> RoundVariates | None:
        return variates_of(self.settings, self.model, self._clients, self.weights)

    def running(self) -> Buffers:
        """Running statistics (N, channels) after the local steps of the first look; {} without BatchNorm to train."""
        return self._running[0].buffers if self._running else {}

    @cached_property
    def _running(self) -> list[RunningStatistics]:
        """Running statistics of every look so far."""
        return []

    def _read(self, context: RoundContext) -> Tensor:
        if self.model.normalised:
            self._running.append(RunningStatistics(self.model.normalised, len(self.weights)))
        settings, keep = self.settings, KeepTap(self.settings.tap)
        gradients = NetworkGradients(self._batch, self._gradients)
        if not settings.tap.of_update:
            # The rest of the round shows nothing there, and takes several copies of large networks.
            first_step(gradients, self.weights, settings.build_defense(), context, [keep])
            return keep.seen(settings.defense)
        play_round(
            gradients, self.weights, settings.build_defense(), context,
            self._steps, [keep], together=settings.together if settings.tap.at_server else None,
            variates=self._variates, optimizer=settings.build_optimizer(),
            sent_as=settings.sent_as and getattr(torch, settings.sent_as),
        )  # fmt: skip
        return keep.seen(settings.defense)

    def _batch(self, step: int, weights: Tensor) -> NetworkBatch:
        batch = self.images.shape[1] // self._steps
        size = self.settings.step_sizes[step] if self.settings.step_sizes else batch
        part = slice(step * batch, step * batch + size)
        return NetworkBatch(self.model, weights, self.images[:, part], self.labels[:, part])

    def _gradients(self, batch: NetworkBatch) -> ExampleGradients:
        weights, images, labels = batch.weights, batch.inputs, batch.labels
        if self.model.normalised:
            joint = self.model.joint_gradients(weights, images, labels)
            self._running[-1].follow(joint.statistics)
            return joint
        if self.model.front is not None:  # it has too many parameters for a gradient of each example
            return self.model.example_gradients(weights, images, labels, None, images.shape[1])
        made = self.model.per_example_gradients(weights, images, labels)
        return MaterialisedGradients(made, self.model.layout.sizes)


class HasLayout(Protocol):
    """Object with parameters in an order of its own."""

    @property
    def layout(self) -> Layout:
        """Their slices in a flat vector."""
        ...


def round_context(
    settings: CellSettings, model: HasLayout, keys: tuple[Key, ...], server: State, clients: tuple[int, ...] = ()
) -> RoundContext:
    """Return where in training the round of a cell is played, by clients of these keys."""
    return RoundContext(
        settings.round, 0, settings.learning_rate, settings.cohort(), model.layout, keys, settings.noise_scale,
        server=server, clients=clients,
    )  # fmt: skip


def server_state(settings: CellSettings) -> dict[str, Tensor]:
    """Return what the server remembers when the round begins; empty in a first round."""
    if settings.server_state is None:
        return {}
    state = read_state(Path(settings.server_state), settings.build_defense().server_remembers())
    return {name: value.to(settings.device) for name, value in state.items()}


def variates_of(settings: CellSettings, model: RowModel, clients: Sequence[int], like: Tensor) -> RoundVariates | None:
    """The variates that the victims, each as one of the run's ``clients``, begin the round with; None without SCAFFOLD.

    Raises:
        UsageError: the file is of another run, or the round shows nothing there.
    """
    if settings.variates is None or not settings.tap.of_update:
        return None
    found = read_variates(Path(settings.variates), model.name, model.layout.total)
    if not found.moving and settings.tap is Tap.DELTA_Y:
        raise UsageError(f"round {settings.round} warms up: no model moves, T1.delta_y is zero; read T1.delta_c")
    if not found.moving and settings.update_model == "unroll":
        raise UsageError(f"round {settings.round} warms up: no model moves; use --update-model avg")
    return found.of(clients).to(like)


def known_correction(settings: CellSettings, model: RowModel, clients: Sequence[int], like: Tensor) -> Tensor | None:
    """Return what an attacker who simulates the local steps has to add to each, where it knows the client's variate."""
    if settings.update_model != "unroll" or settings.tap in TAPS_OF_VARIATES:
        return None
    found = variates_of(settings, model, clients, like)
    return None if found is None else found.correction
