"""Definition of a dataset, and the one gate through which arrays from files become one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from harness.base.columns import Columns, TableShape
from harness.base.errors import UsageError
from harness.base.limits import log
from harness.base.words import TextShape, Words
from harness.datasets.files import DataFile

_MOST_CLASSES = 100_000
_NUMBER = re.compile(r"-?[0-9]{1,9}")
# Many cameras put so much into 16 bits, and their images would be almost black.
_TWELVE_BITS = 2**12 - 1
# What bytes are that were divided by 255 twice.
_ALMOST_BLACK = 1.001 / 255


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images; rows of a table, of which one of F features is an image (1, 1, F); or texts (``Words``).

    Attributes:
        name: the registered name, or the file name of own data.
        images: (N, C, H, W) float32 in [0, 1]; C is 1 (grey) or 3 (red, green, blue).
        labels: (N,) int64 in 0 .. num_classes - 1.
        class_names: one name per class.
        origin: one line on where the images come from, for the results document.
        columns: what the features of a table mean; None for anything else.
        deviations: (C,) float64, standard deviations of its continuous columns where they are those of a larger table;
            None where they are those of these rows.
        words: what the numbers of texts mean; None for anything else.
        texts: the texts as they were written, for a network that reads them by a tokenizer of its own; None for
            anything else, or where nobody kept them.
        clients: (N,) int64, the client that each example belongs to by nature; None where there is none.
        fitted_to: what its features were made with, in words, where that was computed from the private examples
            themselves without noise; None where it was not.
    """

    name: str
    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    origin: str
    columns: Columns | None = None
    words: Words | None = None
    texts: tuple[str, ...] | None = None
    clients: Tensor | None = None
    fitted_to: str | None = None
    deviations: Tensor | None = None

    @property
    def uncovered(self) -> str | None:
        """Return the reason why no epsilon of a training covers these data; None where one may."""
        how = "scaled by" if self.words is None else "written in"
        return self.fitted_to and f"dataset {self.name} is {how} {self.fitted_to}; no epsilon covers it"

    @property
    def num_classes(self) -> int:
        """The number of classes, K."""
        return len(self.class_names)

    @property
    def trained_network(self) -> str:
        """The network that is trained on them unless one is named."""
        return "text_transformer" if self.words else "mlp2" if self.columns else "cnn"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of one image; that of a text says how large its vocabulary is, of a row its columns."""
        if self.words is not None:
            return TextShape(len(self.words.vocabulary), self.images.shape[-1])
        if self.columns is not None:
            return TableShape(self.columns)
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def unlabelled(self) -> "Dataset":
        """Return the same with label 0 of two classes: what a network that predicts the next word is given."""
        return replace(self, labels=torch.zeros_like(self.labels), class_names=("any", "none"))

    def take(self, positions: Tensor) -> "Dataset":
        """The examples at some positions (n,), in the given order, under the same name and with the same classes."""
        clients = None if self.clients is None else self.clients[positions]
        texts = None if self.texts is None else tuple(self.texts[place] for place in positions.tolist())
        return replace(self, images=self.images[positions], labels=self.labels[positions], clients=clients, texts=texts)


def require_dataset(made: object, name: str) -> Dataset:
    """Return what the loader of somebody's own package returned, if it is what :class:`Dataset` says.

    Raises:
        UsageError: it is something else, with how to fix it.
    """
    if not isinstance(made, Dataset):
        raise UsageError(f"dataset {name!r}: its function returns {type(made).__name__}; let it return a Dataset")
    problem = (None if made.words or made.texts else _problem_of_images(made.images)) or _problem_of_labels(made)
    if problem:
        raise UsageError(f"dataset {name!r} has {problem}; correct its function, or let it call build_dataset")
    return made


def _problem_of_labels(made: Dataset) -> str | None:
    labels: object = made.labels
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.ndim != 1 or not len(labels):
        return "labels that are no tensor (N,) of int64"
    if len(labels) != len(made.texts or made.images):
        return f"{len(labels)} labels for {len(made.texts or made.images)} examples"
    if labels.min() < 0 or labels.max() >= made.num_classes:
        return f"labels from {labels.min()} to {labels.max()}, and {made.num_classes} class names from 0"
    return None


def _problem_of_images(images: object) -> str | None:
    if not isinstance(images, Tensor) or images.dtype != torch.float32 or images.ndim != 4 or images.requires_grad:
        return "images that are no tensor (N, C, H, W) of float32 without a gradient"
    if images.shape[1] not in (1, 3):
        return f"images of {images.shape[1]} channels, and 1 or 3 come first"
    if not images.isfinite().all() or images.min() < 0 or images.max() > 1:
        return f"image values from {images.min():g} to {images.max():g}, and [0, 1] is taken"
    return None


def build_dataset(
    file: DataFile,
    name: str,
    images: np.ndarray,
    labels: np.ndarray,
    class_names: tuple[str, ...] | None,
    origin: str,
    columns: Columns | None = None,
) -> Dataset:
    """Check arrays read from ``file`` and make them a Dataset.

    Args:
        file: where the arrays come from; named in every error.
        name: name of the dataset.
        images: (N, H, W), (N, C, H, W) or (N, H, W, C) with C in {1, 3}; uint8, uint16, or float in [0, 1]. Where both
            four-dimensional readings fit, the channels are taken to come first.
        labels: (N,) integers from 0.
        class_names: one per class; None names the classes 0 .. max(labels).
        origin: one line.
        columns: what the features of a table mean.

    Raises:
        UsageError: wrong shape, type, range, count or label.
    """
    images = _scaled(file, _channels_first(file, images))
    _check_labels(file, labels, len(images))
    largest = int(labels.max())
    most = _MOST_CLASSES if class_names is None else len(class_names)
    if largest >= most:
        raise file.wrong(f"has label {largest}, but there are at most {most} classes", "number the classes from 0")
    if class_names is None:
        _tell_unused_labels(file, labels, largest)
    return Dataset(
        name=name,
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=class_names or tuple(str(label) for label in range(largest + 1)),
        origin=origin,
        columns=columns,
    )


def _channels_first(file: DataFile, images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise file.wrong(
            f"has images of shape {images.shape}",
            "give (N, H, W), (N, C, H, W) or (N, H, W, C) with one or three channels and at least one image",
        )
    return images


def _scaled(file: DataFile, images: np.ndarray) -> np.ndarray:
    """A contiguous float32 copy in [0, 1]."""
    if images.dtype == np.uint8:
        if images.max() == 1:
            # Almost black images, every one of which is close to every other.
            raise file.wrong("has bytes of 0 and 1 as images", "multiply them by 255, or save them as float")
        scaled = np.array(images, dtype=np.float32, order="C")
        scaled /= 255
        return scaled
    if images.dtype == np.uint16 and images.max() > _TWELVE_BITS:
        return np.ascontiguousarray(images, dtype=np.float32) / np.float32(2**16 - 1)
    if images.dtype.kind != "f":
        raise file.wrong(f"has images of type {images.dtype}", "save them as uint8 (0 to 255) or float (0 to 1)")
    if not np.isfinite(images).all():
        raise file.wrong("has images with NaN or infinite values", "remove those images")
    if images.min() < 0 or images.max() > 1:
        less = "take mean and deviation off again, and name them behind the model: NAME+normalised(MEAN|DEVIATION)"
        raise file.wrong(
            f"has values from {images.min():g} to {images.max():g}",
            less if images.min() < 0 else "scale floats to [0, 1], or save 0 to 255 as uint8",
        )
    if 0 < images.max() <= _ALMOST_BLACK:
        raise file.wrong(
            f"has image values from {images.min():g} to {images.max():g}, which is almost black",
            "divide bytes by 255 once",
        )
    return np.array(images, dtype=np.float32, order="C")


def _check_labels(file: DataFile, labels: np.ndarray, count: int) -> None:
    if labels.shape != (count,):
        raise file.wrong(f"has labels of shape {labels.shape} for {count} images", "give one label per image")
    if labels.dtype.kind not in "iu":
        raise file.wrong(f"has labels of type {labels.dtype}", "save the labels as integers")
    if labels.min() < 0:
        raise file.wrong(f"has a negative label ({labels.min()})", "number the classes from 0")


def class_numbers(file: DataFile, labels: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers (N,) and names of classes that are written as numbers from 0, or as names, which are numbered in order.

    Raises:
        UsageError: a label is empty, negative, or too large.
    """
    empty = next((place for place, label in enumerate(labels, 1) if not label.strip()), None)
    if empty is not None:
        raise file.wrong(f"has no label in row {empty}", "give one label per row")
    if all(_NUMBER.fullmatch(label) for label in labels):
        numbers = np.array([int(label) for label in labels])
        _check_labels(file, numbers, len(labels))
        largest = int(numbers.max())
        if largest >= _MOST_CLASSES:
            raise file.wrong(f"has label {largest}", "number the classes from 0")
        _tell_unused_labels(file, numbers, largest)
        return numbers, tuple(str(label) for label in range(largest + 1))
    names = tuple(sorted(set(labels)))
    if len(names) >= _MOST_CLASSES:
        raise file.wrong(f"has {len(names)} classes", f"give fewer than {_MOST_CLASSES}")
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[label] for label in labels]), names


def _tell_unused_labels(file: DataFile, labels: np.ndarray, largest: int) -> None:
    """Classes without an image are part of the network's output, and of every guess of a label."""
    unused = np.setdiff1d(np.arange(largest + 1), labels)
    if len(unused):
        names = ", ".join(map(str, unused[:5])) + (", ..." if len(unused) > 5 else "")
        log.warning(
            "harness: %s has no example with label %s, and counts %d classes; number the classes from 0 without a gap "
            "where that is not meant", file.path.name, names, largest + 1,
        )  # fmt: skip
