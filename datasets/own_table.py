"""Files of columns, CSV or Parquet, and a user's own table that is read from one.

A column whose filled cells are all numbers is continuous, every other column is categorical.
"""

import csv
import importlib
import io
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.columns import Columns, Group
from harness.base.errors import UsageError, in_one_line
from harness.base.limits import log
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset, class_numbers
from harness.results.files import MOST_OF_A_DOCUMENT, Unreadable, open_file, read_bytes

TEXT, LABEL = "text", "label"
PARQUET = ".parquet"
#: How to fix a file that holds neither texts nor a table.
GOOD_FILE = "give texts in the columns text and label, or a table with a column label and none called text"
#: How images are saved, for readers who have them in such a file.
AS_IMAGES = "save images as .npz: numpy.savez('NEW.npz', images=images, labels=labels)"

_LONGEST_HEAD = 2**20
_FEWEST_ROWS = 20
_MOST_CATEGORIES = 300
_WIDEST = 10_000
_MOST_NUMBERS = 2**27
_KEPT = "\t\n\r"

Column = tuple[str, list[Any]]
"""The name of a column and its values, which are texts in a CSV file."""


def is_table(path: Path) -> bool:
    """Return whether a file has a column ``label`` and no column ``text``; also False if its head cannot be read."""
    try:
        with open_file(path) as stream:
            names = (
                _parquet().read_schema(stream).names if path.suffix == PARQUET else _head(stream.read(_LONGEST_HEAD))
            )
    except Exception:  # whoever loads the file says what is wrong
        return False
    names = [name.strip() for name in names]
    return LABEL in names and TEXT not in names


def _head(content: bytes) -> list[str]:
    return next(filter(None, csv.reader(io.StringIO(content.decode("utf-8-sig", "replace"), newline=""))), [])


def _parquet() -> Any:
    return importlib.import_module("pyarrow.parquet")  # compiled, without types


def read_columns(file: DataFile, only: Collection[str] | None = None) -> list[Column]:
    """The columns of a CSV or Parquet file in their order.

    Args:
        file: where they come from.
        only: names of the columns to read; None for all.

    Raises:
        UsageError: the file is missing, too large or damaged, or its rows have unequal numbers of cells.
    """
    try:
        content = read_bytes(file.path, MOST_OF_A_DOCUMENT)
    except Unreadable as problem:
        raise file.wrong(problem.reason, "check the path and its permissions") from problem
    return (_of_parquet if file.path.suffix == PARQUET else _of_csv)(file, content, only)


def _of_csv(file: DataFile, content: bytes, only: Collection[str] | None) -> list[Column]:
    try:
        rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True) if row]
    except UnicodeDecodeError as error:
        raise file.wrong("is no text in UTF-8", "save it as one") from error
    except csv.Error as error:
        if "field limit" in str(error):
            raise file.wrong(f"has a cell of more than {csv.field_size_limit():,} characters", "cut it") from error
        raise file.wrong(f"is no CSV file ({in_one_line(error)})", GOOD_FILE) from error
    head = [name.strip() for name in rows.pop(0)] if rows else []
    if len(head) == 1 and any(mark in head[0] for mark in ";\t"):
        raise file.wrong("has no comma in its head", "separate its columns by commas")
    ragged = next((place for place, row in enumerate(rows, 1) if len(row) != len(head)), None)
    if ragged is not None:
        raise file.wrong(f"has other columns in row {ragged} than in its head", "put values with commas in quotes")
    wanted = [place for place, name in enumerate(head) if only is None or name in only]
    _require_distinct(file, [head[place] for place in wanted])
    return [(head[place], [row[place] for row in rows]) for place in wanted]


def _of_parquet(file: DataFile, content: bytes, only: Collection[str] | None) -> list[Column]:
    try:
        parquet = _parquet()
    except ImportError as error:
        fix = f"pip install 'gradient-leakage-harness[text]', save it as .csv, or {AS_IMAGES}"
        raise file.wrong("needs pyarrow", fix) from error
    try:
        opened = parquet.ParquetFile(io.BytesIO(content))
        cells = opened.metadata.num_rows * opened.metadata.num_columns
        if cells <= _MOST_NUMBERS:
            table = opened.read()
            names = [(at, name) for at, name in enumerate(table.column_names) if only is None or name in only]
            _require_distinct(file, [name for _, name in names])
            return [(name, table.column(at).to_pylist()) for at, name in names]
    except UsageError:
        raise
    except Exception as error:  # a damaged file may make it raise anything
        raise file.wrong(f"cannot be read as Parquet ({in_one_line(error)})", f"{GOOD_FILE}, or {AS_IMAGES}") from error
    raise file.wrong(f"has {cells:,} cells", f"give at most {_MOST_NUMBERS:,}")


def _require_distinct(file: DataFile, names: Sequence[str]) -> None:
    twice = next((name for place, name in enumerate(names) if name and name in names[:place]), None)
    if twice is not None:
        raise file.wrong(f"has two columns {twice!r}", "rename one of them")


def odd_character(text: str) -> str | None:
    """The code of a control character that is neither a tab nor the end of a line; None where there is none."""
    odd = next((one for one in text if unicodedata.category(one) in ("Cc", "Cs") and one not in _KEPT), None)
    return odd and f"U+{ord(odd):04X}"


# --------------------------------------------------------------------------------------
# Tables.


def load_own_table(path: Path) -> Dataset:
    """A file with a column ``label`` as a table; the dataset is named by the file's name alone.

    Continuous columns come first and are scaled to [0, 1] by their smallest and largest values. Columns keep their
    order in the file, categories are sorted by name, and an empty cell of a categorical column is a missing value.
    Columns that are the same in every row are left out.

    Raises:
        UsageError: missing or damaged file, or something else than a table with labels.
    """
    file = DataFile(path)
    values = _cells(file, read_columns(file))
    labels, classes = _classes(file, values.pop(LABEL))
    numbers, categorical = _kinds(file, values)
    columns = Columns(tuple(numbers), tuple(_group(file, name, cells) for name, cells in categorical.items()))
    _require_size(file, len(labels), columns.width)
    features = np.zeros((len(labels), columns.width), dtype=np.float32)
    for place, column in enumerate(numbers.values()):
        features[:, place] = column
    for group, place in zip(columns.groups, columns.slices, strict=True):
        at = {category: place.start + number for number, category in enumerate(group.categories)}
        known = [(row, at[cell]) for row, cell in enumerate(categorical[group.name]) if cell]
        features[tuple(np.array(known).T)] = 1.0
    images, origin = features[:, None, None], f"own table, {path.name}"
    made = build_dataset(file, path.name, images, labels, classes, origin, columns)
    return replace(made, fitted_to="the ranges and categories of its own private rows, computed without noise")


def _kinds(file: DataFile, values: dict[str, list[str]]) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Continuous columns, scaled, and the cells of categorical ones; a column with one value is neither."""
    numbers, categorical, same = dict[str, np.ndarray](), dict[str, list[str]](), list[str]()
    for name, cells in values.items():
        alike = len(set(cells)) == 1
        found = None if alike else _numbers(file, name, cells)
        if alike or (found is not None and found.min() == found.max()):
            same.append(name)
        elif found is None:
            categorical[name] = cells
        else:
            numbers[name] = _scaled(file, name, found)
    if same:
        log.warning("harness: %s: left out, as every row has the same value: %s", file.path.name, _listed(same))
    return numbers, categorical


def _cells(file: DataFile, columns: Sequence[Column]) -> dict[str, list[str]]:
    """The cells of every column as texts without spaces around them, by the column's name."""
    names = [name.strip() for name, _ in columns]
    _require_distinct(file, names)
    for place, name in enumerate(names):
        if not name:
            raise file.wrong(f"has no name for column {place + 1}", "name it, or leave it out")
        if odd := odd_character(name):
            raise file.wrong(f"has the control character {odd} in the name of column {place + 1}", "take it out")
    if LABEL not in names:
        raise file.wrong(f"has no column {LABEL!r}", GOOD_FILE)
    rows = len(columns[0][1])
    if rows < _FEWEST_ROWS:
        raise file.wrong(f"has {rows} rows", f"give at least {_FEWEST_ROWS}")
    return {name: as_texts(file, name, column) for name, (_, column) in zip(names, columns, strict=True)}


def as_texts(file: DataFile, name: str, values: list[Any]) -> list[str]:
    """The cells of a column without spaces around them; an empty one for None. Raises UsageError: a date and the like,
    or a control character."""
    wrong = next((row for row, value in enumerate(values, 1) if not isinstance(value, str | int | float | None)), None)
    if wrong is not None:
        kind = type(values[wrong - 1]).__name__
        raise file.wrong(f"has a {kind} in column {name!r}, row {wrong}", "save that column as numbers or texts")
    texts = ["" if value is None else str(value).strip() for value in values]
    for row, text in enumerate(texts, 1):
        if not text.isprintable() and (odd := odd_character(text)):
            raise file.wrong(f"has the control character {odd} in column {name!r}, row {row}", "take it out")
    return texts


def _classes(file: DataFile, labels: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    numbers, names = class_numbers(file, labels)
    found = len(set(labels))
    if found < 2:
        raise file.wrong("has rows of one class only", "give two classes: a network that tells one learns nothing")
    if 2 * found > len(labels):
        raise file.wrong(f"has {found:,} labels in {len(labels):,} rows", "give classes, not numbers to predict")
    return numbers, names


def _numbers(file: DataFile, name: str, cells: list[str]) -> np.ndarray | None:
    """The numbers (N,) of a column, in double precision; None where a filled cell is none."""
    if any(_number(cell) is None for cell in cells if cell):
        return None
    empty = next((row for row, cell in enumerate(cells, 1) if not cell), None)
    if empty is not None:
        fix = "fill it in, leave out that row or column, or write all its values as categories, such as low and high"
        raise file.wrong(f"has no number in column {name!r}, row {empty}", fix)
    numbers = np.array([_number(cell) for cell in cells], dtype=np.float64)
    odd = (~np.isfinite(numbers)).nonzero()[0]
    if len(odd):
        at = int(odd[0])
        raise file.wrong(f"has {cells[at]!r} in column {name!r}, row {at + 1}", "give a finite number")
    return numbers


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000
    except ValueError:
        return None


def _scaled(file: DataFile, name: str, numbers: np.ndarray) -> np.ndarray:
    low, high = float(numbers.min()), float(numbers.max())
    if not np.isfinite(high - low):
        raise file.wrong(f"has numbers from {low:g} to {high:g} in column {name!r}", "give smaller ones")
    if np.array_equal(np.sort(numbers), low + np.arange(len(numbers))):
        raise file.wrong(f"numbers its rows in column {name!r}", "leave that column out: it tells nothing of a row")
    return (numbers - low) / (high - low)


def _group(file: DataFile, name: str, cells: list[str]) -> Group:
    categories = tuple(sorted({*cells} - {""}))
    odd = next(cell for cell in categories if _number(cell) is None)
    some_numbers = any(_number(cell) is not None for cell in categories)
    mixed = f"{odd!r} in row {cells.index(odd) + 1} is no number" if some_numbers else ""
    if len(categories) > _MOST_CATEGORIES or len(categories) == len(cells):
        fix = mixed and f"; {mixed}, if it holds numbers"
        raise file.wrong(
            f"has {len(categories):,} categories in column {name!r}",
            f"leave out a column that names each row, or give at most {_MOST_CATEGORIES} categories{fix}",
        )
    if mixed:
        log.warning("harness: %s: column %r is read as categories, as %s", file.path.name, name, mixed)
    return Group(name, categories, "" in cells)


def _require_size(file: DataFile, rows: int, width: int) -> None:
    if not width:
        raise file.wrong("has no column beside label whose values differ", GOOD_FILE)
    if width > _WIDEST:
        raise file.wrong(f"makes {width:,} features", f"leave columns out; at most {_WIDEST:,} are taken")
    if rows * width > _MOST_NUMBERS:
        raise file.wrong(
            f"makes {width:,} features of {rows:,} rows",
            f"give fewer rows; at most {_MOST_NUMBERS:,} numbers are taken",
        )


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
