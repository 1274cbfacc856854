"""How many examples clients hold where nobody said so: one local pass, or as many as the data can give."""

from pathlib import Path

from harness.datasets import load_dataset
from harness.datasets.partition import most_examples
from harness.training.settings import TrainSettings


def fitted(settings: TrainSettings, data_root: Path) -> TrainSettings:
    """The settings with fewer examples per client, in whole batches, where the split cannot give those of one pass.

    The local steps of a round then pass over them several times.
    """
    if settings.examples is not None:
        return settings
    train, batch = load_dataset(settings.dataset, data_root, "train"), settings.batch_size
    most = most_examples(train.labels, train.clients, settings.clients, settings.split)
    held = most - most % (2 * batch if settings.split == "shards" else batch)
    if settings.client_examples <= most or held == 0:
        return settings
    return settings.model_copy(update={"examples": held})
