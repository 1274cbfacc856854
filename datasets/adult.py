"""Adult, or Census Income (Becker and Kohavi, 1996): a table of people, and whether they earn more than 50,000 dollars.

Six continuous columns and eight categorical ones make 105 features: 6 + 8 + 16 + 7 + 14 + 6 + 5 + 2 + 41. An unknown
value ("?") has no feature of its own; all features of its column are 0.
"""

from pathlib import Path

import numpy as np

from harness.base.columns import MISSING, Columns, Group
from harness.datasets.catalogue import Source, add, fetch_command, missing
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset

_FOLDER = "adult"
_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_MD5 = {"adult.data": "5d7c39d7b8804f071cdd1f2a7c460872", "adult.test": "35238206dfdf7f1fe215bbb874adecdc"}
_INCOMES = ("<=50K", ">50K")

#: Smallest and largest value of each continuous column, as public as the file itself.
_RANGES = {
    "age": (17, 90),
    "fnlwgt": (12_285, 1_490_400),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 4_356),
    "hours-per-week": (1, 99),
}
# In the order of adult.names.
_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland "
    "France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
_ORDER = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_UNKNOWN = "?"
_OPTIONAL = ("workclass", "occupation", "native-country")

COLUMNS = Columns(
    tuple(_RANGES), tuple(Group(name, tuple(words.split()), name in _OPTIONAL) for name, words in _CATEGORIES.items())
)


def _files(root: Path) -> list[Path]:
    """The two files as they are, or compressed; None of them where one is missing."""
    found = [
        next((path for path in (root / _FOLDER / name, root / _FOLDER / f"{name}.gz") if path.is_file()), None)
        for name in _MD5
    ]
    return [path for path in found if path] if all(found) else []


def _find(root: Path) -> Path | None:
    return root / _FOLDER if _files(root) else None


def _download(target: Path) -> None:
    # Imported here because torchvision takes longer to import than most commands to run.
    from torchvision.datasets.utils import download_url

    for name, md5 in _MD5.items():
        download_url(f"{_URL}/{name}", str(target / _FOLDER), name, md5)


def _read_rows(file: DataFile) -> list[list[str]]:
    """The 15 fields of every row; lines that start with a bar, and empty ones, are no rows."""
    try:
        text = file.read_unpacked().decode("ascii")
    except UnicodeDecodeError as error:
        raise file.wrong("is damaged") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("|")]
    rows = [line.rstrip(".").split(", ") for line in lines]
    if not rows or any(len(row) != len(_ORDER) for row in rows):
        raise file.wrong(f"is truncated or damaged (not every row has {len(_ORDER)} values)")
    return rows


def _encode(file: DataFile, rows: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, 105) in [0, 1] and labels (N,)."""
    values: dict[str, tuple[str, ...]] = dict(zip(_ORDER, zip(*rows, strict=True), strict=True))
    features = np.zeros((len(rows), COLUMNS.width), dtype=np.float32)
    try:
        for place, (name, (low, high)) in enumerate(_RANGES.items()):
            features[:, place] = (np.array(values[name], dtype=np.float64) - low) / (high - low)
        for group, place in zip(COLUMNS.groups, COLUMNS.slices, strict=True):
            numbers = {category: number for number, category in enumerate(group.categories)}
            numbers |= {_UNKNOWN: MISSING} if group.optional else {}
            category = np.array([numbers[value] for value in values[group.name]])
            known = category != MISSING
            features[known.nonzero()[0], place.start + category[known]] = 1.0
        labels = np.array([_INCOMES.index(value) for value in values["income"]])
    except (ValueError, KeyError, IndexError) as error:
        raise file.wrong(f"has a value that the columns of this table do not know ({error})") from error
    return features, labels


_SOURCE = Source(
    origin="UCI Adult, both files of the publishers pooled as in the papers",
    licence="CC BY 4.0",
    find=_find,
    download=_download,
    held_out=0.25,
    table=True,
)


@add("adult", _SOURCE)
def load_adult(root: Path) -> Dataset:
    """A table of 48,842 rows with 6 continuous and 8 categorical columns (105 features), and two classes."""
    files = [DataFile(path, fetch_command("adult")) for path in _files(root)]
    if not files:
        raise missing("adult", root)
    parts = [_encode(file, _read_rows(file)) for file in files]
    features, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return build_dataset(
        DataFile(root / _FOLDER, fetch_command("adult")), "adult", features[:, None, None], labels, _INCOMES,
        _SOURCE.origin, COLUMNS,
    )  # fmt: skip
