"""Writes a capture: plain arrays and facts, nothing pickled."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from harness.base.errors import UsageError
from harness.judging.capture_record import BEFORE, FACTS, SENT, TRUTH, CaptureRecord
from harness.results.arrays import ENDINGS
from harness.results.atomic import remove_plain, write_atomic

Arrays = Mapping[str, Any]


def write_capture(
    folder: Path | str, record: CaptureRecord, before: Arrays, *, images: ArrayLike | None = None,
    labels: ArrayLike | None = None, **sent: Arrays,
) -> Path:  # fmt: skip
    """Write what one client sent in one round, and return the folder.

    Args:
        folder: of its own; files of an earlier capture there are replaced.
        record: how the client trained.
        before: the model that the client started from, arrays or tensors named as in its ``state_dict()``.
        images, labels: the truth, (n, C, H, W) in [0, 1] and (n,) in the order trained; it stays with who writes it.
        sent: one of ``after``, ``update`` (after less before) and ``gradient`` (of a single step), named as ``before``.

    Raises:
        UsageError: not exactly one of the three was given, images come without labels, or the folder cannot be written.
    """
    folder = Path(folder)
    if len(sent) != 1 or not sent.keys() <= set(SENT):
        raise UsageError(f"a capture holds one of {', '.join(SENT)}, not {', '.join(sent) or 'none'}")
    if (images is None) != (labels is None):
        raise UsageError("the truth of a capture is images with their labels; give both or neither")
    ((kind, moved),) = sent.items()
    # First: whatever happens now, nothing of an earlier capture stands beside this one.
    for stale in (FACTS, *(f"{stem}{end}" for stem in (BEFORE, TRUTH, *SENT) for end in ENDINGS)):
        remove_plain(folder / stale, "the capture's folder")
    write_atomic(folder / f"{BEFORE}.npz", _packed(before), "the capture's folder")
    write_atomic(folder / f"{kind}.npz", _packed(moved), "the capture's folder")
    if images is not None and labels is not None:
        write_atomic(folder / f"{TRUTH}.npz", _packed({"images": images, "labels": labels}), "the capture's folder")
    # Last: a folder without it is no capture.
    write_atomic(folder / FACTS, record.model_dump_json(indent=1).encode(), "the capture's folder")
    return folder


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    plain: dict[str, Any] = {name: _plain(value) for name, value in arrays.items()}
    np.savez(buffer, **plain)
    return buffer.getvalue()


def _plain(value: Any) -> np.ndarray:
    """An array as it is, or what a tensor of torch holds, wherever it lies."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
