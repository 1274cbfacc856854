"""The tables: what their rows become, and files that are missing, damaged or of another table."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from harness.base.errors import UsageError
from harness.datasets import adult, fetch_dataset, load_dataset
from harness.datasets.catalogue import default_model

TRAIN = """39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, \
United-States, <=50K
17, ?, 12285, Preschool, 1, Widowed, ?, Wife, Black, Female, 0, 0, 1, ?, >50K

"""
TEST = """|1x3 Cross validator
90, Private, 1490400, Doctorate, 16, Divorced, Sales, Husband, White, Male, 99999, 4356, 99, Hong, >50K.
"""


def write(root: Path, train: str = TRAIN, test: str = TEST, packed: bool = False) -> None:
    (root / "adult").mkdir()
    for name, text in (("adult.data", train), ("adult.test", test)):
        if packed:
            (root / "adult" / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (root / "adult" / name).write_text(text)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_adult(tmp_path: Path, packed: bool) -> None:
    write(tmp_path, packed=packed)
    table = load_dataset("adult", tmp_path)
    assert (table.images.shape, table.image_shape) == ((3, 1, 1, 105), (1, 1, 105))
    assert table.labels.tolist() == [0, 1, 1] and table.class_names == ("<=50K", ">50K")
    columns = table.columns
    assert columns is not None and columns.width == 105 and len(columns.continuous) == 6 and len(columns.groups) == 8
    rows = table.images[:, 0, 0]
    assert rows[0, :6].tolist() == pytest.approx(
        [22 / 73, (77516 - 12285) / (1490400 - 12285), 12 / 15, 2174 / 99999, 0, 39 / 98]
    )
    assert rows[1, :6].tolist() == [0] * 6 and rows[2, :6].tolist() == [1] * 6
    named = [
        [group.categories[number] if number >= 0 else "?" for group, number in zip(columns.groups, row, strict=True)]
        for row in columns.categories(rows).tolist()
    ]
    assert [" ".join(row) for row in named[:2]] == [
        "State-gov Bachelors Never-married Adm-clerical Not-in-family White Male United-States",
        "? Preschool Widowed ? Wife Black Female ?",
    ]
    assert rows[:, 6:].sum(1).tolist() == [8, 5, 8]
    assert torch.equal(columns.project(rows), rows)


def test_cancer_is_scaled_column_by_column(tmp_path: Path) -> None:
    table, raw = load_dataset("cancer", tmp_path), load_breast_cancer()
    assert table.images.shape == (569, 1, 1, 30) and table.labels.tolist() == raw.target.tolist()
    low, high = raw.data.min(0), raw.data.max(0)
    np.testing.assert_allclose(table.images[:, 0, 0].numpy() * (high - low) + low, raw.data, rtol=1e-4, atol=1e-5)
    assert (table.images.amin(0) == 0).all() and (table.images.amax(0) == 1).all()
    assert table.columns is not None and table.columns.groups == () and table.columns.width == 30


def test_the_parts_have_the_sizes_of_the_papers(tmp_path: Path) -> None:
    parts = [load_dataset("cancer", tmp_path, part) for part in ("train", "test")]
    assert [len(part.labels) for part in parts] == [426, 143]
    assert all(part.columns is not None for part in parts)


def test_the_real_adult(real: Callable[..., Any]) -> None:
    parts = [real("adult", part) for part in ("train", "test")]
    assert [len(part.labels) for part in parts] == [36_631, 12_211]
    # The ranges written down are those of the data: every column reaches 0 and 1.
    continuous = torch.cat([part.images[:, 0, 0, :6] for part in parts])
    assert (continuous.amin(0) == 0).all() and (continuous.amax(0) == 1).all()
    # Every category occurs, and the share of high incomes is the one that adult.names states, 24.78% by 23.93%.
    assert (torch.cat([part.images for part in parts]).sum(0) > 0).all()
    assert float(torch.cat([part.labels for part in parts]).float().mean()) == pytest.approx(0.2393, abs=1e-4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: write(root, train=TRAIN[:60]), "is truncated or damaged (not every row has 15 values)"),
        (lambda root: write(root, test=""), "is truncated or damaged"),
        (lambda root: write(root, train=TRAIN.replace("State-gov", "Pirate")), "do not know ('Pirate')"),
        (lambda root: write(root, train=TRAIN.replace("Preschool", "?")), "do not know ('?')"),
        (lambda root: write(root, train=TRAIN.replace("39,", "old,")), "could not convert string to float: 'old'"),
        (lambda root: write(root, train=TRAIN.replace("39,", "nan,")), "NaN"),
        (lambda root: write(root, train=TRAIN.replace("39,", "391,")), "values from"),
        (lambda root: write(root, train=TRAIN.replace("<=50K", "rich")), "do not know"),
        (lambda root: write(root, train="ä" + TRAIN), "is damaged"),
        (lambda root: (write(root, packed=True), (root / "adult" / "adult.data.gz").write_bytes(b"x")), "is damaged"),
        (lambda root: (write(root), (root / "adult" / "adult.test").unlink()), "dataset 'adult' is not under"),
    ],
)  # fmt: skip
def test_damaged_tables(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_dataset("adult", tmp_path)
    assert message in str(caught.value) and "harness data fetch adult" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fetch_adult(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download_url(url: str, root: str, filename: str, md5: str) -> None:
        asked.append((url, md5))
        Path(root).mkdir(parents=True, exist_ok=True)
        (Path(root) / filename).write_text(TRAIN if filename == "adult.data" else TEST)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", download_url)
    fetch_dataset("adult", tmp_path)
    assert [url.rpartition("/")[2] for url, _ in asked] == ["adult.data", "adult.test"]
    assert [md5 for _, md5 in asked] == list(adult._MD5.values())
    assert len(load_dataset("adult", tmp_path).labels) == 3


def test_each_dataset_names_the_network_that_suits_it() -> None:
    assert [default_model(name) for name in ("cancer", "adult", "mnist", "digits", "own.npz")] == [
        "mlp2", "mlp2", "lenet", "lenet", "lenet",
    ]  # fmt: skip
