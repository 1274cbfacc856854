"""Facts of a network that need no training: its size, and the line below which an accuracy says nothing."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from harness.datasets import Dataset, load_dataset
from harness.models import RowModel, words_of
from harness.training.loop import accuracy_of

UNTRAINED = 20
_EXAMPLES = 4000

CHANCE_NOTE = (
    f"chance: not above the largest class's share of the test part, nor above the best of {UNTRAINED} untrained "
    "networks, with two standard errors; such cells say only that nothing was learned and have no place in an order"
)


@lru_cache(maxsize=16)
def chance_level(dataset: str, model: str | None, data_root: Path) -> float:
    """Accuracy that a constant answer or some untrained network reaches on a dataset's test part.

    A network that is mostly noise does not guess at 1/classes: it prefers some classes, and scatters widely.
    """
    test = load_dataset(dataset, data_root, "test", words_of(model))
    network = _network(test, model)
    every = max(len(test.labels) // _EXAMPLES, 1)  # spread out: the first ones may be of one class
    some = replace(test, images=test.images[::every], labels=test.labels[::every])
    weights = network.initial_weights([("chance", number) for number in range(UNTRAINED)])
    best = max(_largest_share(test), *(accuracy_of(network, row, some)[0] for row in weights))
    return best + 2 * (best * (1 - best) / len(some.labels)) ** 0.5


def _largest_share(test: Dataset) -> float:
    return float(test.labels.bincount().max()) / len(test.labels)


@lru_cache(maxsize=16)
def parameters(dataset: str, model: str | None, data_root: Path) -> int:
    """P of the network that is trained on a dataset."""
    return _network(load_dataset(dataset, data_root, "test", words_of(model)), model).layout.total


def _network(test: Dataset, model: str | None) -> RowModel:
    made = RowModel(model or test.trained_network, test.image_shape, test.num_classes, test.images)
    made.to(torch.device("cpu"), torch.float32)
    return made
