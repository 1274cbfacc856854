"""Digests of what a run takes from its user's own files, so that a result made from other content is not reused."""

import hashlib
import importlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.attacks import ATTACKS
from harness.base.registry import Registry
from harness.datasets import DATASETS
from harness.datasets.catalogue import is_own_data
from harness.datasets.public import AUTO, NONE
from harness.defenses import DEFENSES
from harness.models import MODELS, find_factory
from harness.models.networks import PREFIX
from harness.models.tokenizers import tokenizer_file
from harness.results.files import Unreadable, sha256

#: What the digests are of, in words.
OWN_NAMES = {
    "model_source": "network's file", "dataset_file": "dataset's file", "dataset_source": "dataset's plugin",
    "defense_source": "defense's plugin", "attack_source": "attack's plugin",
    "prior_file": "public data's file", "prior_source": "public data's plugin",
}  # fmt: skip


def own_sources(model: str, dataset: str, defense: str = "none", attack: str = "", prior: str = NONE) -> dict[str, str]:
    """SHA-256 of what is not this project's: a user's own network (``module:factory``), .npz file and plugins.

    ``model`` is empty for the dataset's default network, ``dataset`` where there is none; ``attack`` is
    empty where nothing is attacked; ``prior`` says which data are public.
    The source is that of the module and of what it imports from its own folder or package; other installed packages
    are not part of it. A file that cannot be read is left out; whoever loads it says so.

    Raises:
        UsageError: the network cannot be imported, or a name is unknown.
    """
    found = {}
    model = model.partition("+")[0]  # changes are this project's
    if ":" in model:
        found["model_source"] = _source_of(model)
    elif model:
        found |= plugin_source(MODELS, model)
    if dataset:
        found |= _data_source("dataset", dataset)
    if prior not in (NONE, AUTO):
        found |= _data_source("prior", prior)
    found |= plugin_source(DEFENSES, defense)
    return found | plugin_source(ATTACKS, attack) if attack else found


def is_of_others(defense: str) -> bool:
    """Return whether a defense, or a part of a stack, comes from another package or from the caller's own code."""
    return bool(DEFENSES.outside(defense))


def own_files(model: str, *chosen: tuple[Registry[Any], str]) -> dict[Path, str | None]:
    """SHA-256 of every file that a user's own network and plugins were loaded from; torchvision's are nobody's own.

    Raises:
        UsageError: the network cannot be imported, or a name is unknown.
    """
    model, modules = model.partition("+")[0], list[str]()
    if ":" in model and not model.startswith(PREFIX):
        find_factory(model)
        modules.append(model.partition(":")[0])
    elif ":" not in model:
        modules += MODELS.outside(model)
    modules += [module for registry, name in chosen for module in registry.outside(name)]
    found = [file for module in modules if module in sys.modules for file in _files(sys.modules[module])]
    return {file: digest_of_file(file) for file in found}


def _source_of(model: str) -> str:
    """Return the digest of a user's network, and of the tokenizer that it brings. For torchvision, which no user
    changes, return that of the version."""
    tokenizer, module = tokenizer_file(model), model.partition(":")[0]
    if module == PREFIX[:-1]:
        return _digest_of([version(module)])
    source, own = _digest_of_all(importlib.import_module(module)), tokenizer and digest_of_file(tokenizer)
    return _digest_of([source, own]) if own else source


def _data_source(role: str, name: str) -> dict[str, str]:
    """The digest of an own file, or of the plugin behind a registered dataset."""
    if not is_own_data(name):
        return {f"{role}_source": digest for digest in plugin_source(DATASETS, name).values()}
    digest = digest_of_file(Path(name).expanduser())
    return {f"{role}_file": digest} if digest else {}


def plugin_source(registry: Registry[Any], name: str) -> dict[str, str]:
    """The digest of the plugins behind a registered name, or a stack, as they were loaded; {} where there are none."""
    digests = [_as_loaded(sys.modules[module]) for module in registry.outside(name) if module in sys.modules]
    return {f"{registry.kind}_source": _digest_of(digests)} if digests else {}


@cache
def _as_loaded(module: ModuleType) -> str:
    """Return what a module is made from; edits after it was first asked for are not what this process runs."""
    return _digest_of_all(module)


def _digest_of_all(module: ModuleType) -> str:
    return _digest_of(filter(None, map(digest_of_file, _files(module))))


def _digest_of(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _files(module: ModuleType) -> list[Path]:
    """The files of a module and of all imported ones of its package, or in its folder and below, in order."""
    file = getattr(module, "__file__", None)
    if file is None:
        return []
    own, package = Path(file).resolve(), module.__name__.partition(".")[0]
    places = {
        (key.partition(".")[0], _resolved(path))
        for key, other in list(sys.modules.items())
        if key != "__main__" and (path := getattr(other, "__file__", None))
    }
    beside = {
        path for top, path in places
        if top == package or (path.is_relative_to(own.parent) and not _is_installed(path))
    }  # fmt: skip
    return sorted({own} | beside)


@cache
def _resolved(path: str) -> Path:
    """Thousands of modules are asked for their place at every cell."""
    return Path(path).resolve()


def _is_installed(path: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.parts))


def digest_of_file(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None where it cannot be read."""
    try:
        return sha256(path)
    except Unreadable:
        return None
