"""What running statistics that came back give away of clients' batches, whatever defends the weights beside them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from harness.datasets.public import NONE
from harness.evaluation.played_round import Key
from harness.evaluation.reading import known_batches
from harness.experiment import CellSettings
from harness.judging.federation import CapturedClients
from harness.judging.stage import SimulatedStage
from harness.models import RowModel
from harness.models.batch_norm import Buffers


@dataclass(frozen=True)
class GivenAway:
    """Mean and variance of a client's batch, channel by channel.

    Attributes:
        layers: how many layers' inputs they are of; ``first`` is the nearest to the images.
        means, variances: there, (V, channels); of several local steps, their mean, weighted as momentum does.
        error: root mean square, over channels and clients, of what they are off the truth's, relative to that of the
            truth's; the larger of means and variances. None where no truth is at hand.
        apart: the same of the differences of clients from their mean; None of a single client.
    """

    layers: int
    first: str
    means: list[list[float]]
    variances: list[list[float]]
    error: float | None
    apart: float | None

    def __str__(self) -> str:
        """As a sentence."""
        more = f", and of {self.layers - 1} more layers" if self.layers > 1 else ""
        said = f"each batch's mean and variance of {len(self.means[0])} channels at {self.first}{more}"
        truth = "" if self.error is None else f"; off the truth's by {self.error:.2g} of their size"
        apart = "" if self.apart is None else f"; clients differ by {self.apart:.2g}"
        return f"running statistics that came back give away {said}{truth}{apart}"


def given_away(captured: CapturedClients, settings: CellSettings, data_root: Path) -> GivenAway | None:
    """What came back beside the weights; None where nothing did.

    Args:
        settings: of the declared defense.
        data_root: where datasets lie.
    """
    if not captured.running:
        return None
    model = RowModel(settings.model, captured.record.image_shape, captured.record.classes)
    model.take_buffers(captured.buffers)
    found = _statistics(model, captured.running, settings)
    first = next(name for name in model.places if name in found)
    mean, variance = found[first]
    error = None
    if captured.images is not None:
        own = _statistics(model, _simulated(captured, settings, data_root), settings)[first]
        error = max(_share(made - true, true) for made, true in zip(found[first], own, strict=True))
    apart = max(_share(part - part.mean(0), part) for part in found[first]) if captured.clients > 1 else None
    return GivenAway(len(found), first, mean.tolist(), variance.tolist(), error, apart)


def _statistics(model: RowModel, running: Buffers, settings: CellSettings) -> dict[str, tuple[Tensor, Tensor]]:
    batches = known_batches(model, running, settings)
    assert batches is not None and batches.statistics is not None
    return dict(batches.statistics)


def _simulated(captured: CapturedClients, settings: CellSettings, data_root: Path) -> Buffers:
    """Running statistics of the same clients, their local steps taken on the truth."""
    quiet = settings.model_copy(update={"noise_scale": 0.0, "prior": NONE, "suite": None})
    stage = SimulatedStage(data_root, captured.clients, captured, quiet, None, None)
    model = RowModel(settings.model, captured.record.image_shape, captured.record.classes)
    keys: list[Key] = [(0, client) for client in range(captured.clients)]
    truth, weights = stage.choose(stage.dataset(""), captured.clients, quiet), stage.start(model, quiet, keys)
    return stage.look(model, weights, truth, keys, quiet).running


def _share(values: Tensor, of: Tensor) -> float:
    """Root mean square relative to that of another tensor."""
    return float(values.square().mean().sqrt() / torch.clamp(of.square().mean().sqrt(), min=1e-30))
