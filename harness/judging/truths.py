"""The truth of captures: how many examples, which is in each place of the client's steps, and what the tokens of texts
mean; and data of the same kind."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from harness.base.building import build
from harness.base.errors import UsageError
from harness.base.randomness import generator
from harness.base.words import MARKS, PAD, Words, images_of, tokens_of
from harness.datasets import Dataset
from harness.datasets.files import DataFile
from harness.datasets.record import build_dataset
from harness.defenses import DEFENSES
from harness.federation.taps import Hook, Tap
from harness.judging.capture import FACTS, Capture, CaptureRecord
from harness.judging.framework_defenses import translated
from harness.models.tokenizers import read_tokenizer
from harness.observation import Observation
from harness.results.files import sha256

_FIX = "give the tokenizer.json that belongs to the network"
# Where the numbers of two tokens are swapped, so that 0 fills places.
_ALL_PLACES = "truth, tokenizer.json and the factory's lookup"


def as_drawn(capture: Capture) -> CaptureRecord:
    """Return what a capture says, with as many examples as its truth has.

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
    """Return whether the declared defense clips the gradient of each example."""
    declared = translated(record.defense)
    if declared is None:
        return False
    clipping = build(DEFENSES, declared.name, declared.settings).clipping_at(Tap.STEP, record.learning_rate)
    return clipping is not None and clipping.unit == "example"


def goes_by_size(record: CaptureRecord) -> bool:
    """Return whether the declared defense clips gradients or adds noise to them, so that their size counts."""
    declared = translated(record.defense)
    flow = [] if declared is None else build(DEFENSES, declared.name, declared.settings).flow()
    return any(one.at.hook is Hook.CLIENT_STEP and (one.clips or one.noises) for _, one in flow)


def tell_smaller(captures: Sequence[Capture], drawn: Sequence[Capture]) -> None:
    """Says which truths are smaller than their record makes them, and how that is taken; ``drawn``: as it is taken."""
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
    steps.

    Raises:
        UsageError: the truth has another number of examples, or other shapes.
    """
    record = capture.record
    expected = record.step_size if capture.kind == "gradient" else record.truths
    # Asked before values are read: they may be more than memory holds.
    if capture.truths * _passes(capture) != expected:
        held = f"{capture.truths} true {record.kind.many}"
        drawn = capture.kind != "gradient" and record.local_steps > 1 and clips_examples(record)
        without = " (of steps on Poisson batches of different sizes, leave the truth out: then it is judged without)"
        times, rest = divmod(expected, capture.truths or expected)
        again = f', or "epochs": {times} if it passed over these {times} times' if times > 1 and not rest else ""
        whole = capture.kind == "gradient" and capture.truths == record.truths
        again = "; the change of all steps is no gradient: give after less before in update.npz" if whole else again
        each = f", accumulate {record.accumulate}" if record.accumulate > 1 else ""
        steps = "the one step of a gradient" if capture.kind == "gradient" else f"local_steps {record.local_steps}"
        raise UsageError(
            f"capture {str(capture.folder)!r}: {held}, but batch_size {record.batch_size}{each} and {steps} make "
            f"{expected}; give those the client trained on, in order{again}{without * drawn}"
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
    flat = record.image_shape[0] == 1 and shape == (expected, math.prod(record.image_shape))
    if math.prod(shape) != expected * math.prod(record.image_shape) or math.prod(found.shapes["labels"]) != expected:
        right = math.prod(shape) == expected * math.prod(record.image_shape)
        one_each = f"give one number, its class, as the label of each {record.kind.one}"
        raise file.wrong(
            f"has images of shape {shape[1:]} and labels {found.shapes['labels']}, not {tuple(record.image_shape)} and "
            f"({expected},)", one_each if right else "check image_shape",
        )  # fmt: skip
    images = found["images"]
    if flat:  # as the rows of a table are
        images = images.reshape(expected, *record.image_shape)
    if _is_table(record) and images.dtype.kind == "f" and images.size and (images.min() < 0 or images.max() > 1):
        raise file.wrong(
            f"has numbers from {float(images.min()):.4g} to {float(images.max()):.4g}",
            "scale the columns of a table to [0, 1], and let the network of the factory scale them back first",
        )
    truth = checked_truth(file, images, found["labels"], record)
    return truth.images, truth.labels


def _is_table(record: CaptureRecord) -> bool:
    return record.columns is not None or record.image_shape[:2] == (1, 1)


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


# Texts.


def words_of_captures(captures: Sequence[Capture]) -> Words | None:
    """The tokens of captures' tokenizers, which is one; None where they bring none.

    Raises:
        UsageError: it cannot be read, is not the network's, or captures bring several.
    """
    named = [(capture, capture.tokenizer) for capture in captures if capture.tokenizer is not None]
    if not named:
        return None
    first, path = named[0]
    words, most = read_tokenizer(path), first.record.vocabulary or 0
    if len(words.vocabulary) > most:
        raise UsageError(
            f"{str(path)!r} has {len(words.vocabulary)} tokens, and the network's vocabulary {most}; {_FIX}"
        )
    for capture, other in named[1:]:
        if sha256(other) != sha256(path):
            both = f"{str(first.folder)!r} and {str(capture.folder)!r}"
            raise UsageError(f"captures {both} have different tokenizers; judge them separately")
    return words


def whole_vocabulary(words: Words | None, record: CaptureRecord) -> Words | None:
    """These words, and for the numbers that a network knows beyond them the numbers themselves; None for images."""
    if record.vocabulary is None:
        return None
    known = words or Words(MARKS[:1])
    more = (f"[{number}]" for number in range(len(known.vocabulary), record.vocabulary))
    return replace(known, vocabulary=(*known.vocabulary, *more))


def true_texts(capture: Capture, words: Words | None, expected: int) -> tuple[Tensor, Tensor]:
    """True texts as images (n, 1, BITS, T), and labels (n,), in the order trained.

    Raises:
        UsageError: they are no texts of the network's.
    """
    record, found = capture.record, capture.truth
    assert found is not None and record.places is not None  # as of all texts
    file, shapes = DataFile(found.path), found.shapes
    width = shapes["tokens"][1] if len(shapes["tokens"]) == 2 else 0
    if not width or any(shapes[name] != (expected,) for name in ("lengths", "labels")):
        told = ", ".join(f"{name} {shapes[name]}" for name in ("tokens", "lengths", "labels"))
        raise file.wrong(f"has {told}", f"give tokens ({expected}, T), lengths ({expected},) and labels ({expected},)")
    tokens, lengths, labels = (_whole_numbers(file, name, found[name]) for name in ("tokens", "lengths", "labels"))
    _require_lengths(file, lengths, width, record)
    there = np.arange(width) < lengths[:, None]
    _require_tokens(file, tokens[there], tokens[~there], record, words)
    if labels.min() < 0 or labels.max() >= record.classes:
        said = f"has labels from {labels.min()} to {labels.max()}"
        raise file.wrong(said, f"number the {record.classes} classes from 0")
    return images_of(_in_places(torch.from_numpy(tokens), record.places)), torch.from_numpy(labels)


def _in_places(tokens: Tensor, places: int) -> Tensor:
    """Tokens (N, places) of texts (N, T), none of which is longer."""
    return torch.nn.functional.pad(tokens[:, :places], (0, max(0, places - tokens.shape[1])), value=PAD)


def _whole_numbers(file: DataFile, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "iu":
        raise file.wrong(f"has {name} of type {values.dtype}", f"save {name} as integers")
    return values.astype(np.int64)


def _require_lengths(file: DataFile, lengths: np.ndarray, width: int, record: CaptureRecord) -> None:
    """Raises UsageError: a text is empty, or longer than its tokens or the network's places."""
    least, most = int(lengths.min()), int(lengths.max())
    if least < 1:
        number = int(lengths.argmin()) + 1
        raise file.wrong(f"has an empty text, number {number} (length {least})", "leave it out of the batch")
    if most > (record.places or 0):
        fix = f"correct places in {FACTS}, or cut texts as the client did"
        raise file.wrong(f"has a text of {most} tokens, and the network {record.places} places", fix)
    if most > width:
        raise file.wrong(f"has a text of {most} tokens in {width} columns", "give lengths that fit tokens")


def _require_tokens(
    file: DataFile, used: np.ndarray, behind: np.ndarray, record: CaptureRecord, words: Words | None
) -> None:  # fmt: skip
    """Raises UsageError: a number is no token of the network's, or of its tokenizer's, or fills a place of a text."""
    most, odd = (record.vocabulary or 0) - 1, int(used.min() if used.min() < 0 else used.max())
    if not 0 <= odd <= most:
        fix = f"correct vocabulary in {FACTS}, or tokens"
        raise file.wrong(f"has token {odd}, and the network knows 0 to {most}", fix)
    if (used == PAD).any():
        fix = f"correct lengths; where another token fills places, swap its number and {PAD} in {_ALL_PLACES}"
        raise file.wrong(f"has token {PAD} within a text, which fills places behind it", fix)
    if (behind != PAD).any():
        token = int(behind[behind != PAD][0])
        fix = f"write {PAD} there; where {token} fills places, swap the numbers {PAD} and {token} in {_ALL_PLACES}"
        raise file.wrong(f"has token {token} behind the end of a text", fix)
    if words is not None and odd >= len(words.vocabulary):
        raise file.wrong(f"has token {odd}, which the tokenizer lacks", _FIX)


def of_their_kind(data: Dataset, record: CaptureRecord, choice: str, known: Words | None) -> Dataset:
    """Data in the words of captured texts, as many tokens wide as the network.

    Args:
        known: the tokens of the captures' tokenizer; None where they bring none, and then they are those of the data.

    Raises:
        UsageError: they are no texts, or their numbers cannot be those of the captures.
    """
    most, places = record.vocabulary or 0, record.places or 0
    if data.words is None:
        raise UsageError(f"--prior {choice!r} holds no texts, and the captures do; use texts of the same kind")
    if known is None and data.fitted_to is not None:
        raise UsageError(
            f"--prior {choice!r} needs the network's tokenizer; put its tokenizer.json into the captures' folders, and "
            f'"tokenizer": "tokenizer.json" into {FACTS}'
        )
    if len(data.words.vocabulary) > most:
        raise UsageError(
            f"--prior {choice!r} has {len(data.words.vocabulary)} words, and the network's vocabulary {most}; use "
            "texts in the network's vocabulary"
        )
    tokens = tokens_of(data.images)
    fit = (tokens[:, places:] == PAD).all(1)
    data = data.take(fit.nonzero()[:, 0])
    return replace(
        data, images=images_of(_in_places(tokens[fit], places)), words=whole_vocabulary(data.words, record), texts=None
    )


# How well texts explain what was sent, where nobody knows the truth.

# Coordinates that are looked at, by far more than there are examples times labels.
_LOOKED_AT = 200_000


def unexplained(seen: Observation, images: Tensor) -> np.ndarray:
    """The share (R,) of what each client sent that texts (R, n, 1, BITS, T) leave unexplained, whatever their labels.

    Cross-entropy's gradient is linear in the label, so that what a batch sends is a sum of the gradients of its texts
    under every label, each with a factor of its own; the factors of a clip are among these.
    """
    total = seen.target.shape[1]
    some = torch.randperm(total, generator=generator("unexplained", total))[:_LOOKED_AT].to(seen.target.device)
    shares = []
    for row, texts in enumerate(images):
        target = seen.target[row, some].double()
        sent = target.norm().clamp_min(1e-300)
        made = torch.stack([_gradient(seen, row, text, label)[some].double()
                            for text in texts for label in range(seen.model.classes)])  # fmt: skip
        fitted = torch.linalg.lstsq(made.T, target[:, None], driver="gelsd" if made.is_cpu else "gels").solution
        shares.append(float((target - (made.T @ fitted)[:, 0]).norm() / sent))
    return np.array(shares)


def _gradient(seen: Observation, row: int, text: Tensor, label: int) -> Tensor:
    """The gradient (P,) of one text under a label."""
    where = seen.target.device
    labels = torch.full((1, 1), label, device=where)
    return seen.model.gradient(seen.weights[row : row + 1], text[None, None].to(seen.target), labels)[0]
