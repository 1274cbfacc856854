"""EMNIST in both layouts: which split is read, upright images, and files that are damaged or of another dataset."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from harness.datasets import fetch_dataset, load_dataset
from harness.datasets.emnist import CHARACTERS
from harness.errors import UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 10, 46, 36, 9, 1], dtype=np.uint8)
CODES = np.array([ord(character) for character in CHARACTERS], dtype=np.uint8)
IMAGE_FILE = "emnist-balanced-train-images-idx3-ubyte"


def write_balanced(root: Path) -> None:
    raw = root / "EMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    stored = PIXELS.transpose(0, 2, 1)
    (raw / IMAGE_FILE).write_bytes(struct.pack(">4I", 0x803, *stored.shape) + stored.tobytes())
    labels = raw / "emnist-balanced-train-labels-idx1-ubyte"
    labels.write_bytes(struct.pack(">2I", 0x801, len(LABELS)) + LABELS.tobytes())


def write_prepared(root: Path, **arrays: np.ndarray) -> None:
    (root / "EMNIST").mkdir(exist_ok=True)
    good = {"images": PIXELS, "labels": LABELS, "mapping": CODES}
    np.savez(root / "EMNIST" / "emnist_bymerge_test.npz", **(good | arrays))


@pytest.mark.parametrize(
    ("write", "split"), [(write_balanced, "Balanced, training"), (write_prepared, "ByMerge, test")]
)
def test_images_are_upright_and_the_split_is_named(tmp_path: Path, write: Callable[[Path], None], split: str) -> None:
    write(tmp_path)
    dataset = load_dataset("emnist", tmp_path)
    assert torch.equal(dataset.images, torch.from_numpy(PIXELS[:, None]).float() / 255)
    assert [dataset.class_names[label] for label in dataset.labels] == ["0", "A", "t", "a", "9", "1"]
    assert dataset.num_classes == 47 and split in dataset.origin


def test_the_balanced_split_is_preferred(tmp_path: Path) -> None:
    write_prepared(tmp_path)
    write_balanced(tmp_path)
    assert "Balanced" in load_dataset("emnist", tmp_path).origin


def cut(root: Path) -> None:
    write_balanced(root)
    path = root / "EMNIST" / "raw" / IMAGE_FILE
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "truncated or damaged"),
        (lambda root: None, "dataset 'emnist' is not under"),
        (lambda root: write_prepared(root, images=PIXELS[:, :8]), r"shape \(6, 8, 28\) instead of"),
        (lambda root: write_prepared(root, labels=LABELS + 1), "has label 47"),
        (lambda root: write_prepared(root, labels=LABELS[:5]), "one label per image|labels of shape"),
        (lambda root: write_prepared(root, mapping=CODES[::-1]), "not those of EMNIST"),
        (lambda root: write_prepared(root, mapping=CODES[:10]), "not those of EMNIST"),
    ],
)
def test_bad_files(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset("emnist", tmp_path)
    assert "harness data fetch emnist" in str(caught.value) and "\n" not in str(caught.value)


def test_fetch_keeps_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(target: Path, split: str, download: bool) -> None:
        write_balanced(target)
        (target / "EMNIST" / "raw" / f"emnist-{split}-test-images-idx3-ubyte").touch()

    monkeypatch.setattr(torchvision.datasets, "EMNIST", download)
    fetch_dataset("emnist", tmp_path)
    assert len(load_dataset("emnist", tmp_path).images) == 6
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_the_real_arrays() -> None:
    root = Path(os.environ.get("HARNESS_DATA") or "none")
    if not (root / "EMNIST").is_dir():
        pytest.skip("EMNIST is not under HARNESS_DATA")
    dataset = load_dataset("emnist", root)
    assert dataset.image_shape == (1, 28, 28) and len(dataset.images) in (112_800, 116_323)
    assert dataset.labels.unique().tolist() == list(range(47))
    # Upright: a one is higher than wide.
    ones = dataset.images[dataset.labels == 1][:, 0].mean(0)
    assert (ones.amax(1) > 0.2).sum() > (ones.amax(0) > 0.2).sum()
