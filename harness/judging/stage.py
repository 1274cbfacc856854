"""Captured clients in the place of simulated ones: what they sent is read as it is, their controls are simulated."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from harness.base.errors import UsageError
from harness.datasets import Dataset, Victims, load_dataset
from harness.datasets.load import take_part
from harness.datasets.prior import fit_prior
from harness.datasets.public import NONE, among, first_copies, require_enough, require_scale
from harness.evaluation.cohorts import Recovered, not_followed
from harness.evaluation.observe import DataSplit, Scene, Stage
from harness.evaluation.played_round import Key
from harness.evaluation.reading import NOTHING, Reading, Remembered
from harness.experiment import CellSettings
from harness.federation.taps import Tap
from harness.judging.capture import FACTS, CaptureRecord
from harness.judging.declared import noise_of
from harness.judging.federation import CapturedClients
from harness.judging.series import held_over
from harness.judging.truths import of_their_kind, whole_vocabulary
from harness.models import NextWord, RowModel, build_module
from harness.observation import Observation
from harness.results import Statement
from harness.tampering import Tamper

# What fixes a simulated client, by what fixes one that is captured; the longer words first.
_OF_CAPTURES = {
    "--batch-size 1 and one local step": "captures of one step on one example",
    "a smaller --batch-size": "captures of fewer examples",
    "--batch-size 1": "captures of one example",
    "--model mlp2 or another attack": "another --attack, such as cpl",
    "--dataset notes, or another --attack": "another --attack",
    "--prior auto, or --prior FILE.npz": "--prior NAME, or --prior FILE.npz",
    "--prior auto": "--prior NAME",
}
# Options of evaluate that judge lacks are all but these.
_HERE = (
    "attack|budget|checks-only|chunk|data-root|device|jobs|json|out|plan|prior|resume|rounds-seen|same-data|threads|truth|"
    "update-model"
)  # fmt: skip
_NOT_HERE = re.compile(rf"--(?!(?:{_HERE})(?![a-z-]))[a-z][a-z-]*")


def of_captures(reason: str) -> str:
    """Return why a cell is impossible, with the fix that captures have: their settings are what was captured."""
    for simulated, captured in _OF_CAPTURES.items():
        reason = reason.replace(simulated, captured)
    odd = _NOT_HERE.search(reason)
    return f"{reason} ({odd[0]} is of evaluate: of captures, choose another --attack)" if odd else reason


class CapturedStage(Stage):
    """Sets scenes with captured clients.

    A cell of the declared defense with its own noise shows what was captured. Every other one, such as a control, is
    the same clients simulated: their images, their weights, another defense.

    Args:
        captured: the clients, with their truth.
        declared: a cell of the defense they are said to train under.
        look_alikes: examples of the same kind that no client holds; none of them is public.
        public: what informed attackers know; None where nothing is.
        late: cells that there was no time for, with the reason.
        stated: what the declared defense states of them; None where nobody asks.
    """

    # Whether clients do what they declare is what checks ask, and no reason to judge none of them.
    plays: ClassVar[bool] = False
    simulates: ClassVar[bool] = False

    def __init__(
        self, data_root: Path, chunk: int, captured: CapturedClients, declared: CellSettings,
        look_alikes: Dataset | None, public: Dataset | None, late: Sequence[tuple[CellSettings, str]] = (),
        stated: Sequence[Statement] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(data_root, chunk)
        self._captured, self._declared, self._late, self._stated = captured, declared, late, stated
        self._rounds = (captured, *captured.later)
        held = held_over(captured) if declared.draws else None
        self._drawn = held and held.drawn
        truth = _truth_of(captured if held is None else replace(captured, images=held.images, labels=held.labels))
        # An image that several clients hold, or one in several rounds, is one image to whoever counts.
        firsts, self._places = first_copies(truth).unique(return_inverse=True)
        self._truth, self._whole = truth, _with_truth_first(truth.take(firsts), look_alikes)
        self._split = DataSplit(self._whole, None if public is None else fit_prior(public), public)
        self._noisy = noise_of(captured, declared) is not None

    def dataset(self, name: str, model: str | None = None) -> Dataset:
        return self._whole

    def shape(self, dataset: Dataset) -> tuple[int, int, int]:
        return self._captured.record.shape

    def split(self, settings: CellSettings) -> DataSplit:
        return self._split if settings.prior != NONE else DataSplit(self._whole, None)

    def with_fix(self, reason: str) -> str:
        return of_captures(reason)

    def own_sources(self, settings: CellSettings) -> dict[str, str]:
        # The dataset is the captures' truth, and comes from no file of the user's.
        found = super().own_sources(settings.model_copy(update={"dataset": ""}))
        return found | {"captures": self._captured.digest}

    def set(self, settings: CellSettings) -> Scene:
        if reason := next((reason for cell, reason in self._late if cell == settings), None):
            raise UsageError(reason)
        owners = self._captured.owners
        scene = super().set(settings)
        if self._as_sent(settings):
            scene = replace(scene, stated=self._stated)
        return scene if owners is None else replace(scene, owners=owners[: len(scene.truth.labels)])

    def choose(self, dataset: Dataset, rows: int, settings: CellSettings) -> Victims:
        # Who draws is attacked with all that it used in any of the rounds.
        own = torch.arange(rows * (settings.distinct if settings.draws else settings.examples)).reshape(rows, -1)
        return Victims(self._truth.images[own], self._truth.labels[own], self._places[own])

    def drawn(self, settings: CellSettings, keys: list[Key]) -> Tensor:
        assert self._drawn is not None
        first = settings.round - self._declared.round
        return self._drawn[: len(keys), first : first + settings.rounds_seen]

    def tampering(self, settings: CellSettings) -> Tamper | None:
        if super().tampering(settings) is not None:
            raise UsageError(
                f"attack {settings.attack!r} needs clients who train the weights that it sends, and these are "
                "captured; use --attack cpl or another that does not tamper"
            )
        return None

    def start(self, model: RowModel, settings: CellSettings, keys: list[Key]) -> Tensor:
        model.take_buffers(self._captured.buffers)
        return self._captured.before[: len(keys)]

    def behind_sums(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings, others: Dataset
    ) -> tuple[Observation, Recovered]:
        told = self._captured.recovered
        assert told is not None
        if self._noisy:
            raise not_followed(settings.defense)
        single, count = settings.in_round(0).model_copy(update={"tap": Tap.SENT}), len(keys)
        reading = Reading(self._captured.target[:count].to(weights), {})
        return self._observation(model, weights, reading, truth, keys, single), told.first(count)

    def next_weights(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        others: Dataset, remembered: Remembered = NOTHING,
    ) -> Tensor:  # fmt: skip
        return self._rounds[settings.round - self._declared.round + 1].before[: len(keys)].to(weights)

    def look(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        remembered: Remembered = NOTHING,
    ) -> Reading:  # fmt: skip
        if self._as_sent(settings):
            seen = self._rounds[settings.round - self._declared.round]
            running = {name: values[: len(keys)].to(weights.device) for name, values in seen.running.items()}
            return Reading(seen.target[: len(keys)].to(weights), running)
        return super().look(model, weights, truth, keys, settings, remembered)

    def _as_sent(self, settings: CellSettings) -> bool:
        """Return whether a cell is of what was captured, and not a control."""
        ours, said = ((one.defense, one.defense_args, one.tap) for one in (settings, self._declared))
        # Where no noise is declared none is there to be turned off, or up.
        return ours == said and (settings.noise_scale == self._declared.noise_scale or not self._noisy)


class GroupsStage(Stage):
    """Sets scenes of several groups of captured clients, each by a stage of its own.

    Args:
        stages: by what their cells have in the place of a dataset's name.
    """

    plays: ClassVar[bool] = False
    simulates: ClassVar[bool] = False

    def __init__(self, data_root: Path, chunk: int, stages: Mapping[str, CapturedStage]) -> None:
        super().__init__(data_root, chunk)
        self._stages = stages

    def with_fix(self, reason: str) -> str:
        return of_captures(reason)

    def dataset(self, name: str, model: str | None = None) -> Dataset:
        return self._stages[name].dataset(name, model)

    def split(self, settings: CellSettings) -> DataSplit:
        return self._stages[settings.dataset].split(settings)

    def own_sources(self, settings: CellSettings) -> dict[str, str]:
        return self._stages[settings.dataset].own_sources(settings)

    def set(self, settings: CellSettings) -> Scene:
        return self._stages[settings.dataset].set(settings)


class SimulatedStage(CapturedStage):
    """Stage of captured clients that shows nothing of what was captured.

    All rounds are played, from what clients remember on.

    ``kept``: what clients remember (V, ...) after the last round that was played.
    """

    plays: ClassVar[bool] = True
    kept: Remembered = NOTHING

    def look(
        self, model: RowModel, weights: Tensor, truth: Victims, keys: list[Key], settings: CellSettings,
        remembered: Remembered = NOTHING,
    ) -> Reading:  # fmt: skip
        own = remembered or {
            name: values[: len(keys)].to(weights) for name, values in self._captured.remembered.items()
        }
        made = Stage.look(self, model, weights, truth, keys, settings, own)
        self.kept = made.kept
        return made


def _truth_of(captured: CapturedClients) -> Dataset:
    assert captured.images is not None and captured.labels is not None
    names = tuple(str(label) for label in range(captured.record.classes))
    images, labels = captured.images.flatten(0, 1), captured.labels.flatten()
    words = whole_vocabulary(captured.words, captured.record)
    return _of_table(Dataset("captures", images, labels, names, "truth of captures", words=words), captured.record)


def _of_table(data: Dataset, record: CaptureRecord) -> Dataset:
    """Data whose features are what a capture says that they are; as they are where it says nothing."""
    columns = record.columns
    if columns is None:
        return data
    return replace(data, columns=columns.as_columns, deviations=columns.scales)


def _with_truth_first(truth: Dataset, look_alikes: Dataset | None) -> Dataset:
    if look_alikes is None:
        return truth
    return replace(
        look_alikes, name="captures", images=torch.cat([truth.images, look_alikes.images]),
        labels=torch.cat([truth.labels, look_alikes.labels]), clients=None, texts=None,
    )  # fmt: skip


# Data of the same kind as the captured clients': a half are look-alikes and stand-ins, the other half is public.


@dataclass(frozen=True, eq=False)
class PublicSplit:
    """Two halves that share no example, neither with each other nor with the captured clients."""

    look_alikes: Dataset
    public: Dataset


def public_split(clients: Sequence[CapturedClients], choice: str, root: Path) -> PublicSplit:
    """Divides a dataset, a registered one or an ``.npz`` file.

    Args:
        clients: groups of clients of one network; what any of them holds is left out.

    Raises:
        UsageError: it is of another kind, or too small; a class that the clients hold has no example in it.
    """
    record, words = clients[0].record, clients[0].words
    data = load_dataset(choice, root, words=words, places=record.places)
    require_scale(data, choice)
    if record.data == "text":
        data = of_their_kind(data, record, choice, words)
        if isinstance(build_module(record.model, record.shape, record.classes, seed=0), NextWord):
            data = data.unlabelled()
    fix = "use data of the same kind as the clients'"
    if data.image_shape != tuple(record.image_shape):
        raise UsageError(
            f"--prior {choice!r} has examples of shape {data.image_shape}, not {record.image_shape}; {fix}"
        )
    if data.num_classes > record.classes:
        raise UsageError(f"--prior {choice!r} has {data.num_classes} classes, the network {record.classes}; {fix}")
    if record.columns is not None:
        strange = record.columns.unlike(data.columns) or record.columns.stray(data.images)
        if strange:
            raise UsageError(f"--prior {choice!r} has other columns than {FACTS}: {strange}; {fix}, or correct columns")
    data = _of_table(data, record)
    names = data.class_names + tuple(str(label) for label in range(data.num_classes, record.classes))
    data = replace(data, class_names=names)
    known = [(one.images, one.labels) for one in clients if one.images is not None and one.labels is not None]
    if known:
        images, labels = (torch.cat([values.flatten(0, 1) for values in part]) for part in zip(*known, strict=True))
        truth = Dataset("captures", images, labels, names, "", data.columns, data.words)
        own = among(data, truth)
        data = data.take((~own).nonzero()[:, 0])
        if own.any():
            sys.stderr.write(
                f"harness: {int(own.sum())} example(s) of --prior {choice!r} are the clients' own and left out: the "
                "verdict is as if they were not public; name data that no client holds\n"
            )
        require_enough(truth, data, choice)
    look_alikes, public = (take_part(data, part, 0.5, purpose="kin of captures") for part in ("train", "test"))
    fresh = public.take((~among(public, look_alikes)).nonzero()[:, 0])
    require_enough(look_alikes, fresh, choice)
    return PublicSplit(look_alikes, replace(fresh, name=f"{data.name}, public half"))
