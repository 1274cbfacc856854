"""A user's own texts: a file with the columns ``text`` and ``label``, CSV or Parquet."""

import csv
import importlib
import io
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.base.errors import UsageError, in_one_line
from harness.base.limits import log
from harness.base.words import PAD, Words, images_of, most_frequent, tokens_of
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, class_numbers
from harness.results.files import MOST_OF_A_DOCUMENT, Unreadable, read_bytes

#: Most places of own texts; what is longer is cut, and told.
MOST_PLACES = 64
_COLUMNS = ("text", "label")
_MEND = "give a file with the columns text and label"
# Whoever has images or numbers in such a file may not know that it is taken for texts.
_NUMBERS = "save images and tables of numbers as .npz: numpy.savez('NEW.npz', images=images, labels=labels)"
_KEPT = "\t\n\r"


def load_own_texts(path: Path, words: Words | None, places: int | None) -> Dataset:
    """Read a file of texts; the dataset is named by the file's name alone.

    Args:
        words: how texts become tokens; None for the most frequent words of the file itself.
        places: most tokens of a text; None for as many as the longest has, up to :data:`MOST_PLACES`.

    Raises:
        UsageError: missing or damaged file, or something else than labelled texts.
    """
    file = DataFile(path)
    texts, labels = _columns(file)
    _require_texts(file, texts)
    numbers, names = class_numbers(file, labels)
    if len(names) < 2:
        raise file.wrong("has texts of one class only", "give two classes: a network that tells one learns nothing")
    dataset = Dataset(
        path.name, torch.zeros(0), torch.from_numpy(numbers), names, f"own texts, {path.name}", texts=tuple(texts),
        fitted_to=None if words else "the most frequent words of its own texts",
    )  # fmt: skip
    return read_by(dataset, words or most_frequent(texts), places)


def read_by(dataset: Dataset, words: Words | None, places: int | None = None) -> Dataset:
    """The dataset with its texts as tokens of ``words``; the dataset itself where these are its own, or None.

    Raises:
        UsageError: it does not hold what was written, or a text has no token.
    """
    if words is None or words == dataset.words or not (dataset.words or dataset.texts):
        return dataset
    if dataset.texts is None:
        raise UsageError(
            f"dataset {dataset.name!r} keeps tokens of its own and no texts, which this model's tokenizer has to read; "
            "use --model text_transformer, or give the texts as a .csv"
        )
    lengths = np.array(words.lengths(dataset.texts))
    if not lengths.all():
        raise UsageError(
            f"{dataset.name} has a text without a word, number {int((lengths == 0).argmax()) + 1}; leave it out"
        )
    room = places or int(min(lengths.max(), MOST_PLACES))
    read = replace(dataset, words=words, images=images_of(words.tokens(dataset.texts, room)))
    _tell_what_is_lost(read, int((lengths > room).sum()))
    return read


def _tell_what_is_lost(dataset: Dataset, cut: int) -> None:
    tokens, words = tokens_of(dataset.images), dataset.words
    assert words is not None
    unknown = float((tokens == words.unknown).sum()) / float((tokens != PAD).sum()) if words.unknown else 0.0
    lost = [f"{unknown:.1%} of its tokens are not among the {len(words.vocabulary):,} of the vocabulary"] * (
        unknown > 0
    )
    lost += [f"{cut:,} of {len(tokens):,} texts are cut to {tokens.shape[1]} tokens"] * (cut > 0)
    if lost:
        log.warning("harness: %s: %s", dataset.name, "; ".join(lost))


def _columns(file: DataFile) -> tuple[list[str], list[str]]:
    """The texts and what stands as their labels."""
    try:
        content = read_bytes(file.path, MOST_OF_A_DOCUMENT)
    except Unreadable as problem:
        raise file.wrong(problem.reason, "check the path and its permissions") from problem
    read = _of_parquet if file.path.suffix == ".parquet" else _of_csv
    columns = read(file, content)
    missing = [name for name in _COLUMNS if name not in columns]
    if missing:
        raise file.wrong(
            f"has no column {missing[0]!r}",
            f"{_MEND}, or {_NUMBERS}",
        )
    texts, labels = (columns[name] for name in _COLUMNS)
    if not texts:
        raise file.wrong("has no rows", _MEND)
    return texts, labels


def _of_csv(file: DataFile, content: bytes) -> dict[str, list[str]]:
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        found = list(rows)
    except UnicodeDecodeError as error:
        raise file.wrong("is no text in UTF-8", "save it as one") from error
    except csv.Error as error:
        raise file.wrong(f"is no CSV file ({in_one_line(error)})", _MEND) from error
    named = [name for name in rows.fieldnames or [] if name in _COLUMNS]
    ragged = next((place for place, row in enumerate(found) if None in row or None in row.values()), None)
    if ragged is not None:
        raise file.wrong(f"has other columns in row {ragged + 1} than in its head", "put texts with commas in quotes")
    return {name: [row[name] for row in found] for name in named}


def _of_parquet(file: DataFile, content: bytes) -> dict[str, list[str]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")  # compiled, without types
    except ImportError as error:
        mend = f"pip install 'gradient-leakage-harness[text]', save texts as .csv, or {_NUMBERS}"
        raise file.wrong("needs pyarrow", mend) from error
    try:
        table = parquet.read_table(io.BytesIO(content))
        named = [name for name in _COLUMNS if name in table.column_names]
        columns = {name: table.column(name).to_pylist() for name in named}
    except Exception as error:  # a damaged file may make it raise anything
        raise file.wrong(f"cannot be read as Parquet ({in_one_line(error)})", f"{_MEND}, or {_NUMBERS}") from error
    for name, values in columns.items():
        wrong = next((place for place, value in enumerate(values) if not isinstance(value, str | int)), None)
        if wrong is not None:
            raise file.wrong(f"has {values[wrong]!r} as {name} in row {wrong + 1}", "give texts, and labels as numbers")
    return {name: [str(value) for value in values] for name, values in columns.items()}


def _require_texts(file: DataFile, texts: Sequence[str]) -> None:
    """Texts of every script are taken, emoji too; control characters but tabs and ends of lines are not."""
    if all(map(_is_number, texts)):
        raise file.wrong("has numbers as texts", "save a table of numbers as .npz, with images (rows, 1, features)")
    for place, text in enumerate(texts, 1):
        odd = next((one for one in text if unicodedata.category(one) in ("Cc", "Cs") and one not in _KEPT), None)
        if odd is not None:
            raise file.wrong(f"has the control character U+{ord(odd):04X} in the text of row {place}", "take it out")
        if not text.strip():
            raise file.wrong(f"has an empty text in row {place}", "leave that row out")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
