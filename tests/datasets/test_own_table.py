"""Own tables: what a file becomes, and the one line that each mistake gets."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.base.columns import Columns, Group
from harness.base.errors import UsageError
from harness.datasets import Dataset, default_model, divide, load_dataset
from harness.datasets.catalogue import OWN_TABLE, source_of
from harness.judging.members import read_sides

ROWS = 40
HEAD = "age,ward,label,dose,smoker"


def table(head: str = HEAD, rows: int = ROWS, **changed: str) -> str:
    """A table of 40 rows; ``changed`` puts a line in the place of a row: ``row3="..."``."""
    wards, smokers = ("surgery", "cardio", "burns"), ("yes", "", "no")
    lines = [
        f"{30 + 3 * (row % 11)},{wards[row % 3]},{'ill' if row % 2 else 'well'},{0.5 * (row % 5)},{smokers[row % 3]}"
        for row in range(rows)
    ]
    for place, line in changed.items():
        lines[int(place.removeprefix("row")) - 1] = line
    return "\n".join([head, *lines]) + "\n"


def with_column(name: str, values: list[str]) -> str:
    """The same table with one more column."""
    lines = table().splitlines()
    return "\n".join(f"{line},{value}" for line, value in zip(lines, [name, *values], strict=True)) + "\n"


def save(folder: Path, content: str | bytes, name: str = "own.csv") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def load(folder: Path, content: str | bytes) -> Dataset:
    return load_dataset(save(folder, content), folder)


def test_a_table_becomes_numbers_and_groups(tmp_path: Path) -> None:
    made = load(tmp_path, "\ufeff" + table().replace(",", ", "))
    wards, smokers = Group("ward", ("burns", "cardio", "surgery")), Group("smoker", ("no", "yes"), optional=True)
    assert made.columns == Columns(("age", "dose"), (wards, smokers))
    assert (made.name, made.images.shape, made.class_names) == ("own.csv", (ROWS, 1, 1, 7), ("ill", "well"))
    rows = made.images[:, 0, 0]
    assert rows[0].tolist() == [0, 0, 0, 0, 1, 0, 1]
    assert rows[1].tolist() == pytest.approx([0.1, 0.25, 0, 1, 0, 0, 0])
    assert rows[2].tolist() == pytest.approx([0.2, 0.5, 1, 0, 0, 1, 0])
    assert torch.equal(made.columns.project(rows), rows) and made.labels[:3].tolist() == [1, 0, 1]
    assert made.uncovered and "own private rows" in made.uncovered


def test_the_head_decides_what_a_file_holds(tmp_path: Path) -> None:
    path, texts = save(tmp_path, table()), save(tmp_path, "text,label\na,0\nb,1\n", "texts.csv")
    assert source_of(path) is OWN_TABLE
    assert [default_model(one) for one in (path, texts, "none.csv")] == ["mlp2", "text_transformer", "text_transformer"]


def test_columns_that_tell_nothing_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path, with_column("site", ["north"] * ROWS)).columns == load(tmp_path, table()).columns
    assert "own.csv: left out, as every row has the same value: 'site'" in caplog.text
    equal = ["1"] * (ROWS - 1) + ["1.0"]
    assert load(tmp_path, with_column("unit", equal)).columns == load(tmp_path, table()).columns


def test_a_column_with_a_word_is_categorical_and_that_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    columns = load(tmp_path, with_column("children", ["0", "NA", "0", "2"] * 10)).columns
    assert columns is not None and columns.groups[-1] == Group("children", ("0", "2", "NA"))
    assert "column 'children' is read as categories, as 'NA' in row 2 is no number" in caplog.text


def test_no_row_is_private_and_public(tmp_path: Path) -> None:
    path = save(tmp_path, with_column("pressure", [str(100 + row**2) for row in range(ROWS)]))
    sides = divide(load_dataset(path, tmp_path), path, "auto", tmp_path)
    private, public = ({row.numpy().tobytes() for row in one.images} for one in (sides.private, sides.public))
    assert len(private) == len(public) == ROWS / 2 and not private & public


def test_a_table_that_is_scaled_otherwise_is_no_public_data(tmp_path: Path) -> None:
    path, other = save(tmp_path, table()), save(tmp_path, table(rows=30), "other.csv")
    with pytest.raises(UsageError, match=r"scaled by its own ranges, .* use --prior auto"):
        divide(load_dataset(path, tmp_path), path, other, tmp_path)
    with pytest.raises(UsageError, match=r"scaled by its own ranges; save its rows as \.npz"):
        read_sides(Path(path), Path(other))


NUMBERED = [str(row) for row in range(ROWS)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (table(row3="31,burns,ill,1"), "has other columns in row 3 than in its head"),
        (table(row3="31,burns,ill,1,yes,9"), "has other columns in row 3 than in its head"),
        (table("age,ward,label,age,smoker"), "has two columns 'age'; rename one of them"),
        (table("age,ward,label,label ,smoker"), "has two columns 'label'"),
        (table(",ward,label,dose,smoker"), "has no name for column 1; name it, or leave it out"),
        (table("a\0ge,ward,label,dose,smoker"), r"has the control character U\+0000 in the name of column 1"),
        (table(row2="31,b\x1b[1m,ill,1,no"), r"has the control character U\+001B in column 'ward', row 2; take it out"),
        (table(row4=",burns,ill,1,no"), "has no number in column 'age', row 4; fill it in, leave out"),
        (table(row4="nan,burns,ill,1,no"), "has 'nan' in column 'age', row 4; give a finite number"),
        (table(row4="1e999,burns,ill,1,no"), "has '1e999' in column 'age', row 4"),
        (table(row4="1e308,burns,ill,1,no", row5="-1e308,burns,ill,1,no"), r"from -1e\+308 to 1e\+308 in column 'age'"),
        (table(row4="31,burns,,1,no"), "has no label in row 4"),
        (table().replace("well", "ill"), "has rows of one class only; give two classes"),
        (with_column("x", NUMBERED).replace("label", "was").replace("x", "label"), "has 40 labels in 40 rows"),
        (table(rows=19), "has 19 rows; give at least 20"),
        ("age,label\n", "has 0 rows"),
        ("label\n" + "0\n1\n" * 20, "has no column beside label whose values differ"),
        (with_column("id", NUMBERED[::-1]), "numbers its rows in column 'id'; leave that column out"),
        (with_column("id", [f"p{row}" for row in NUMBERED]), "has 40 categories in column 'id'; leave out a column"),
        (with_column("id", ["x", *NUMBERED[1:]]), "'x' in row 1 is no number, if it holds numbers"),
        (table().replace(",", ";"), "has no comma in its head; separate its columns by commas"),
        (table().encode() + b"\xff", "is no text in UTF-8; save it as one"),
        (table().encode("utf-16"), "is no text in UTF-8"),
        (table(row3='31,"burns,ill,1,no'), "is no CSV file"),
        (table(row3=f"31,{'b' * 200_000},ill,1,no"), "has a cell of more than 131,072 characters"),
        ("label," + ",".join(f"c{n}" for n in range(10_001)) + "\n" + f"0{',0' * 10_001}\n1{',1' * 10_001}\n" * 10,
         "makes 10,001 features; leave columns out"),
    ],
)  # fmt: skip
def test_each_mistake_gets_one_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_too_many_categories(tmp_path: Path) -> None:
    lines = "".join(f"p{row % 301},{row % 2}\n" for row in range(903))
    with pytest.raises(UsageError, match=r"has 301 categories in column 'id'; .* at most 300 categories"):
        load(tmp_path, f"id,label\n{lines}")


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = list(csv.DictReader(table().splitlines()))
    kinds = {"age": int, "dose": float}
    columns = {name: [kinds.get(name, str)(row[name]) if row[name] else None for row in rows] for name in rows[0]}
    path = tmp_path / "own.parquet"
    parquet.write_table(arrow.table(columns), path)
    theirs, ours = load_dataset(str(path), tmp_path), load(tmp_path, table())
    assert torch.equal(theirs.images, ours.images) and theirs.columns == ours.columns
    parquet.write_table(arrow.table(columns | {"visits": [[1, 2]] * ROWS}), path)
    with pytest.raises(UsageError, match="has a list in column 'visits', row 1; save that column as numbers or texts"):
        load_dataset(str(path), tmp_path)
    parquet.write_table(arrow.table(columns | {"dose": [float("nan")] * 2 + [1.0] * (ROWS - 2)}), path)
    with pytest.raises(UsageError, match="has 'nan' in column 'dose', row 1"):
        load_dataset(str(path), tmp_path)


def write_rows(path: Path, data: Dataset) -> None:
    """Rows of a table as a file that a user may have: values by their columns, classes by their names."""
    assert data.columns is not None
    columns, rows = data.columns, data.images[:, 0, 0]
    numbers = rows[:, : len(columns.continuous)].tolist()
    with path.open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow([*columns.continuous, *(group.name for group in columns.groups), "label"])
        for values, found, label in zip(numbers, columns.categories(rows).tolist(), data.labels.tolist(), strict=True):
            names = [group.categories[at] if at >= 0 else "" for group, at in zip(columns.groups, found, strict=True)]
            lines.writerow([*values, *names, data.class_names[label]])


def test_adult_comes_back_from_a_file(tmp_path: Path, real: Callable[..., Dataset]) -> None:
    adult = real("adult")
    write_rows(tmp_path / "own.csv", adult)
    own = load_dataset(str(tmp_path / "own.csv"), tmp_path)
    assert own.images.shape == adult.images.shape and own.class_names == adult.class_names
    assert adult.columns is not None and own.columns is not None
    assert own.columns.continuous == adult.columns.continuous
    order = list(range(len(adult.columns.continuous)))
    for ours, theirs, place in zip(own.columns.groups, adult.columns.groups, adult.columns.slices, strict=True):
        assert (ours.name, ours.optional, set(ours.categories)) == (
            theirs.name, theirs.optional, set(theirs.categories),
        )  # fmt: skip
        order += [place.start + theirs.categories.index(one) for one in ours.categories]
    assert torch.equal(own.images, adult.images[..., order]) and torch.equal(own.labels, adult.labels)
