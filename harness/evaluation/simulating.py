"""Public examples play the victims' round, for an attacker who knows the defense and the weights that victims share."""

import hashlib
from typing import Protocol

import torch
from torch import Tensor

from harness.base.randomness import generator
from harness.datasets import Dataset, Victims
from harness.evaluation.played_round import Key
from harness.evaluation.reading import Reading
from harness.experiment import CellSettings
from harness.models import RowModel
from harness.observation import Simulated, Simulation

MOST = 5000
_TOGETHER = 128
_PLAYERS = {"attack", "attack_args", "suite", "engine", "victims", "seeds", "noise_scale", "labels", "batch_norm"}


class Reader(Protocol):
    """What the adversary makes of some victims' round."""

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
        rows = chosen[: -(-count // own)]
        examples = Victims(public.images[rows], public.labels[rows], rows)
        keys: list[Key] = [("public", number) for number in range(len(rows))]
        step = max(1, _TOGETHER // settings.together)
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
    each, total = settings.examples, len(public.labels)
    random = generator("simulated", public.name)
    if each > total:
        return torch.empty(0, each, dtype=torch.long)
    if each == 1:
        return torch.randperm(total, generator=random)[:MOST, None]
    return torch.stack([torch.randperm(total, generator=random)[:each] for _ in range(min(total, MOST))])
