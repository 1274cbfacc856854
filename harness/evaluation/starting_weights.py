"""The weights that victims start their round from: fresh ones, shared ones, or those of a file or a training."""

from pathlib import Path

from torch import Tensor

from harness.base.errors import UsageError
from harness.evaluation.played_round import Key
from harness.experiment import CellSettings
from harness.models import RowModel


def starting_weights(model: RowModel, settings: CellSettings, keys: list[Key]) -> Tensor:
    """The weights (V, P) of each victim.

    Raises:
        UsageError: a file cannot be read, is of another network, or holds what is no number.
    """
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
    return loaded.expand(len(keys), -1).clone()


def _refuse_other_than_trained(settings: CellSettings, error: UsageError) -> None:
    """Raises UsageError: the weights are of a run on another dataset, or of another network, and fit neither here."""
    run = settings.trained and settings.trained.settings
    if run and (run.dataset, run.model) != (settings.dataset, settings.model):
        raise UsageError(
            f"the model of that training run, {run.model} on {run.dataset}, is not {settings.model} on "
            f"{settings.dataset}; leave out --dataset and --model, which --training knows"
        ) from error
