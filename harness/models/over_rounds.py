"""One network in several rounds of a training: its weights of each round side by side, and so its gradients.

Whoever keeps every message of a client has one long gradient of the same examples, a part for each round. Attacks that
compare gradients, or add up log-likelihoods over coordinates, then combine rounds as they are.
"""

import torch
from torch import Tensor, nn

from harness.models.batch_norm import LayerStatistics
from harness.models.row_model import RowModel


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
