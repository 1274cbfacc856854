"""Own texts: what is accepted, how it becomes tokens, and the one line that each mistake gets."""

import sys
from pathlib import Path

import pytest
import torch

from harness.base.errors import UsageError
from harness.base.words import MARKS, MOST_WORDS, PAD, UNKNOWN, Words, tokens_of
from harness.datasets import Dataset, default_model, divide, load_dataset
from harness.datasets.load import MOST_PLACES


def save(folder: Path, content: str | bytes) -> str:
    path = folder / "own.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def load(folder: Path, content: str | bytes) -> Dataset:
    return load_dataset(save(folder, content), folder)


def test_words_are_numbered_by_how_often_they_are_used(tmp_path: Path) -> None:
    data = load(tmp_path, '\ufefftext,label\r\n"b a, b",0\r\nb a,1\r\n')
    assert data.words == Words((*MARKS, "b", "a", ","))
    assert tokens_of(data.images).tolist() == [[2, 3, 4, 2], [2, 3, PAD, PAD]]
    assert data.texts == ("b a, b", "b a") and data.labels.tolist() == [0, 1]
    assert data.uncovered and "no epsilon covers it" in data.uncovered
    assert default_model(str(tmp_path / "own.csv")) == "text_transformer"


def test_labels_may_be_names_and_scripts_are_kept(tmp_path: Path) -> None:
    data = load(tmp_path, "label, other, text\nwarm,9,Καλημέρα \U0001f600\ncold,9,你好\n")
    assert data.class_names == ("cold", "warm") and data.labels.tolist() == [1, 0]
    assert data.words is not None and not (tokens_of(data.images) == UNKNOWN).any()
    assert data.words.text(tokens_of(data.images[0]).tolist()) == "Καλημέρα \U0001f600"


@pytest.mark.parametrize(("spaced", "same"), [("a,cold\nb, cold\nc,warm \n", "a,cold\nb,cold\nc,warm\n"),
                                              ("a, 10\nb, 2\nc,0\n", "a,10\nb,2\nc,0\n")])  # fmt: skip
def test_spaces_around_a_label_make_no_class_of_its_own(tmp_path: Path, spaced: str, same: str) -> None:
    one, other = (load(tmp_path, f"text,label\n{rows}") for rows in (spaced, same))
    assert one.class_names == other.class_names and torch.equal(one.labels, other.labels)


def test_what_is_lost_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tmp_path, "text,label\na b,0\nb a,1\n")
    assert not caplog.text
    many = " ".join(f"w{number:04}" for number in reversed(range(MOST_WORDS)))
    data = load(tmp_path, f"text,label\nw0000 w1023,0\nw0000 w0001,1\n{many},1\n")
    assert data.image_shape[-1] == MOST_PLACES and len(data.words.vocabulary if data.words else ()) == MOST_WORDS
    # Of 68 tokens that are left, w1022 and w1021 are those that the vocabulary has no room for.
    assert "2.9% of its tokens are not among the 1,024 of the vocabulary" in caplog.text
    assert "1 of 3 texts are cut to 64 tokens" in caplog.text


def test_no_text_is_private_and_public(tmp_path: Path) -> None:
    rows = "".join(f"word{number % 60} and more,{number % 2}\n" for number in range(120))
    path = save(tmp_path, f"text,label\n{rows}")
    sides = divide(load_dataset(path, tmp_path), path, "auto", tmp_path)
    private, public = ({row.numpy().tobytes() for row in one.images} for one in (sides.private, sides.public))
    assert public and not private & public
    assert sides.public.texts is not None and len(sides.public.texts) == len(sides.public.labels)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("words,labels\na,0\n", "has no column 'text'; give texts in the columns text and label, or a table with a"),
        ("text,labels\na,0\n", "has no column 'label'"),
        ("text;label\na;0\n", "has no comma in its head; separate its columns by commas"),
        ("text,label\n", "has no rows"),
        (
            "text,label\n1.5,0\n2,1\n",
            "has numbers as texts; if it is a table, call that column something else than text",
        ),
        ("text,label\na\0b,0\nb,1\n", r"control character U\+0000 in the text of row 1; take it out"),
        ('text,label\na,0\n"\x1b[31m",1\n', r"control character U\+001B in the text of row 2"),
        ('text,label\na,0\n"  ",1\n', "has an empty text in row 2; leave that row out"),
        ("text,label\na,b,0\n", "has other columns in row 1 than in its head; put values with commas in quotes"),
        ("text,label\na\n", "has other columns in row 1"),
        ("text,label\na,0\nb,\n", "has no label in row 2"),
        ("text,label\na,\x1b[31m\nb,0\n", r"control character U\+001B in column 'label', row 1; take it out"),
        ("text,label\na,-1\nb,0\n", r"has a negative label \(-1\)"),
        ("text,label\na,0\nb,0\n", "has texts of one class only; give two classes"),
        ("text,text,label\na,b,0\nc,d,1\n", "has two columns 'text'; rename one of them"),
        (f"text,label\n{'x' * 200_000},0\nb,1\n", "has a cell of more than 131,072 characters; cut it"),
        (b"text,label\n\xff,0\n", "is no text in UTF-8"),
        ('text,label\n"a,0\n', "is no CSV file"),
    ],
)
def test_each_mistake_gets_one_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_dataset(str(tmp_path / "none.csv"), tmp_path)


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "own.parquet"
    parquet.write_table(arrow.table({"text": ["b a, b", "b a"], "label": [0, 1]}), path)
    theirs, ours = load_dataset(str(path), tmp_path), load(tmp_path, 'text,label\n"b a, b",0\nb a,1\n')
    assert torch.equal(theirs.images, ours.images) and theirs.texts == ours.texts
    parquet.write_table(arrow.table({"text": ["a", None], "label": [0, 1]}), path)
    with pytest.raises(UsageError, match="has None as text in row 2"):
        load_dataset(str(path), tmp_path)
    parquet.write_table(arrow.table({"text": ["a", "b"], "label": [0.0, 1.0]}), path)
    with pytest.raises(
        UsageError, match=r"has 0\.0 as label in row 1; give texts, and labels as names or whole numbers"
    ):
        load_dataset(str(path), tmp_path)
    path.write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"cannot be read as Parquet .* save images as \.npz"):
        load_dataset(str(path), tmp_path)


def test_parquet_of_images_is_told_where_nothing_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "own.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"needs pyarrow; pip install .* save images as .*numpy\.savez\('NEW\.npz'"):
        load_dataset(str(tmp_path / "own.parquet"), tmp_path)
