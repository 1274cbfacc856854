"""What a reproduction says about the data it ran on."""

from pathlib import Path

import pytest

from harness.datasets import mnist
from harness.papers.grid import at_hand


def put(root: Path, folder: str) -> None:
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (raw / name).touch()


@pytest.mark.parametrize(
    ("name", "present", "used", "words"),
    [
        ("mnist", ["MNIST"], "mnist", "full training split"),
        ("mnist", [], "mnist-sample", "bundled sample only"),
        ("fashion-mnist", ["FashionMNIST", "MNIST"], "fashion-mnist", "fashion-mnist: full training split"),
        ("fashion-mnist", ["MNIST"], "mnist", "surrogate data, mnist: full training split; the real one"),
        ("fashion-mnist", [], "mnist-sample", "surrogate data, mnist: bundled sample only"),
        ("emnist", [], None, "harness data fetch emnist"),
        ("adult", [], None, "harness data fetch adult"),
    ],
)
def test_the_line_names_what_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, present: list[str], used: str | None, words: str
) -> None:
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", tmp_path / "absent")
    for folder in present:
        put(tmp_path, folder)
    found, line = at_hand(name, tmp_path)
    assert found == used and words in line
