"""Your own network on your own data: a residual network of one block per stage, on coloured squares.

    python examples/own_resnet.py

The same from the command line, in the folder of this file:

    harness evaluate --defense none --attack cpl --dataset squares.npz --model own_resnet:make --surface 2
"""

import sys
from pathlib import Path

import harness  # first: it says how many threads the libraries underneath torch may take

# isort: split
import numpy as np
from torch import Tensor, nn


class Residual(nn.Module):
    """Two convolutions and a way around them. GroupNorm, so that each image's gradient depends on it alone."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.way = nn.Conv2d(inputs, outputs, 1, stride=2)
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.silu(self.way(images) + self.body(images))


def make(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Images (N, C, H, W) in [0, 1] into logits (N, classes)."""
    channels, height, width = image_shape
    places = -(-height // 4) * -(-width // 4)
    return nn.Sequential(Residual(channels, 16), Residual(16, 32), nn.Flatten(), nn.Linear(32 * places, classes))


def squares(count: int) -> dict[str, np.ndarray]:
    """Images (N, 12, 12, 3), a square of some colour on another, and which of three sizes it has."""
    random = np.random.default_rng(0)
    images = np.broadcast_to(random.random((count, 1, 1, 3)), (count, 12, 12, 3)).astype("float32").copy()
    sizes = random.integers(0, 3, count)
    for image, size in zip(images, sizes, strict=True):
        top, left = random.integers(0, 8 - 2 * size, 2)
        image[top : top + 4 + 2 * size, left : left + 4 + 2 * size] = random.random(3)
    return {"images": images, "labels": sizes}


if __name__ == "__main__":
    np.savez("squares.npz", **squares(300))
    sys.path.insert(0, str(Path(__file__).parent))  # where own_resnet:make is found
    document = harness.evaluate(
        defense=["none", "fed_cdp"], attack="cpl", dataset="squares.npz", model="own_resnet:make", victims=12,
        attack_args={"max_iterations": 60}, out="runs/own-resnet",
    )  # fmt: skip
    for cell in document.cells:
        if cell.role == "cell":
            print(f"{cell.defense}: {cell.verdict}, {cell.asr['strict'].successes} of 12 images come back")
