"""Perceptual distance LPIPS (Zhang et al. 2018) on AlexNet features, from weights already on this machine."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from harness.results.files import Unreadable, read_bytes
from harness.results.stored import Damaged, PlainTensor, checked, parse_tensors
from harness.scoring.images import clamped_pixels

if TYPE_CHECKING:
    import lpips

SMALLEST_SIDE = 64
TORCHVISION_FILE = "alexnet-owt-7be5be79.pth"
_CHUNK = 64


class LpipsScorer:
    """LPIPS version 0.1 with AlexNet; make one with ``LpipsScorer.load``."""

    def __init__(self, network: "lpips.LPIPS") -> None:
        self._network = network

    @classmethod
    def load(cls, data_root: Path) -> "LpipsScorer | str":
        """The scorer, or one sentence that says why LPIPS cannot be had. Nothing is ever downloaded.

        The features are taken from torchvision's cache (``TORCHVISION_FILE``), else from
        ``data_root/lpips_alexnet/*.pth``, a state dict with keys ``features.{0,3,6,8,10}.{weight,bias}``.
        """
        places = [Path(torch.hub.get_dir()) / "checkpoints" / TORCHVISION_FILE]
        places += sorted((data_root / "lpips_alexnet").glob("*.pth"))
        weights_file = next((place for place in places if place.is_file()), None)
        if weights_file is None:
            return "no AlexNet weights in torchvision's cache nor in the data root's folder lpips_alexnet"
        try:
            weights = checked(dict[str, PlainTensor], parse_tensors(read_bytes(weights_file)))
        except (Unreadable, Damaged):
            return f"{weights_file.name} cannot be read as a file of weights"
        network = _untrained_network()
        # lpips names its layers slice1.0, slice2.3, ...: the last part is torchvision's layer number.
        sources = {name: "features." + name.partition(".")[2] for name in network.net.state_dict()}
        missing = sorted(source for source in sources.values() if source not in weights)
        if missing:
            return f"{weights_file.name} lacks {missing[0]}: it does not hold AlexNet's features"
        try:
            network.net.load_state_dict({name: weights[source] for name, source in sources.items()})
        except RuntimeError:
            return f"{weights_file.name} does not hold AlexNet's features: their shapes differ"
        return cls(network)

    @torch.no_grad()
    def score(self, truth: Tensor, reconstruction: Tensor) -> NDArray[np.float64]:
        """Distances (I,), 0 for equal images, of I pairs (I, C, H, W) with C of 1 or 3, clamped to [0, 1]."""
        if truth.shape != reconstruction.shape:
            raise ValueError(f"shapes differ: truth {tuple(truth.shape)}, reconstruction {tuple(reconstruction.shape)}")
        pairs = zip(truth.split(_CHUNK), reconstruction.split(_CHUNK), strict=True)
        distances = [self._network(_prepare(true), _prepare(guess)).flatten() for true, guess in pairs]
        return torch.cat([torch.empty(0), *distances]).double().numpy()


def _untrained_network() -> "lpips.LPIPS":
    # Imported here because it brings torchvision, which takes longer to import than most commands to run.
    import lpips

    # Building it draws random weights, which must not move the caller's random numbers.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # lpips 0.1.4 still passes torchvision's old ``pretrained`` argument.
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision.models._utils")
        return lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)


def _prepare(images: Tensor) -> Tensor:
    """(I, 3, >=64, >=64) in [-1, 1]: AlexNet's strides leave nothing of smaller or grey images."""
    pixels = clamped_pixels(images).float()
    if pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    height, width = pixels.shape[-2:]
    if min(height, width) < SMALLEST_SIDE:
        size = (max(height, SMALLEST_SIDE), max(width, SMALLEST_SIDE))
        pixels = functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)
    return pixels * 2.0 - 1.0
