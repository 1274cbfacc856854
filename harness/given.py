"""What Python gives in the place of names: modules, tensors, loaders, defenses and attacks, under names of their own.

A name is made of the class and a digest of the content, so that results of the same objects have the same names.
"""

import copy
import hashlib
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from harness.attacks import ATTACKS, Attacker
from harness.base.errors import UsageError, in_one_line
from harness.base.registry import Registry
from harness.datasets import Dataset
from harness.datasets.files import DataFile
from harness.datasets.record import build_dataset
from harness.defenses import DEFENSES, Defense
from harness.frameworks import read_defense

#: More than that is no sample for an attack; a loader that goes on beyond it may have no end.
MOST_EXAMPLES, MOST_BYTES = 200_000, 4 * 2**30

Chosen = tuple[str, dict[str, Any]]


@dataclass
class Given:
    """Objects by kind and name, for :func:`harness.base.registry.given`."""

    entries: dict[tuple[str, str], Any] = field(default_factory=dict)

    def defense(self, one: object, arguments: dict[str, Any]) -> Chosen:
        """The name and the arguments of a defense: of a name, a class or an instance, also of some frameworks."""
        if isinstance(one, str | type | Defense):
            return self._strategy(one, DEFENSES, Defense, arguments)
        found = read_defense(one)
        if found is not None and arguments:
            raise UsageError("defense: an object has its settings; leave defense_args out")
        return found or self._strategy(one, DEFENSES, Defense, arguments)

    def attack(self, one: object, arguments: dict[str, Any]) -> Chosen:
        """The name and the arguments of an attack: of a name, a class or an instance."""
        return self._strategy(one, ATTACKS, Attacker, arguments)

    def data(self, one: object, classes: int = 0) -> str:
        """The name of a dataset: of a name, a pair (images, labels), a loader, or a dataset.

        Args:
            one: images (N, C, H, W), (N, H, W, C) or (N, H, W), float in [0, 1] or uint8, and labels (N,) from 0.
            classes: outputs of the network, where it has more than there are labels.

        Raises:
            UsageError: it is none of these, empty, without an end, or not of these shapes and ranges.
        """
        if isinstance(one, str | Path):
            return str(one)
        dataset = one if isinstance(one, Dataset) else _dataset(*_arrays(one))
        names = dataset.class_names + tuple(str(number) for number in range(dataset.num_classes, classes))
        name = f"{dataset.name}-{_digest(dataset.images.numpy(), dataset.labels.numpy())}"
        whole = replace(dataset, name=name, class_names=names)
        self.entries["dataset", name] = lambda root: whole
        return name

    def model(self, one: object) -> str:
        """The name of a network: of a name, a module, or a function (image_shape, classes) -> module.

        A module is copied, with its weights; the copy is put on the CPU and in training mode, as clients have it.

        Raises:
            UsageError: it is none of these, or cannot be copied.
        """
        if isinstance(one, str):
            return one
        if isinstance(one, nn.Module):
            module = _copy(one)
            name = f"{type(one).__name__}-{_digest_of(module)}"
            self.entries["model", name] = lambda shape, classes: copy.deepcopy(module)
            return name
        if callable(one):
            name = f"{getattr(one, '__name__', type(one).__name__).strip('<>')}-given"
            self.entries["model", name] = one
            return name
        raise _wrong("model", "a name, a torch.nn.Module or a function (image_shape, classes) -> module", one)

    def _strategy(self, one: object, registry: Registry[Any], base: type, arguments: dict[str, Any]) -> Chosen:
        if isinstance(one, str):
            return one, arguments
        kind = one if isinstance(one, type) else type(one)
        if not issubclass(kind, base) or not is_dataclass(kind):
            raise _wrong(registry.kind, f"a name, a class or an instance of {base.__name__}", one)
        if not isinstance(one, type):
            if arguments:
                raise UsageError(f"{registry.kind}: an object has its settings; leave {registry.kind}_args out")
            arguments = {setting.name: getattr(one, setting.name) for setting in fields(kind) if setting.init}
        name = registry.name_of(kind)
        if name is None:
            name = kind.__name__.strip("_").lower()
            self.entries[registry.kind, name] = kind
        return name, arguments


def outputs_of(model: object, data: object) -> int:
    """How many classes a module tells apart, 0 where that cannot be found out before it is attacked."""
    if not isinstance(model, nn.Module) or isinstance(data, str | Path):
        return 0
    images = data.images if isinstance(data, Dataset) else _dataset(*_arrays(data)).images
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return int(_copy(model).eval().float()(images[:1]).shape[-1])
    except Exception as error:  # the user's own code may raise anything
        why = f"it takes no images of shape {tuple(images.shape[1:])}: {in_one_line(error)}"
        raise UsageError(f"model: {why}; give it data of its own shape") from error


def _wrong(what: str, wanted: str, found: object) -> UsageError:
    shown = repr(found)
    return UsageError(f"{what}: give {wanted}, got {shown if len(shown) < 60 else type(found).__name__}")


def _copy(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module).cpu().train()
    except Exception as error:  # such as a tensor that is no leaf
        raise UsageError(
            f"model: {type(module).__name__} cannot be copied ({in_one_line(error)}); give a function "
            "(image_shape, classes) -> module"
        ) from error


def _arrays(one: object) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a pair, a loader or a dataset, in the order that they are stored in."""
    if isinstance(one, tuple | list) and len(one) == 2 and all(hasattr(part, "shape") for part in one):
        images, labels = (_array(part) for part in one)
    elif isinstance(one, DataLoader):
        images, labels = _joined(_in_order(one))
    elif isinstance(one, TorchDataset):
        images, labels = _joined(_in_order(DataLoader(one, batch_size=256)))
    else:
        raise _wrong("data", "a name, (images, labels), a DataLoader or a Dataset", one)
    if not len(images):
        raise UsageError("data: there are no examples; give at least as many as victims")
    return images, labels


def _in_order(loader: DataLoader) -> Iterable[Any]:
    """The batches of a loader without its shuffling, so that the same data give the same results."""
    if isinstance(loader.dataset, IterableDataset):
        return loader
    return DataLoader(loader.dataset, batch_size=loader.batch_size or 256, collate_fn=loader.collate_fn)


def _joined(batches: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    images, labels, size = list[np.ndarray](), list[np.ndarray](), 0
    try:
        for batch in itertools.chain(batches):
            if not isinstance(batch, tuple | list) or len(batch) < 2:
                raise UsageError("data: each batch must be (images, labels); give a loader that makes such")
            part, own = _array(batch[0]), _array(batch[1])
            images.append(part)
            labels.append(own.reshape(-1))
            size += part.nbytes
            if sum(map(len, labels)) > MOST_EXAMPLES or size > MOST_BYTES:
                raise UsageError(
                    f"data: there are more than {MOST_EXAMPLES:,} examples or 4 GiB, or no end; give (images, labels) "
                    "of those to attack"
                )
        return (np.concatenate(images), np.concatenate(labels)) if images else (np.empty(0), np.empty(0))
    except UsageError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"data: {in_one_line(error)}; give tensors, such as by transforms.ToTensor()") from error


def _array(values: object) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _dataset(images: np.ndarray, labels: np.ndarray) -> Dataset:
    labels = labels.reshape(-1)
    if len(images) != len(labels):
        raise UsageError(f"data: {len(images)} images and {len(labels)} labels; give one label per image")
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
    return build_dataset(DataFile(Path("data")), "data", images, labels, None, "given in Python")


def _digest(*arrays: np.ndarray) -> str:
    found = hashlib.sha256()
    for one in arrays:
        found.update(np.ascontiguousarray(one).tobytes())
    return found.hexdigest()[:8]


def _digest_of(module: nn.Module) -> str:
    buffer = io.BytesIO()
    for name, value in module.state_dict().items():
        buffer.write(name.encode() + _array(value.float() if value.is_floating_point() else value).tobytes())
    return hashlib.sha256(repr(module).encode() + buffer.getvalue()).hexdigest()[:8]
