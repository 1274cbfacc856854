"""Running statistics in training: every client's follow its own batches, and FedAvg takes their mean."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.federation.examples import ExampleGradients, NetworkBatch, NetworkGradients
from harness.models import RowModel
from harness.models.batch_norm import Buffers, RunningStatistics, refusal
from harness.models.joint_gradients import JointGradients
from harness.results.stored import Damaged


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


class ClientsStatistics:
    """Those of N clients, which begin with the global model's and follow every step's batches; none without BatchNorm.

    Attributes:
        buffers: each tensor (N, ...), by name.
    """

    def __init__(self, model: RowModel, beginning: Mapping[str, Tensor], clients: int) -> None:
        self._running = RunningStatistics(model.normalised, clients)
        self._running.buffers = {
            name: beginning[name].to(values.device).expand_as(values).clone()
            for name, values in self._running.buffers.items()
        }

    @property
    def buffers(self) -> Buffers:
        return self._running.buffers

    def followed(self, gradients: NetworkGradients) -> NetworkGradients:
        """The same gradients of these clients, whose statistics move with every step."""
        if not self.buffers:
            return gradients

        def followed(batch: NetworkBatch) -> ExampleGradients:
            examples = gradients.gradients(batch)
            assert isinstance(examples, JointGradients)
            self._running.follow(examples.statistics)
            return examples

        return replace(gradients, gradients=followed)


def finish_round(model: RowModel, clients: Sequence[Buffers]) -> None:
    """Puts the mean of all clients' statistics, (N, ...) of each chunk, into the global model; none change nothing."""
    if clients:
        everyone = {name: torch.cat([buffers[name] for buffers in clients]) for name in clients[0]}
        # Of whole numbers, which all clients have counted alike, the mean is the number itself.
        _take(model, {name: values.double().mean(0) for name, values in everyone.items()})


def _take(model: RowModel, running: Mapping[str, Tensor]) -> None:
    if running:
        model.take_buffers(dict(model.plain_module.named_buffers()) | dict(running))
