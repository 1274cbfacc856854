"""The bundled samples: small, real, balanced, and there without any download."""

from pathlib import Path

from harness.datasets.catalogue import Source, add
from harness.datasets.cifar10 import CLASS_NAMES
from harness.datasets.files import DataFile
from harness.datasets.mnist import DIGITS
from harness.datasets.record import Dataset, build_dataset

BUNDLED = Path(__file__).parent / "bundled"


def sample_path(name: str) -> Path:
    """Return where the sample of this name is bundled."""
    return BUNDLED / f"{name}.npz"


def _source(name: str, origin: str, licence: str) -> Source:
    def find(root: Path) -> Path | None:
        return sample_path(name) if sample_path(name).is_file() else None

    return Source(origin, licence, find)


_MNIST = _source(
    "mnist-sample",
    "the first 100 images of each class of the MNIST training set (LeCun, Cortes, Burges)",
    "CC BY-SA 3.0, as usually quoted",
)
_CIFAR10 = _source(
    "cifar10-sample",
    "the first 50 images of each class of the CIFAR-10 training set (Krizhevsky, 2009)",
    "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
)


def _load(name: str, class_names: tuple[str, ...], origin: str) -> Dataset:
    file = DataFile(sample_path(name), "install the package gradient-leakage-harness again")
    images, labels = file.read_arrays("images", "labels")
    return build_dataset(file, name, images, labels, class_names, origin)


@add("mnist-sample", _MNIST)
def load_mnist_sample(root: Path) -> Dataset:
    """1,000 grey images (1, 28, 28) of ten digits, 100 each."""
    return _load("mnist-sample", DIGITS, _MNIST.origin)


@add("cifar10-sample", _CIFAR10)
def load_cifar10_sample(root: Path) -> Dataset:
    """500 colour images (3, 32, 32) of ten classes, 50 each."""
    return _load("cifar10-sample", CLASS_NAMES, _CIFAR10.origin)
