"""``evaluate`` and ``train`` as functions of keyword arguments: the settings of a run, validated as the commands do."""

import copy
import hashlib
import io
import itertools
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import StrictBool
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from harness.attacks import ATTACKS, Attacker
from harness.base.building import Arguments, require_known, typed
from harness.base.devices import choose_device
from harness.base.errors import UsageError, in_one_line
from harness.base.registry import Registry, given
from harness.datasets import Dataset
from harness.datasets import data_root as find_data_root
from harness.datasets.files import DataFile
from harness.datasets.record import build_dataset
from harness.defenses import DEFENSES, Defense
from harness.evaluation import Run
from harness.evaluation import evaluate as evaluate_cells
from harness.experiment import CellSettings, check_adversary, expand, usual_prior
from harness.reports.html.outcome import Kept, Outcome, read_outcome
from harness.results import NoFolder, RunFolder
from harness.results.atomic import claimed
from harness.training import TrainDocument, TrainFolder, TrainOptions, TrainSettings, fitted, train_settings
from harness.training import train as train_run

# --------------------------------------------------------------------------------------
# What Python gives in the place of names: modules, tensors, loaders, defenses and attacks, under names of their own.
#
# A name is made of the class and a digest of the content, so that results of the same objects have the same names.


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
    """Return how many classes a module tells apart, 0 where that cannot be found out before it is attacked."""
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


# --------------------------------------------------------------------------------------
# Defenses as objects of Flower, Opacus and NVFlare, read for their settings: nothing of them is called.


_FIXED = ("noise_multiplier", "clipping_norm", "num_sampled_clients")
#: What an object is here, and its attributes that are arguments there, by the name of its class.
_READ: dict[str, tuple[str, tuple[str, ...]]] = {
    "DifferentialPrivacyServerSideFixedClipping": ("flower:ServerSideFixedClipping", _FIXED),
    "DifferentialPrivacyClientSideFixedClipping": ("flower:ClientSideFixedClipping", _FIXED),
    "LocalDpMod": ("flower:LocalDpMod", ("clipping_norm", "sensitivity", "epsilon", "delta")),
    "PercentilePrivacy": ("nvflare:PercentilePrivacy", ("percentile", "gamma")),
    "DPOptimizer": ("opacus:PrivacyEngine", ("noise_multiplier", "max_grad_norm")),
}
#: Objects that no longer hold what they were given, and what to give instead.
_UNREADABLE = {
    "PrivacyEngine": "it holds neither noise nor bound; give the optimizer that make_private returns",
    "SVTPrivacy": "its order depends on NVFlare's version; name nvflare:SVTPrivacy with defense_args",
    "DPPerLayerOptimizer": "its bounds are combined; name opacus:PrivacyEngine with defense_args",
    "DifferentialPrivacyServerSideAdaptiveClipping":
        "it keeps another noise_multiplier than it was given; name flower:ServerSideAdaptiveClipping with defense_args",
    "DifferentialPrivacyClientSideAdaptiveClipping":
        "it keeps another noise_multiplier than it was given; name flower:ClientSideAdaptiveClipping with defense_args",
}  # fmt: skip


def read_defense(one: object) -> tuple[str, dict[str, Any]] | None:
    """The name and the arguments of a framework's object here; None where it is none that is known.

    Args:
        one: a mod or a strategy of Flower, an optimizer of Opacus, a filter of NVFlare.

    Raises:
        UsageError: it cannot be read.
    """
    kind = type(one).__name__
    if kind in _UNREADABLE:
        raise UsageError(f"defense: {kind} cannot be read: {_UNREADABLE[kind]}")
    if kind in _READ:
        name, settings = _READ[kind]
        if lacking := [each for each in settings if not hasattr(one, each)]:
            raise UsageError(f"defense: this {kind} has no {lacking[0]}; name {name} with defense_args")
        return name, {each: getattr(one, each) for each in settings}
    return None


# --------------------------------------------------------------------------------------
# The functions.


_ALONE = threading.RLock()


@typed
def evaluate(
    *, defense: Any, attack: Any = "cpl", tap: str | list[str] = "T2.step", data: Any = None, model: Any = None,
    defense_args: Arguments | None = None, attack_args: Arguments | None = None,
    device: str = "auto", adversary: str | None = None, chunk: int = 128, out: str | Path | None = None,
    data_root: str | Path | None = None, resume: StrictBool = False, all_members: StrictBool = False, **settings: Any,
) -> Outcome:  # fmt: skip
    """Attacks clients that train under every one of the defenses, by every attack at every tap, and judges what leaks.

    Calls from several threads wait for each other. A module is copied: its weights, mode and hooks stay as they are.

    Args:
        defense, attack: a name, a class or an instance, or a list of such; ``attack="auto"`` is the latest suite. A
            defense may be an object of a framework: Flower's ``LocalDpMod`` and strategies of fixed clipping, the
            optimizer of Opacus, NVFlare's ``PercentilePrivacy``.
        data: a name, (images, labels), a ``DataLoader`` or a ``Dataset``; another word for ``dataset``. Images are
            (N, C, H, W), (N, H, W, C) or (N, H, W), float in [0, 1] or uint8; labels are (N,) from 0.
        model: a name, a ``torch.nn.Module``, whose weights all victims then share, or a function
            (image_shape, classes) -> module.
        defense_args, attack_args: settings of every one of them; call it once for each that has settings of its own.
        adversary: ``honest`` refuses attacks that tamper with the model, ``tampering`` asks for one.
        out: folder for the files of the run; None writes nothing.
        resume: go on with an earlier run in ``out``; not with a module, defense or attack of one's own, whose code may
            have changed.
        all_members: run every member of a suite, also where an earlier one settled the place.
        settings: the fields of :class:`harness.experiment.CellSettings`: ``dataset``, ``model``, ``victims``, ...

    Returns:
        The results: an object with the document that ``harness evaluate --json`` prints as its ``document``.

    Raises:
        UsageError: unknown names or settings, objects of another kind, values out of range, impossible combinations.
    """
    _refuse_chunk(chunk, 1)
    require_known(settings, CellSettings.model_fields)
    if resume and out is None:
        raise UsageError("resume goes on with the files of a folder; name it with out")
    own = Given()
    grid = {
        "defense": [own.defense(one, defense_args or {}) for one in _listed(defense)],
        "attack": [own.attack(one, attack_args or {}) for one in _listed(attack)],
        "tap": _listed(tap),
    }
    settings |= _named(own, data, model, settings)
    if resume and (unsure := next((kind for kind, _ in own.entries if kind != "dataset"), None)):
        # Their names say which weights and settings they have, and nothing of the code behind them.
        raise UsageError(f"resume cannot tell whether the code of a given {unsure} changed; leave resume out")
    with _ALONE, given(own.entries):
        settings.setdefault("prior", usual_prior([name for name, _ in grid["attack"]]))
        cells = expand(grid, device=choose_device(device), **settings)
        check_adversary(adversary, cells)
        kept = Kept()
        with claimed(Path(out)) if out is not None else nullcontext():
            folder = RunFolder(out) if out is not None else NoFolder()
            run = Run(
                find_data_root(data_root), folder if resume else folder.anew(), chunk, resume, kept.draw,
                settles=not all_members,
            )  # fmt: skip
            document = evaluate_cells(cells, run)
    return kept.outcome(document, run.done.values(), out)


def _named(own: Given, data: Any, model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that stand for the data and the network."""
    if data is not None and "dataset" in settings:
        raise UsageError("data and dataset are one thing; give one of them")
    data = settings.get("dataset") if data is None else data
    found: dict[str, Any] = {}
    if data is not None:
        found["dataset"] = own.data(data, outputs_of(model, data))
    if model is not None:
        found["model"] = own.model(model)
    if isinstance(model, nn.Module):
        found["shared_weights"] = True
    return found


@typed
def load(folder: str | Path) -> Outcome:
    """Read the results of a run from its folder.

    Raises:
        UsageError: there are none, they cannot be read, or a verdict is not that of its victims.
    """
    return read_outcome(Path(folder))


@typed
def train(
    *, defense_args: Arguments | None = None, device: str = "auto", chunk: int = 25,
    keep: tuple[int, ...] = (), out: str | Path = "training", data_root: str | Path | None = None,
    resume: StrictBool = False, **settings: Any,
) -> TrainDocument:  # fmt: skip
    """Trains a federation under a defense.

    Args:
        keep: rounds whose model is kept for attacks.
        settings: the fields of :class:`harness.training.TrainSettings`: ``defense``, ``dataset``, ``rounds``, ...

    Returns:
        The document that ``harness train --json`` prints, written to ``out`` too.

    Raises:
        UsageError: unknown names or settings, values out of range, impossible combinations.
    """
    _refuse_chunk(chunk, 2)
    require_known(settings, {*TrainSettings.model_fields, "keep"})
    root = find_data_root(data_root)
    chosen = fitted(train_settings(defense_args=defense_args or {}, device=choose_device(device), **settings), root)
    return train_run(chosen, root, TrainFolder(Path(out)), TrainOptions(chunk, keep=keep, resume=resume))


def _listed(named: Any) -> list[Any]:
    return list(named) if isinstance(named, list | tuple) else [named]


def _refuse_chunk(chunk: int, least: int) -> None:
    if chunk < least:
        raise UsageError(f"chunk must be at least {least}, got {chunk}")
