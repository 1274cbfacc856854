"""Digests of what a run takes from its user's own files, so that a result made from other content is not reused."""

import hashlib
import importlib
import sys
from pathlib import Path

from harness.models import find_factory

#: What the digests are of, in words.
OWN_NAMES = {"model_source": "network", "dataset_file": "dataset"}


def own_sources(model: str, dataset: str) -> dict[str, str]:
    """SHA-256 of the source of a user's own network (``module:factory``) and of an own .npz file; {} where neither is.

    The source is that of the module and of what it imports from its own folder; installed packages are not part of it.
    A file that cannot be read is left out; whoever loads it says so.

    Raises:
        UsageError: the network cannot be imported.
    """
    found = {}
    if ":" in model:
        find_factory(model)
        digests = [_digest(file) for file in _imported_beside(model.partition(":")[0])]
        found["model_source"] = hashlib.sha256("".join(filter(None, digests)).encode()).hexdigest()
    if dataset.endswith(".npz") and (digest := _digest(Path(dataset).expanduser())):
        found["dataset_file"] = digest
    return found


def _imported_beside(name: str) -> list[Path]:
    """The files of a module and of all imported ones in its folder and below, in order."""
    file = getattr(importlib.import_module(name), "__file__", None)
    if file is None:
        return []
    own = Path(file).resolve()
    places = {
        Path(path).resolve()
        for key, module in list(sys.modules.items())
        if key != "__main__" and (path := getattr(module, "__file__", None))
    }
    return sorted({own} | {path for path in places if path.is_relative_to(own.parent) and not _is_installed(path)})


def _is_installed(path: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.parts))


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
