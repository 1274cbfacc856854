"""ACS Income 2018 (Ding et al., NeurIPS 2021): a table of people by state, and who earns more than 50,000 dollars.

Five columns are taken as numbers and five as categories, 53 features, as in the released code of Heikkilä et al., "On
Using Secure Aggregation in Differentially Private Federated Learning with Multiple Local Steps"; states are natural
clients. The papers scale numbers by each client's own smallest and largest value, which is not private; here the
codebook's ranges are used, as public as the survey itself.
"""

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from harness.base.columns import Columns, Group
from harness.base.errors import UsageError
from harness.datasets.catalogue import Source, add, fetch_command, missing
from harness.datasets.files import DataFile
from harness.datasets.record import Dataset, build_dataset

_FOLDER, _WHOLE = "acs_income", "acsincome_2018.csv.gz"
_EXTRACTS = "acsincome_2018_*.csv.gz"
_LABEL, _STATE = "PINCP_gt_50000", "ST"
_INCOMES = ("<=50K", ">50K")
#: The states' codes: 1 to 56 with gaps, and Puerto Rico (72); the District of Columbia (11) is no client of the paper.
_STATES = (*(code for code in range(1, 57) if code not in (3, 7, 11, 14, 43, 52)), 72)

#: Ranges in the codebook, people over 16 who worked: age, occupation, place of birth, relationship, hours per week.
_RANGES = {"AGEP": (17, 99), "OCCP": (0, 9920), "POBP": (1, 554), "RELP": (0, 17), "WKHP": (1, 99)}
#: How many categories each column has, numbered from 1: class of worker, schooling, marital status, sex, race.
_CATEGORIES = {"COW": 8, "SCHL": 24, "MAR": 5, "SEX": 2, "RAC1P": 9}
_NAMES = (*_RANGES, *_CATEGORIES, _LABEL, _STATE)

COLUMNS = Columns(
    tuple(_RANGES),
    tuple(Group(name, tuple(str(number + 1) for number in range(count))) for name, count in _CATEGORIES.items()),
)


def _files(root: Path) -> list[Path]:
    """The whole survey, else the extracts of some states."""
    whole = root / _FOLDER / _WHOLE
    return [whole] if whole.is_file() else sorted((root / _FOLDER).glob(_EXTRACTS))


def _download(target: Path) -> None:
    try:  # a package that only this download needs
        from folktables import ACSDataSource  # pyright: ignore[reportMissingImports]
        from folktables.acs import adult_filter  # pyright: ignore[reportMissingImports]
        from folktables.load_acs import state_list  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            "dataset 'acs-income' is fetched by the package folktables, which is not installed; "
            "pip install folktables, then repeat: harness data fetch acs-income"
        ) from error
    source = ACSDataSource(survey_year="2018", horizon="1-Year", survey="person", root_dir=str(target / "survey"))
    (target / _FOLDER).mkdir()
    with gzip.open(target / _FOLDER / _WHOLE, "wt", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(_NAMES)
        # State by state, because the whole survey does not fit into every machine's memory.
        for state in state_list:
            people = adult_filter(source.get_data(states=[state], download=True)).fillna(0)
            people[_LABEL] = people["PINCP"] > 50_000
            rows.writerows(people[list(_NAMES)].astype(int).to_numpy().tolist())
            for path in (target / "survey").rglob("*.csv"):
                path.unlink()


def _read(file: DataFile) -> np.ndarray:
    """The columns of one file in the order of ``_NAMES``, (N, 12) int64."""
    try:
        text = file.read_unpacked().decode("ascii")
        header, _, body = text.partition("\n")
        if not body.strip():
            raise file.wrong("has no rows")
        places = [header.strip().split(",").index(name) for name in _NAMES]
        values = np.loadtxt(io.StringIO(body), delimiter=",", dtype=np.int64, ndmin=2, usecols=places)
    except (ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise file.wrong(f"is truncated, damaged or lacks a column ({reason})") from error
    return values


def _encode(file: DataFile, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (N, 53) in [0, 1], labels (N,) and states (N,) of one file."""
    named = dict(zip(_NAMES, values.T, strict=True))
    allowed = {name: range(low, high + 1) for name, (low, high) in _RANGES.items()}
    allowed |= {name: range(1, count + 1) for name, count in _CATEGORIES.items()} | {_LABEL: range(2)}
    for name, known in {**allowed, _STATE: _STATES}.items():
        wrong = named[name][~np.isin(named[name], known)]
        if len(wrong):
            raise file.wrong(f"has {wrong[0]} in column {name}, which the survey's codebook does not know")
    features = np.zeros((len(values), COLUMNS.width), dtype=np.float32)
    for place, (name, (low, high)) in enumerate(_RANGES.items()):
        features[:, place] = (named[name] - low) / (high - low)
    rows = np.arange(len(values))
    for group, place in zip(COLUMNS.groups, COLUMNS.slices, strict=True):
        features[rows, place.start + named[group.name] - 1] = 1.0
    return features, named[_LABEL], named[_STATE]


def _check_states(files: list[DataFile], states: list[np.ndarray]) -> None:
    """Two extracts of the same state would hold the same people twice."""
    seen: dict[int, Path] = {}
    for file, codes in zip(files, states, strict=True):
        for code in np.unique(codes).tolist():
            if code in seen:
                advice = f"remove one of them, or {fetch_command('acs-income')}"
                raise DataFile(file.path).wrong(f"has state {code}, as {seen[code].name} has", advice)
            seen[code] = file.path


_SOURCE = Source(
    origin="ACS Income 2018 (Ding et al., 2021, from the American Community Survey's public use microdata)",
    licence="public use data of the U.S. Census Bureau",
    find=lambda root: root / _FOLDER if _files(root) else None,
    download=_download,
    by_hand=f"put extracts {_EXTRACTS} of some states into {_FOLDER}/",
    table=True,
)


@add("acs-income", _SOURCE)
def load_acs_income(root: Path) -> Dataset:
    """A table of people with 53 features and two classes; states, in the order of their codes, are natural clients."""
    files = [DataFile(path, fetch_command("acs-income")) for path in _files(root)]
    if not files:
        raise missing("acs-income", root)
    parts = [_encode(file, _read(file)) for file in files]
    _check_states(files, [states for _, _, states in parts])
    features, labels, states = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    codes, clients = np.unique(states, return_inverse=True)
    origin = f"{_SOURCE.origin}; {len(codes)} of {len(_STATES)} states"
    whole = build_dataset(
        DataFile(root / _FOLDER, fetch_command("acs-income")), "acs-income", features[:, None, None], labels,
        _INCOMES, origin, COLUMNS,
    )  # fmt: skip
    return replace(whole, clients=torch.from_numpy(clients.astype(np.int64)))
