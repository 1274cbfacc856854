"""Captures of one LeNet client with a batch of four digits, undefended and behind Fed-CDP, with and without its truth.

python benchmarks/captured_lenet.py captures
harness judge captures/undefended/0 --prior mnist-sample --attack cpl
harness judge captures/undefended-without-truth/0 --prior mnist-sample --attack cpl,map
harness judge captures/fed_cdp/0 --prior mnist-sample --attack cpl,map
"""

import harness  # noqa: F401  (before torch, which reads at its start what this sets)

# isort: split
import argparse
from pathlib import Path

import torch
from torch import Tensor

from federation_cases import Client
from harness.capture import CaptureRecord, write_capture
from harness.datasets import Dataset, data_root, load_dataset
from harness.judging.framework_defenses import Declared
from harness.models.networks import build_module

BATCH, RATE = 4, 0.05
CLIP, SIGMA = 4.0, 6.0
CLIENTS: dict[str, tuple[Client, Declared | None]] = {
    "undefended": (Client(batch=BATCH), None),
    "fed_cdp": (
        Client(batch=BATCH, clip=CLIP, deviation=SIGMA * CLIP, per_layer=True),
        Declared(name="fed_cdp", settings={"clip": CLIP, "sigma": SIGMA}),
    ),
}


def drawn(data: Dataset, random: torch.Generator) -> Tensor:
    """Positions of a batch of digits that are all different."""
    rows: dict[int, int] = {}
    for position in torch.randperm(len(data.labels), generator=random).tolist():
        rows.setdefault(int(data.labels[position]), position)
        if len(rows) == BATCH:
            break
    return torch.tensor(list(rows.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=1)
    asked = parser.parse_args()
    data, random = load_dataset("mnist-sample", data_root(None)), torch.Generator().manual_seed(7)
    network = build_module("lenet", (1, 28, 28), 10, seed=0)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    for number in range(asked.clients):
        rows = drawn(data, random)
        images, labels = data.images[rows], data.labels[rows]
        for name, (client, declared) in CLIENTS.items():
            network.load_state_dict(start)
            network.zero_grad()
            client.train(network, images, labels, RATE, number)
            record = CaptureRecord(
                model="lenet", image_shape=(1, 28, 28), classes=10, learning_rate=RATE, batch_size=BATCH,
                defense=declared,
            )  # fmt: skip
            after = network.state_dict()
            truth = {"images": images.numpy(), "labels": labels.numpy()}
            write_capture(asked.folder / name / str(number), record, start, after=after, **truth)
            write_capture(asked.folder / f"{name}-without-truth" / str(number), record, start, after=after)


if __name__ == "__main__":
    main()
