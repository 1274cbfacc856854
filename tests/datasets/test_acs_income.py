"""ACS Income: what its rows become, states as clients, and files that are missing, damaged or overlap."""

import gzip
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.base.errors import UsageError
from harness.datasets import fetch_dataset, load_dataset
from harness.datasets.partition import natural_clients

HEADER = "AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP_gt_50000,ST\n"
COLORADO = "17,2,19,5,0,1,17,1,2,9,0,8\n99,8,24,1,9920,554,0,99,1,1,1,8\n"
WYOMING = "58,1,16,1,4960,31,5,50,2,2,1,56\n"


def write(root: Path, text: str, states: str = "_co") -> None:
    (root / "acs_income").mkdir(exist_ok=True)
    (root / "acs_income" / f"acsincome_2018{states}.csv.gz").write_bytes(gzip.compress(text.encode()))


def test_rows(tmp_path: Path) -> None:
    write(tmp_path, HEADER + WYOMING, "_wy")
    write(tmp_path, HEADER + COLORADO)
    table = load_dataset("acs-income", tmp_path)
    assert table.images.shape == (3, 1, 1, 53) and table.labels.tolist() == [0, 1, 1]
    assert table.clients is not None and table.clients.tolist() == [0, 0, 1]
    assert "2 of 51 states" in table.origin
    rows, columns = table.images[:, 0, 0], table.columns
    assert columns is not None and columns.continuous == ("AGEP", "OCCP", "POBP", "RELP", "WKHP")
    assert rows[0, :5].tolist() == [0, 0, 0, 1, 0] and rows[1, :5].tolist() == [1, 1, 1, 0, 1]
    assert rows[2, :5].tolist() == pytest.approx([41 / 82, 0.5, 30 / 553, 5 / 17, 0.5])
    assert (columns.categories(rows) + 1).tolist() == [[2, 19, 5, 2, 9], [8, 24, 1, 1, 1], [1, 16, 1, 2, 2]]
    assert torch.equal(columns.project(rows), rows)


def test_columns_may_stand_in_another_order(tmp_path: Path) -> None:
    write(tmp_path, HEADER + WYOMING)
    first = load_dataset("acs-income", tmp_path).images
    turned = [",".join(reversed(line.split(","))) for line in (HEADER + WYOMING).splitlines()]
    write(tmp_path, "\n".join(turned))
    assert torch.equal(load_dataset("acs-income", tmp_path).images, first)


def test_the_whole_survey_is_preferred_to_extracts(tmp_path: Path) -> None:
    write(tmp_path, HEADER + COLORADO)
    write(tmp_path, HEADER + COLORADO + WYOMING, "")
    assert len(load_dataset("acs-income", tmp_path).labels) == 3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: None, "pip|not under"),
        (lambda root: write(root, HEADER), "has no rows"),
        (lambda root: write(root, ""), "has no rows"),
        (lambda root: write(root, HEADER + "9" * 30 + COLORADO), "truncated, damaged"),
        (lambda root: write(root, HEADER + COLORADO[:-9]), "truncated"),
        (lambda root: write(root, HEADER.replace("SEX", "PET") + COLORADO), "lacks a column .*SEX"),
        (lambda root: write(root, HEADER + COLORADO.replace("99,8", "99,9")), "has 9 in column COW"),
        (lambda root: write(root, HEADER + COLORADO.replace("17,2", "16,2")), "has 16 in column AGEP"),
        (lambda root: write(root, HEADER + COLORADO.replace("1,1,8", "1,2,8")), "has 2 in column PINCP_gt_50000"),
        (lambda root: write(root, HEADER + WYOMING.replace("56", "11")), "has 11 in column ST"),
        (lambda root: write(root, HEADER + COLORADO.replace("17,2", "old,2")), "truncated, damaged"),
        (lambda root: (write(root, HEADER + COLORADO), write(root, HEADER + COLORADO, "_x")), "has state 8, as .*_co"),
        (lambda root: (write(root, ""), next(root.rglob("*.gz")).write_bytes(b"x")), "no gzip file"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset("acs-income", tmp_path)
    assert "harness data fetch acs-income" in str(caught.value) and "\n" not in str(caught.value)


def test_fetch_names_the_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "folktables", None)
    with pytest.raises(UsageError, match="pip install folktables, then repeat: harness data fetch acs-income"):
        fetch_dataset("acs-income", tmp_path)


def test_the_real_extract() -> None:
    root = Path(os.environ.get("HARNESS_DATA") or "none")
    if not (root / "acs_income" / "acsincome_2018_co_ne.csv.gz").is_file():
        pytest.skip("the extract of Colorado and Nebraska is not under HARNESS_DATA")
    train, test = (load_dataset("acs-income", root, part) for part in ("train", "test"))
    assert len(train.labels) + len(test.labels) == 42_091
    assert train.clients is not None and test.clients is not None
    assert (train.clients.bincount() + test.clients.bincount()).tolist() == [31_306, 10_785]
    data = natural_clients(train.clients, 2, 8_000, seed=0)
    assert train.clients[data].tolist() == [[0] * 8_000, [1] * 8_000]
    with pytest.raises(UsageError, match="client 2 has 0 examples of its own"):
        natural_clients(train.clients, 3, 10, seed=0)
