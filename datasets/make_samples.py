"""Maintenance: build the bundled samples from a data root.

Run as ``python -m harness.datasets.make_samples [--data-root DIR]``.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from harness.datasets import Dataset, data_root, load_dataset
from harness.datasets.files import write_arrays
from harness.datasets.samples import BUNDLED

#: sample name -> (dataset it is drawn from, images per class)
SAMPLES = {"mnist-sample": ("mnist", 100), "cifar10-sample": ("cifar10", 50)}


def sample(dataset: Dataset, per_class: int) -> dict[str, np.ndarray]:
    """The first ``per_class`` images of each class, in the dataset's order, and their positions in it."""
    firsts = [torch.nonzero(dataset.labels == label).flatten()[:per_class] for label in range(dataset.num_classes)]
    positions = torch.cat(firsts).sort().values
    return {
        "images": (dataset.images[positions] * 255).round().to(torch.uint8).numpy(),
        "labels": dataset.labels[positions].to(torch.uint8).numpy(),
        "positions": positions.to(torch.int32).numpy(),
    }


def make_samples(root: Path, target: Path) -> None:
    """Write every sample as ``target``/NAME.npz; the same data root gives the same bytes."""
    for name, (origin, per_class) in SAMPLES.items():
        write_arrays(target / f"{name}.npz", **sample(load_dataset(origin, root), per_class))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the bundled samples from a data root.")
    parser.add_argument("--data-root", type=Path)
    make_samples(data_root(parser.parse_args().data_root), BUNDLED)
