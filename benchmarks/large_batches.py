"""How much of a large batch `spear` brings back: undefended, one step, two layers with rectified units, fresh weights.

    HARNESS_DATA=data nice python benchmarks/large_batches.py --batches 10 --out large.jsonl

prints a line per batch, dataset and width: images whose error is below 0.01 (RMSE of pixels from 0 to 1), and seconds;
then of each cell the share of images with the 95% interval of whole batches of 90%. Batches are drawn from the private
half by seeds 0, 1, ...; a batch of which nothing comes back counts. ``--out`` keeps lines; those that are there are not
run again.
"""

import harness  # noqa: F401

# isort: split
import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from harness.attacks import ATTACKS, run_attack
from harness.base.building import build
from harness.datasets import data_root, load_dataset
from harness.datasets.load import take_part
from harness.scoring.success import clopper_pearson
from harness.testing import undefended

_EXACT, _MOST = 0.01, 0.9


def _network(image_shape: tuple[int, int, int], classes: int, units: int) -> nn.Module:
    inputs = image_shape[0] * image_shape[1] * image_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, classes))


def units_1000(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A layer of 1,000 units."""
    return _network(image_shape, classes, 1000)


def units_4000(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A layer of 4,000 units."""
    return _network(image_shape, classes, 4000)


def brought_back(dataset: str, units: int, batch: int, seed: int) -> dict[str, float]:
    """How many images of a batch come back, and in how many seconds."""
    private = take_part(load_dataset(dataset, data_root(None)), "train", 0.5, purpose="public half")
    chosen = torch.randperm(len(private.images), generator=torch.Generator().manual_seed(seed))[:batch]
    images, labels = private.images[chosen][None], private.labels[chosen][None]
    sent = undefended(images, labels, private.num_classes, f"large_batches:units_{units}")
    began = time.perf_counter()
    made = run_attack(build(ATTACKS, "spear", {}), sent).images
    seconds = time.perf_counter() - began
    apart = torch.cdist(images[0].flatten(1), made[0].flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
    errors = apart.amin(1) / images[0, 0].numel() ** 0.5
    return {"images": int((errors < _EXACT).sum()), "seconds": round(seconds, 1)}


def main() -> None:
    """Runs what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=["mnist"])
    parser.add_argument("--units", nargs="+", type=int, default=[1000, 4000], choices=[1000, 4000])
    parser.add_argument("--batch", nargs="+", type=int, default=[64, 100, 128])
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    cells = [(one, units, batch) for one in asked.dataset for units in asked.units for batch in asked.batch]
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {tuple(line["cell"]): line for line in lines}
    for seed in range(asked.batches):
        for cell in cells:
            if (*cell, seed) in done:
                continue
            line = {"cell": [*cell, seed]} | brought_back(*cell, seed)
            done[*cell, seed] = line
            with asked.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{cell} batch {seed}: {line['images']} of {cell[2]} in {line['seconds']} s", flush=True)
    print("| data | units | batch | images back | batches with 90% of theirs [95%] | seconds a batch, median |")
    print("|---|---|---|---|---|---|")
    for cell in cells:
        own = [done[*cell, seed] for seed in range(asked.batches)]
        whole = sum(one["images"] >= _MOST * cell[2] for one in own)
        low, high = clopper_pearson(whole, len(own))
        back, median = sum(one["images"] for one in own), sorted(one["seconds"] for one in own)[len(own) // 2]
        share = f"{whole} of {len(own)} [{low:.0%}-{high:.0%}]"
        print(f"| {cell[0]} | {cell[1]:,} | {cell[2]} | {back} of {len(own) * cell[2]} | {share} | {median:.0f} |")


if __name__ == "__main__":
    main()
