"""The truth of a capture: how many examples it has, and which of them is in each place of the client's steps."""

import math
import sys
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.words import Words
from harness.datasets import Dataset
from harness.datasets.files import DataFile
from harness.datasets.record import build_dataset
from harness.defenses import DEFENSES
from harness.federation.taps import Tap
from harness.judging.capture import FACTS, Capture, CaptureRecord
from harness.judging.framework_defenses import translated
from harness.judging.texts import true_texts


def as_drawn(capture: Capture) -> CaptureRecord:
    """What a capture says, with as many examples as its truth has.

    Another number than the batch of a single step under a clip of each example was drawn (Poisson), and ``batch_size``
    is what was expected. Else fewer than the steps take are a smaller last batch.
    """
    record, count = capture.record, capture.truths
    steps = 1 if capture.kind == "gradient" else record.local_steps
    usual = record.step_size if capture.kind == "gradient" else record.truths
    if count * _passes(capture) in (0, usual) or record.expected_batch_size or record.accumulate > 1:
        return record
    if steps == 1 and clips_examples(record):
        return record.model_copy(update={"batch_size": count, "expected_batch_size": float(record.batch_size)})
    each, rest = divmod(count, record.epochs or 1)
    last = each - record.batch_size * (steps // (record.epochs or 1) - 1)
    if rest or record.examples is not None or not 0 < last < record.batch_size:
        return record
    return record.model_copy(update={"batch_size": last} if steps == 1 else {"examples": each})


def clips_examples(record: CaptureRecord) -> bool:
    declared = translated(record.defense)
    if declared is None:
        return False
    clipping = build(DEFENSES, declared.name, declared.settings).clipping_at(Tap.STEP, record.learning_rate)
    return clipping is not None and clipping.unit == "example"


def tell_smaller(captures: Sequence[Capture], drawn: Sequence[Capture]) -> None:
    changed = [two for one, two in zip(captures, drawn, strict=True) if one.record != two.record]
    smaller = [capture for capture in changed if capture.record.expected_batch_size is None]
    if smaller:
        sizes = sorted({capture.record.step_sizes()[-1] for capture in smaller})
        sys.stderr.write(
            f"harness: the truth of {len(smaller)} capture(s), such as {str(smaller[0].folder)!r}, is smaller than "
            f"batch_size and local_steps make: their last batch is taken to be of {', '.join(map(str, sizes))}\n"
        )


def truth_of(capture: Capture, words: Words | None) -> tuple[Tensor, Tensor]:
    """Images (n, C, H, W) and labels (n,) of one client, as the counts in its record demand, in the places of its
    steps."""
    record = capture.record
    expected = record.step_size if capture.kind == "gradient" else record.truths
    # Asked before values are read: they may be more than memory holds.
    if capture.truths * _passes(capture) != expected:
        held = f"{capture.truths} true {record.kind.many}"
        drawn = capture.kind != "gradient" and record.local_steps > 1 and clips_examples(record)
        without = " (of steps on Poisson batches of different sizes, leave the truth out: then it is judged without)"
        times, rest = divmod(expected, max(1, capture.truths))
        again = f', or "epochs": {times} if it passed over these {times} times' if times > 1 and not rest else ""
        raise UsageError(
            f"capture {str(capture.folder)!r}: {held}, but batch_size {record.batch_size} and local_steps "
            f"{record.local_steps} make {expected}; give those the client trained on, in order{again}{without * drawn}"
        )
    count = expected // _passes(capture)
    images, labels = true_texts(capture, words, count) if record.data == "text" else _true_images(capture, count)
    places = range(expected) if capture.kind == "gradient" else record.slots()
    taken = [place % count for place in places]
    return images[taken], labels[taken]


def _passes(capture: Capture) -> int:
    """Passes over the examples of a truth that holds each of them once; 1 where it holds those of each pass."""
    epochs = 1 if capture.kind == "gradient" else capture.record.epochs or 1
    return epochs if capture.truths * epochs == capture.record.truths else 1


def _true_images(capture: Capture, expected: int) -> tuple[Tensor, Tensor]:
    assert capture.truth is not None
    found, record = capture.truth, capture.record
    file, shape = DataFile(found.path), found.shapes["images"]
    if math.prod(shape) != expected * math.prod(record.image_shape) or math.prod(found.shapes["labels"]) != expected:
        right = math.prod(shape) == expected * math.prod(record.image_shape)
        one_each = f"give one number, its class, as the label of each {record.kind.one}"
        raise file.wrong(
            f"has images of shape {shape[1:]} and labels {found.shapes['labels']}, not {tuple(record.image_shape)} and "
            f"({expected},)", one_each if right else "check image_shape",
        )  # fmt: skip
    truth = checked_truth(file, found["images"], found["labels"], record)
    return truth.images, truth.labels


def checked_truth(file: DataFile, images: np.ndarray, labels: np.ndarray, record: CaptureRecord) -> Dataset:
    """True images through the gate of all datasets. Raises UsageError."""
    classes = tuple(str(label) for label in range(record.classes))
    found = build_dataset(file, "truth", np.asarray(images), np.asarray(labels), classes, "truth of a capture")
    if found.image_shape != tuple(record.image_shape):
        raise file.wrong(
            f"has images of shape {found.image_shape}, not {tuple(record.image_shape)}", "check image_shape"
        )
    stray = record.columns and record.columns.stray(found.images)
    if stray:
        raise file.wrong(f"has rows of other columns: {stray}", f"correct columns in {FACTS}, or the truth")
    return found
