"""A training and a held-out test part of a dataset that its publishers did not divide themselves."""

import math
from typing import Literal

import torch
from torch import Tensor

from harness.base.randomness import generator
from harness.datasets.record import Dataset

Part = Literal["train", "test"]


def take_part(dataset: Dataset, part: Part, held_out: float, purpose: str = "held out") -> Dataset:
    """The examples of one part, in the dataset's order; a pure function of the dataset, the share and the purpose.

    Args:
        dataset: the whole dataset of N examples.
        part: ``train`` or ``test``; together they are the whole, and they share nothing.
        held_out: share of the examples in the test part, in (0, 1); ceil(share * N) examples are held out.
        purpose: what the division is for; divisions for other purposes are independent of it.
    """
    test = torch.zeros(len(dataset.labels), dtype=torch.bool)
    test[_held_out(dataset, held_out, purpose)] = True
    return dataset.take((test if part == "test" else ~test).nonzero()[:, 0])


def _held_out(dataset: Dataset, share: float, purpose: str) -> Tensor:
    """Positions drawn at random, from every class of every natural client in proportion to its size.

    Each example stands at a random place of its class, scaled to [0, 1]; the first ones of all classes are held out.
    """
    strata = dataset.labels if dataset.clients is None else dataset.clients * dataset.num_classes + dataset.labels
    order = torch.randperm(len(dataset.labels), generator=generator(purpose, dataset.name))
    places = torch.empty(len(order), dtype=torch.float64)
    for stratum in strata.unique().tolist():
        members = order[strata[order] == stratum]
        places[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    first = places[order].argsort(stable=True)[: math.ceil(share * len(order))]
    return order[first]
