"""Running statistics in training: every client's follow its own batches, and FedAvg takes their mean."""

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.federation.examples import ExampleGradients, GradientSource
from harness.models import RowModel
from harness.models.batch_norm import Buffers, RunningStatistics, refusal
from harness.models.joint_gradients import JointGradients
from harness.storage.stored import Damaged


def require_whole_batches(model: RowModel, batch: int, sampling: str) -> None:
    """Raises:
    UsageError: batches without a variance, or of several sizes, under a network that normalises them as a whole.
    """
    if model.normalised:
        model.require_batch(batch)
        if sampling == "poisson":
            raise refusal(model.name, "Poisson batches differ in size")


def running_of(model: RowModel) -> Buffers:
    """The global model's running statistics that training moves, as they stand in its state."""
    return {name: values[0].cpu() for name, values in RunningStatistics(model.normalised, 1).buffers.items()}


def restore_running(model: RowModel, saved: Mapping[str, Tensor]) -> None:
    """Takes them over from a checkpoint. Raises Damaged."""
    own = running_of(model)
    if {name: values.shape for name, values in saved.items()} != {name: values.shape for name, values in own.items()}:
        raise Damaged("is damaged: 'running' is not of this network")
    _take(model, saved)


class RoundStatistics:
    """Those of one round's clients, who all begin with the global model's."""

    def __init__(self, model: RowModel) -> None:
        self._model = model
        self._clients: list[RunningStatistics] = []

    def followed(self, gradients: GradientSource, clients: int) -> GradientSource:
        """The same gradients of N clients, whose running statistics follow every step's batches."""
        if not self._model.normalised:
            return gradients
        running = RunningStatistics(self._model.normalised, clients)
        self._clients.append(running)

        def followed(step: int, weights: Tensor) -> ExampleGradients:
            examples = gradients(step, weights)
            assert isinstance(examples, JointGradients)
            running.follow(examples.statistics)
            return examples

        return followed

    def finish(self) -> None:
        """Puts the clients' mean into the global model; a round without clients changes nothing."""
        if self._clients:
            names = self._clients[0].buffers
            everyone = {name: torch.cat([client.buffers[name] for client in self._clients]) for name in names}
            # Of whole numbers, which all clients have counted alike, the mean is the number itself.
            _take(self._model, {name: values.double().mean(0) for name, values in everyone.items()})


def _take(model: RowModel, running: Mapping[str, Tensor]) -> None:
    if running:
        model.take_buffers(dict(model.plain_module.named_buffers()) | dict(running))
