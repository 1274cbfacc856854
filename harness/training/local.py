"""What clients of a training run compute their steps from, and what is measured of them on the way."""

import torch
from torch import Tensor

from harness.datasets import Dataset
from harness.federation.context import RoundContext
from harness.federation.examples import Batches, ExampleGradients, LocalStep, NetworkBatch, NetworkGradients
from harness.federation.recorders import RoundRecorder
from harness.federation.taps import Tap
from harness.models import RowModel
from harness.models.joint_gradients import JointGradients


def batch_gradients(
    model: RowModel, dataset: Dataset, data: Tensor, batches: Batches, expected: int
) -> NetworkGradients:
    """Example gradients of N clients in their local steps.

    Args:
        model: the network.
        dataset: the training data.
        data: (N, n), positions of each client's examples.
        batches: (N, L, B) places in ``data``.
        expected: the batch size that a mean divides by.
    """

    def batch(step: int, weights: Tensor) -> NetworkBatch:
        chosen = data.gather(1, batches.places[:, step].to(data.device))
        images, labels = _examples(dataset.images, chosen).to(weights), _examples(dataset.labels, chosen)
        present = None if batches.present is None else batches.present[:, step].to(weights)
        return NetworkBatch(model, weights, images, labels, present)

    def gradients(of: NetworkBatch) -> ExampleGradients:
        return model.example_gradients(of.weights, of.inputs, of.labels, of.present, expected)

    return NetworkGradients(batch, gradients)


def _examples(values: Tensor, places: Tensor) -> Tensor:
    """Entries of ``values`` (D, ...) at places (N, B): (N, B, ...)."""
    # The same as values[places], several times faster.
    return values.index_select(0, places.flatten()).unflatten(0, places.shape)


class RoundMeans(RoundRecorder):
    """Means over a round's clients, and the largest noise.

    ``gradient_norm``: mean L2 norm of the first step's per-example gradients, before the defense, where examples have
    gradients of their own; ``update_norm``: of
    raw updates; ``noise``: largest standard deviation of the noise on a step, zero without.
    """

    def __init__(self) -> None:
        self._measured: dict[str, list[Tensor]] = {"gradient_norm": [], "update_norm": [], "noise": []}

    def for_chunk(self) -> "RoundMeans":
        return RoundMeans()

    def add(self, chunk: "RoundMeans") -> None:
        for name, entries in chunk._measured.items():
            self._measured[name] += entries

    def step(self, examples: ExampleGradients, made: LocalStep, context: RoundContext) -> None:
        if context.local_step == 0 and not isinstance(examples, JointGradients):
            norms = examples.norms().square().sum(-1).sqrt()
            present = examples.present
            self._measured["gradient_norm"].append((norms * present).sum(1) / present.sum(1).clamp(min=1))
        noise = torch.as_tensor(0.0 if made.noise is None else made.noise).to(made.step)
        self._measured["noise"].append(noise.expand(len(made.step)))

    def read(self, tap: Tap, values: Tensor) -> None:
        if tap is Tap.UPDATE:
            self._measured["update_norm"].append(values.norm(dim=1))

    def take(self) -> dict[str, float]:
        """The figures by name; none of a round without clients."""
        known = {name: torch.cat(entries) for name, entries in self._measured.items() if entries}
        return {name: float(values.max() if name == "noise" else values.mean()) for name, values in known.items()}
