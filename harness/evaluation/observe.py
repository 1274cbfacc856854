"""Victims train for a round under a defense; what a tap shows becomes an Observation, the truth stays apart.

Public examples play the same round for an attacker that knows the defense and the weights that victims share.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.base.devices import compute_on, fitting, has_room, is_small, peak_of, require_room
from harness.base.errors import UsageError
from harness.base.local_optimizer import PLAIN
from harness.base.randomness import generator
from harness.base.words import Words, require_texts_for
from harness.datasets import Dataset, Victims, divide, load_dataset, select_victims
from harness.datasets.prior import Prior, fit_prior
from harness.datasets.public import NONE
from harness.evaluation.cohorts import Recovered, cohorts_of, not_followed, of_cohort, recovered_from
from harness.evaluation.played_round import Key, known_correction, round_context, server_state
from harness.evaluation.reading import NOTHING, Reading, Remembered, known_batches, read_round
from harness.evaluation.rounds_seen import combined, drawn, moved, of_places, row_by_row
from harness.evaluation.sending import CLIENTS, Sent, detectable, sent_by, tampering_of
from harness.experiment import CellSettings
from harness.federation.knowledge import carrying, coding_at, cut_at, noise_at, of_several
from harness.federation.taps import Tap
from harness.models import RowModel, words_of
from harness.models.batch_norm import UNCOVERED, refusal
from harness.models.next_word import predicts_next
from harness.observation import Clipping, Observation, Simulated, Simulation
from harness.own_sources import is_of_others, own_sources
from harness.results import Detectable, Statement
from harness.scoring.images import groups_of
from harness.tampering import Tamper

MOST_SIMULATED = 5000
_SIMULATED_TOGETHER = 128
_PLAYERS = {"attack", "attack_args", "suite", "engine", "victims", "seeds", "noise_scale", "labels", "batch_norm"}


class Reader(Protocol):
    """Function that gives what the adversary makes of some victims' round."""

    def __call__(
        self, model: RowModel, weights: Tensor, truth: Victims, part: slice, keys: list[Key], settings: CellSettings
    ) -> Reading: ...


def simulation(read: Reader, model: RowModel, public: Dataset, settings: CellSettings) -> Simulation:
    """The round of a cell for public examples; nothing is played before an attack asks for it.

    Args:
        read: as victims are read.
        model: the network.
        public: examples of which none is a victim's.
        settings: of the cell.
    """
    chosen = _chosen(public, settings)
    # Where every example is read on its own, each is an observation.
    own = settings.batch_size if settings.tap.unit == "example" else 1

    def play(weights: Tensor, count: int, quiet: bool) -> Simulated:
        played = settings.model_copy(update={"noise_scale": 0.0}) if quiet else settings
        rows = placed(chosen[: -(-count // own)], settings)
        examples = Victims(public.images[rows], public.labels[rows], rows)
        keys: list[Key] = [("public", number) for number in range(len(rows))]
        step = max(1, _SIMULATED_TOGETHER // settings.together)
        parts = (slice(first, min(first + step, len(rows))) for first in range(0, len(rows), step))
        made = [
            read(model, weights.expand(part.stop - part.start, -1), examples, part, keys[part], played).gradients
            for part in parts
        ]
        return Simulated(
            examples.images.to(weights).reshape(len(rows) * own, -1, *public.image_shape)[:count],
            examples.labels.to(weights.device).reshape(len(rows) * own, -1)[:count],
            torch.cat(made).flatten(0, -2)[:count],
        )

    place = settings.model_dump_json(exclude=_PLAYERS)
    return Simulation(hashlib.sha256(f"{place} {public.name}".encode()).hexdigest(), len(chosen) * own, play)


def _chosen(public: Dataset, settings: CellSettings) -> Tensor:
    """Positions (N, n) of the public examples of each observation, at random; those of one are different examples.

    Where one holds several examples, an example is in several observations.
    """
    each, total = settings.distinct * settings.together, len(public.labels)
    random = generator("simulated", public.name)
    if each > total:
        return torch.empty(0, each, dtype=torch.long)
    if each == 1:
        return torch.randperm(total, generator=random)[:MOST_SIMULATED, None]
    return torch.stack([torch.randperm(total, generator=random)[:each] for _ in range(min(total, MOST_SIMULATED))])


# A cell, its control's size, that without noise and with more of it, and one without a defense; other attacks on them
# come soon after. Three of them where so many times the last one's size is not free.
_SCENES, _FEW, _SPARE = 5, 3, 8.0
# Of a message's length: rounding may turn a coordinate over, for which another client is not needed.
_MIXED = 0.1


@dataclass(frozen=True)
class Scene:
    """One cell's observation for the attack, and the truth for the scorer.

    A tap that shows every example on its own gives one observation row per example; ``truth`` always has one row per
    victim (V, n), drawn from ``dataset``. ``detectable``: what clients could see of a server that tampers. ``owners``:
    (V,), whose examples a victim's are, where several victims may be one client in several rounds.
    ``drawn``: (V, T, b), which of its examples a client took in each round, where it draws them; the observation then
    has V * T rows. ``recovered``: what sums of other cohorts told of each client, where nothing else was seen.
    ``stated``: of captured clients, what their defense states of their whole training.
    """

    observation: Observation
    truth: Victims
    dataset: Dataset
    detectable: Detectable | None = None
    owners: Tensor | None = None
    drawn: Tensor | None = None
    recovered: Recovered | None = None
    stated: Sequence[Statement] | None = None

    @property
    def doubt(self) -> str | None:
        """Reason why no attack that fails here says anything; None where a failure says something."""
        return self.recovered and self.recovered.doubt

    @property
    def of_rows(self) -> Tensor:
        """The images (R, n, C, H, W) behind each row of the observation."""
        if self.drawn is not None:
            return of_places(self.truth, self.drawn.flatten(1)).images.reshape(
                -1, self.drawn.shape[2], *self.dataset.image_shape
            )
        return self.truth.images.reshape(self.observation.rows, -1, *self.dataset.image_shape)

    @property
    def groups(self) -> np.ndarray | None:
        """(V,) of victims who share images, or an owner: each group is one independent draw; None where nobody does."""
        indices = self.truth.indices.cpu().numpy()
        if self.owners is None:
            return groups_of(indices)
        own = indices.max(initial=-1) + 1 + self.owners.cpu().numpy()
        return groups_of(np.concatenate([indices, own[:, None]], 1))

    def first(self, count: int) -> "Scene":
        """Return the scene of its first ``count`` victims."""
        rows = count * (self.observation.rows // len(self.truth.labels))
        observation = self.observation.take(torch.arange(rows, device=self.observation.target.device))
        truth = Victims(self.truth.images[:count], self.truth.labels[:count], self.truth.indices[:count])
        owners = None if self.owners is None else self.owners[:count]
        drawn = None if self.drawn is None else self.drawn[:count]
        recovered = self.recovered and self.recovered.first(count)
        return replace(self, observation=observation, truth=truth, owners=owners, drawn=drawn, recovered=recovered)

    @property
    def uncovered(self) -> str | None:
        """Return what an adversary has of private data that no epsilon and no theorem is about, in words; None for
        nothing."""
        batches = self.observation.batches
        travels = UNCOVERED if batches is not None and batches.statistics is not None else None
        return self.observation.model.uncovered or self.dataset.uncovered or travels


@dataclass(frozen=True)
class DataSplit:
    """Data that are private, data that are public, and the prior that these give; None where nothing is public."""

    private: Dataset
    prior: Prior | None
    public: Dataset | None = None


class Stage:
    """Loads datasets and fits priors once, and sets scenes.

    ``plays``: whether what it shows was made here, by a defense that then has to add the noise that it declares.
    ``simulates``: whether its victims are drawn here, as many as are asked for.
    """

    plays: ClassVar[bool] = True
    simulates: ClassVar[bool] = True

    def __init__(self, data_root: Path, chunk: int) -> None:
        self.data_root, self.chunk = data_root, chunk
        self._datasets: dict[tuple[str, Words | None], Dataset] = {}
        self._unlabelled: dict[tuple[str, Words | None], Dataset] = {}
        self._splits: dict[tuple[str, str, Words | None, int], DataSplit] = {}
        self._scenes: dict[tuple[str, int], Scene] = {}

    def dataset(self, name: str, model: str | None = None) -> Dataset:
        """A dataset, loaded at its first use; its texts are read by the tokenizer of a model that brings one, and have
        no topics where it predicts the next word."""
        words = words_of(model)
        if (name, words) not in self._datasets:
            self._datasets[name, words] = load_dataset(name, self.data_root, words=words)
        found = self._datasets[name, words]
        if model is None or found.words is None or not predicts_next(model, found.image_shape):
            return found
        return self._unlabelled.setdefault((name, words), found.unlabelled())

    def with_fix(self, reason: str) -> str:
        """Return why a cell is impossible, in words for the caller that asked for it."""
        return reason

    def own_sources(self, settings: CellSettings) -> dict[str, str]:
        """Digests of the user's own files that a cell takes its numbers from."""
        return own_sources(settings.model, settings.dataset, settings.defense, settings.attack, settings.prior)

    def split(self, settings: CellSettings) -> DataSplit:
        """The private side of a cell's dataset, and what the other says of it.

        Raises:
            UsageError: its public data do not fit its dataset, or hold private examples.
        """
        name, choice = settings.dataset, settings.prior
        whole = self.dataset(name, settings.model)
        key = name, choice, whole.words, whole.num_classes
        if key not in self._splits:
            if choice == NONE:
                return DataSplit(whole, None)
            sides = divide(whole, name, choice, self.data_root)
            self._splits[key] = DataSplit(sides.private, fit_prior(sides.public), sides.public)
        return self._splits[key]

    def prior(self, settings: CellSettings) -> Prior | None:
        """Return what an informed attacker of a cell knows of its data; None where it can know nothing."""
        try:
            return self.split(settings).prior
        except UsageError:
            return None

    def set(self, settings: CellSettings) -> Scene:
        """Trains the victims of a cell for one round and reads the tap, unless it did so a moment ago.

        Raises:
            UsageError: the combination of settings is impossible.
        """
        place = self.place_of(settings)
        scene = self._scenes.pop((place, settings.victims), None) or self._first(place, settings)
        scene = scene or self._fresh(settings)
        size = 2.0 * scene.observation.weights.numel() * scene.observation.weights.element_size()
        most = _SCENES if has_room(_SPARE * size, settings.device) else _FEW
        while len(self._scenes) >= most:
            del self._scenes[next(iter(self._scenes))]
        self._scenes[place, settings.victims] = scene
        return scene

    def place_of(self, settings: CellSettings) -> str:
        """Return what tells scenes apart, whatever their number of victims."""
        # A server that tampers makes a round of its own.
        tampers = settings.build_attack().tier == "tampering"
        named = set() if tampers else {"attack", "attack_args"}
        return settings.model_dump_json(exclude={"suite", "engine", "victims", *named})

    def _first(self, place: str, settings: CellSettings) -> Scene | None:
        """A scene as the first victims of a larger one at hand, who are the same and played the same round."""
        count = settings.victims
        larger = (scene for (known, victims), scene in self._scenes.items() if known == place and victims > count)
        scene = next(larger, None) if len(settings.seeds) == 1 else None
        # Fewer clients than are looked at would see something else.
        return None if scene is None or (scene.detectable and count < CLIENTS) else scene.first(count)

    def _fresh(self, settings: CellSettings) -> Scene:
        whole, split = self.dataset(settings.dataset, settings.model), self.split(settings)
        dataset = split.private
        rows = settings.victims * len(settings.seeds)
        try:
            truth = self.choose(dataset, rows, settings)
        except UsageError as error:
            if dataset is whole:
                raise
            raise UsageError(f"{error} (the rest is public; see --prior)") from error
        keys: list[Key] = [(seed, victim) for seed in settings.seeds for victim in range(settings.victims)]
        tamper = self.tampering(settings)
        sent = tamper and sent_by(tamper, split.public, settings)
        model = RowModel(
            settings.model, self.shape(dataset), dataset.num_classes, whole.images, tamper and tamper.front
        )
        require_texts_for(model.name, model.vocabulary, dataset.words)
        model.require_batch(settings.batch_size)
        if model.normalised and settings.build_optimizer().accumulate > 1:
            raise refusal(model.name, "a step takes several")
        if model.normalised and (settings.rounds_seen > 1 or settings.same_data != "batch"):
            raise refusal(model.name, "several rounds are combined")
        # All of them, and what was read of each.
        needed = 2.0 * rows * model.layout.total * torch.finfo(getattr(torch, settings.dtype)).bits / 8
        while self._scenes and not has_room(needed, settings.device):
            del self._scenes[next(iter(self._scenes))]  # it can be made again
        require_room(needed, f"the networks of {rows} victims", settings.device)
        weights = self.start(model, settings, keys)
        device, dtype = compute_on(settings.device), getattr(torch, settings.dtype)
        model.to(device, dtype)
        weights, seen, recovered = weights.to(device, dtype), None, None
        own = self.drawn(settings, keys) if settings.draws else None
        if settings.separates:
            observation, recovered = self.behind_sums(model, weights, truth, keys, settings, dataset)
        elif sent is None:
            observation = self._over_rounds(model, weights, truth, keys, settings, dataset, own)
        else:
            weights, seen = self._tampered(sent, model, weights, truth, settings)
            reading = self._played(model, weights, truth, keys, settings, sent)
            observation = self._observation(model, weights, reading, truth, keys, settings)
        observation = replace(observation, columns=dataset.columns)
        if split.prior:
            observation = replace(observation, prior=split.prior.to(device, dtype))
        # After the first of several rounds each victim has weights of its own.
        alone = settings.rounds_seen == 1 and settings.same_data == "batch"
        if split.public and settings.networks_are_shared and settings.variates is None and alone:
            observation = replace(observation, simulation=simulation(read_round, model, split.public, settings))
        return Scene(observation, truth, dataset, seen, drawn=own, recovered=recovered)

    def _over_rounds(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        others: Dataset, own: Tensor | None,
    ) -> Observation:  # fmt: skip
        """Return what is read of every round that is seen, with the weights that it begins with; ``own``: see
        :attr:`Scene.drawn`."""
        rounds, before, kept, used = [], NOTHING, NOTHING, truth
        for number in range(settings.rounds_seen):
            now = settings.in_round(number)
            if number:
                last = settings.in_round(number - 1)
                weights = self.next_weights(model, weights, used, keys, last, others, before)
            used = truth if own is None else of_places(truth, own[:, number])
            reading, before = self.look(model, weights, used, keys, now, kept), kept
            kept = reading.kept
            rounds.append(self._observation(model, weights, reading, used, keys, now))
        return combined(rounds) if own is None else row_by_row(rounds, settings.distinct)

    def behind_sums(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings, others: Dataset
    ) -> tuple[Observation, Recovered]:
        """The single updates that sums of other cohorts tell, as if each client's had been seen in the first round.

        Raises:
            UsageError: there is noise in the sums, of which nobody says what it becomes in single updates.
        """
        cohorts, clients = cohorts_of(settings), settings.victims
        at, sums = weights[::clients], []
        federations: list[Key] = [(seed, 0) for seed in settings.seeds]
        for number in range(settings.rounds_seen):
            now, used = settings.in_round(number), of_cohort(truth, cohorts[:, number])
            reading = self.look(model, at, used, federations, now)
            if self._observation(model, at, reading, used, federations, now).noise is not None:
                raise not_followed(settings.defense)
            sums.append(reading.gradients)
            if settings.same_data == "cohorts":
                at = self.next_weights(model, at, used, federations, now, others)
        single = settings.in_round(0).model_copy(update={"tap": Tap.SENT})
        sent = self.look(model, weights, truth, keys, single).gradients
        updates, recovered = recovered_from(torch.stack(sums, 1), cohorts, clients, sent)
        return self._observation(model, weights, Reading(updates, {}), truth, keys, single), recovered

    def next_weights(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        others: Dataset, remembered: Remembered = NOTHING,
    ) -> Tensor:  # fmt: skip
        """The weights (V, P) that the round after that of ``settings`` begins with."""
        return moved(model, weights, truth, keys, settings, others, self.chunk, remembered)

    def drawn(self, settings: CellSettings, keys: list[Key]) -> Tensor:
        """Return which of its examples a client takes in each round, where it draws them; see :attr:`Scene.drawn`."""
        return drawn(settings, keys)

    def choose(self, dataset: Dataset, rows: int, settings: CellSettings) -> Victims:
        """Choose the victims that are attacked."""
        return _select(dataset, rows, settings)

    def shape(self, dataset: Dataset) -> tuple[int, int, int]:
        """Return the shape of an example, as the network is made of it."""
        return dataset.image_shape

    def tampering(self, settings: CellSettings) -> Tamper | None:
        """Return what the server does to the network before the round."""
        return tampering_of(settings)

    def _tampered(
        self, sent: Sent, model: RowModel, weights: Tensor, truth: Victims, settings: CellSettings
    ) -> tuple[Tensor, Detectable]:
        """Return what is sent (V, P) in the place of honest weights, and what of that clients could see."""
        changed, honest = sent.first(model, weights), model
        if model.front is not None:
            images = self.dataset(settings.dataset, settings.model).images
            honest = RowModel(settings.model, model.image_shape, model.classes, images)
            honest.to(weights.device, weights.dtype)
        own = weights[:, weights.shape[1] - honest.layout.total :]
        return changed, detectable(sent.tamper, (model, changed), (honest, own), truth, settings.batch_size)

    def start(self, model: RowModel, settings: CellSettings, keys: list[Key]) -> Tensor:
        """The weights (V, P) that each victim starts its round from."""
        return starting_weights(model, settings, keys)

    def look(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        remembered: Remembered = NOTHING,
    ) -> Reading:  # fmt: skip
        """Return what the adversary reads of the victims' round, who keep what is ``remembered`` of rounds before."""

        def read(part: slice) -> Tensor:
            return read_round(model, weights[part], truth, part, keys[part], settings, None, remembered).gradients

        require_rows_apart(read, len(keys), settings)
        return self._played(model, weights, truth, keys, settings, None, remembered)

    def _played(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        sent: Sent | None = None, remembered: Remembered = NOTHING,
    ) -> Reading:  # fmt: skip
        def read(part: slice) -> Reading:
            return read_round(model, weights[part], truth, part, keys[part], settings, sent, remembered)

        most = min(len(keys), max(1, self.chunk // settings.together))
        slices = _slices(len(keys), self._at_once(most, read, model, truth, settings))
        return Reading.joined((read(part) for part in slices), len(keys))

    def _at_once(
        self, most: int, read: Callable[[slice], Reading], model: RowModel, truth: Victims, settings: CellSettings
    ) -> int:
        """Return how many victims to read together: as many as were asked for, or as many as fit into memory."""
        pixels, together = truth.images[0].numel(), settings.together
        if is_small(most * together, model.layout.total, pixels // together, settings.device):
            return most
        few = min(2, most)
        # Kept of all victims: what was read of them.
        kept = 1.0 * len(truth.labels) * model.layout.total * torch.finfo(getattr(torch, settings.dtype)).bits / 8
        each = peak_of(lambda: read(slice(0, few))) / few
        return fitting(most, each, f"clients of {settings.model} under {settings.defense}", settings.device, kept)

    def _observation(
        self, model: RowModel, weights: Tensor, made: Reading, truth: Victims, keys: list[Key], settings: CellSettings
    ) -> Observation:
        read, batches = made.gradients, known_batches(model, made.running, settings)
        update, defense = settings.tap.of_update, settings.build_defense()
        known = truth.labels if settings.labels == "known" else None
        examples = settings.examples
        if read.dim() == 3:
            # Every example is seen on its own: one observation row per example.
            per_victim = read.shape[1]
            weights = weights.repeat_interleave(per_victim, 0)
            keys = [(*key, example) for key in keys for example in range(per_victim)]
            read, examples = read.flatten(0, 1), 1
            known = None if known is None else known.reshape(-1, 1)
        steps, server = settings.local_steps if update else 1, server_state(settings)
        reading = settings.update_reading
        context = replace(round_context(settings, model, ((settings.seeds[0], 0),), server), learning_rate=reading.rate)
        correction = known_correction(settings, model, [int(key[1]) for key in keys], weights)
        noise = noise_at(defense, settings.tap, context, steps, settings.observations, reading.noise_shares)
        # Noise is coarser than half precision, and alike in all coordinates.
        certainty = None if noise and reading.adaptive is None else reading.certainty(read, weights)
        return Observation(
            model, weights, read, examples, tuple(keys), settings.learning_rate, steps,
            settings.update_model if update else "first",
            settings.build_optimizer() if update else PLAIN, reading, certainty, settings.places,
            _of_clients(defense.clipping_at(settings.tap, reading.rate, server), settings),
            None if known is None else known.to(weights.device),
            defense.sparse_at(settings.tap) and not of_several(settings.tap, context),
            correction,
            batches, noise,
            carrying(defense, settings.tap, context, noise, steps, settings.observations),
            cut_at(defense, settings.tap, context, steps) if correction is None else None,
            coding=coding_at(defense, settings.tap, context, steps) if correction is None else None,
            disguises=defense.disguises,
            trained=defense.trained(weights, read, model.layout) if examples == 1 and correction is None else None,
        )  # fmt: skip


def _of_clients(clipping: Clipping | None, settings: CellSettings) -> Clipping | None:
    """Return what is known of the clip where the mean of several clients is read, each of whose updates is clipped
    alone.

    Of clients with one example in one plain step it is that of each example; of others the mean says no lengths."""
    if clipping is None or clipping.unit != "update" or settings.together == 1:
        return clipping
    if settings.examples == settings.together and settings.build_optimizer().is_plain:
        return replace(clipping, unit="example")
    return replace(clipping, bound=None)


def _select(dataset: Dataset, rows: int, settings: CellSettings) -> Victims:
    """The victims; where one is a whole round of clients, labels are distinct within each client."""
    clients, each = settings.together if settings.distinct_labels else 1, settings.distinct * settings.together
    chosen = select_victims(dataset, rows * clients, each // clients, settings.seeds[0], settings.distinct_labels)
    places = placed(torch.arange(rows * each).reshape(rows, each), settings)
    return Victims(*(values.flatten(0, 1)[places] for values in (chosen.images, chosen.labels, chosen.indices)))


def placed(own: Tensor, settings: CellSettings) -> Tensor:
    """Return which of some clients' examples are in each place of their local steps.

    The first pass takes them as they are, every other one in a new order. A smaller last batch fills its places by
    turns.

    Args:
        own: (R, K * n) of K clients in each row.

    Returns:
        (R, K * L * B) of their L local steps with B places each.
    """
    if settings.epochs == 1 and not settings.step_sizes:
        return own
    random, batch = generator("epochs", settings.seeds[0]), settings.batch_size
    # The same orders for the first clients, however many there are.
    rows = []
    for client in own.reshape(-1, settings.distinct):
        orders = [client[torch.randperm(len(client), generator=random)] if epoch else client
                  for epoch in range(settings.epochs if settings.tap.of_update else 1)]  # fmt: skip
        rows.append(torch.cat([_in_batches(order, batch) for order in orders]))
    return torch.stack(rows).reshape(len(own), -1)


def _in_batches(order: Tensor, batch: int) -> Tensor:
    return torch.cat([part[torch.arange(batch) % len(part)] for part in order.split(batch)])


def _slices(rows: int, chunk: int) -> list[slice]:
    return [slice(first, min(first + chunk, rows)) for first in range(0, rows, chunk)]


def starting_weights(model: RowModel, settings: CellSettings, keys: list[Key]) -> Tensor:
    """The weights (V, P) of each victim, as they arrive.

    Raises:
        UsageError: a file cannot be read, is of another network, or holds what is no number.
    """
    weights = _honest_weights(model, settings, keys)
    return weights if settings.sent_as is None else weights.to(getattr(torch, settings.sent_as)).to(weights.dtype)


def _honest_weights(model: RowModel, settings: CellSettings, keys: list[Key]) -> Tensor:
    if settings.shared_weights:
        shared = model.initial_weights([(seed, "shared") for seed in settings.seeds])
        return shared.repeat_interleave(settings.victims, 0)
    if settings.weights is None:
        return model.initial_weights(keys)
    try:
        loaded = model.load_weights(Path(settings.weights))
    except UsageError as error:
        _refuse_other_than_trained(settings, error)
        raise
    if not loaded.isfinite().all():
        raise UsageError(f"weights {settings.weights!r} hold NaN or infinity; train them again")
    return loaded.expand(len(keys), -1)


def _refuse_other_than_trained(settings: CellSettings, error: UsageError) -> None:
    """Raises UsageError: the weights are of a run on another dataset, or of another network, and fit neither here."""
    run = settings.trained and settings.trained.settings
    if run and (run.dataset, run.model) != (settings.dataset, settings.model):
        raise UsageError(
            f"the model of that training run, {run.model} on {run.dataset}, is not {settings.model} on "
            f"{settings.dataset}; leave out --dataset and --model, which --training knows"
        ) from error


def require_rows_apart(read: Callable[[slice], Tensor], victims: int, settings: CellSettings) -> None:
    """Plays the second victim's round beside the first one's and alone.

    Args:
        read: what is read of a slice of the victims, one of whom is a client.
        victims: how many there are; of one nothing is known.

    Raises:
        UsageError: it is not the same, and so a result would depend on who is attacked together.
    """
    if victims < 2 or settings.together > 1 or not is_of_others(settings.defense):
        return
    beside, alone, again = read(slice(0, 2))[1], read(slice(1, 2))[0], read(slice(1, 2))[0]
    if (alone - again).norm() > _MIXED * alone.norm():
        raise UsageError(
            f"defense {settings.defense!r} does not repeat what it did ({settings.tap}); draw noise from the context"
        )
    if (beside - alone).norm() > _MIXED * beside.norm():
        raise UsageError(
            f"defense {settings.defense!r} lets clients change each other's rows ({settings.tap}); rows of what its "
            "operations are given are clients, and each has to come out as if it were alone"
        )
