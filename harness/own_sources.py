"""Digests of what a run takes from its user's own files, so that a result made from other content is never reused."""

import hashlib
import inspect
from functools import lru_cache
from pathlib import Path

from harness.models import find_factory


def own_sources(model: str, dataset: str) -> dict[str, str]:
    """SHA-256 of the file of a user's own network (``module:factory``) and of an own .npz file; {} where neither is.

    A file that cannot be read has none; whoever loads it says so.
    """
    files = {}
    if ":" in model:
        files["model_source"] = inspect.getsourcefile(inspect.unwrap(find_factory(model)))
    if dataset.endswith(".npz"):
        files["dataset_file"] = dataset
    found = {name: _digest(Path(file).expanduser()) for name, file in files.items() if file}
    return {name: digest for name, digest in found.items() if digest}


def _digest(path: Path) -> str | None:
    try:
        now = path.stat()
        return _digest_of(path, now.st_mtime_ns, now.st_size)
    except OSError:
        return None


@lru_cache(maxsize=32)
def _digest_of(path: Path, modified: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
