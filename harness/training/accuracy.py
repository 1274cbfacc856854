"""How well the global model does on the test part."""

import torch
from torch import Tensor
from torch.nn import functional

from harness.datasets import Dataset
from harness.models import RowModel
from harness.models.batch_norm import in_evaluation_mode

_BATCH = 500


def accuracy_of(model: RowModel, weights: Tensor, test: Dataset) -> tuple[float, float]:
    """Accuracy in [0, 1] and mean cross-entropy of weights (P,) on a dataset."""
    module = model.plain(weights)
    right, loss = 0, 0.0
    with torch.no_grad(), in_evaluation_mode(module):
        for first in range(0, len(test.labels), _BATCH):
            images = test.images[first : first + _BATCH].to(weights)
            labels = test.labels[first : first + _BATCH].to(weights.device)
            logits = module(images)
            right += int((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return right / len(test.labels), loss / len(test.labels)
