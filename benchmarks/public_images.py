"""Public data for ``--prior FILE.npz``: all images of one dataset that another one does not hold.

python benchmarks/public_images.py cifar10 --without cifar10-sample --out public.npz
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from harness.datasets import data_root, load_dataset
from harness.datasets.public import among


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", help="whose images are public")
    parser.add_argument("--without", required=True, help="whose images are private")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-root", type=Path)
    given = parser.parse_args()
    root = data_root(given.data_root)
    public, private = (load_dataset(name, root) for name in (given.dataset, given.without))
    public = public.take((~among(public, private)).nonzero()[:, 0])
    images = (public.images * 255).round().to(torch.uint8)
    np.savez(given.out, images=images.numpy(), labels=public.labels.numpy())
    print(f"{len(images)} images of {given.dataset} that {given.without} does not hold: {given.out}")


if __name__ == "__main__":
    main()
