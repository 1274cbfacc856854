"""EMNIST in both layouts: which split is read, upright images, and files that are damaged or of another dataset."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from harness.base.errors import UsageError
from harness.datasets import fetch_dataset, load_dataset
from harness.datasets.mnist import CHARACTERS

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 10, 46, 36, 9, 1], dtype=np.uint8)
CODES = np.array([ord(character) for character in CHARACTERS], dtype=np.uint8)


def write_raw(root: Path, part: str = "balanced-train") -> Path:
    raw = root / "EMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    images, stored = raw / f"emnist-{part}-images-idx3-ubyte", PIXELS.transpose(0, 2, 1)
    images.write_bytes(struct.pack(">4I", 0x803, *stored.shape) + stored.tobytes())
    labels = raw / f"emnist-{part}-labels-idx1-ubyte"
    labels.write_bytes(struct.pack(">2I", 0x801, len(LABELS)) + LABELS.tobytes())
    return images


def write_prepared(root: Path, **arrays: np.ndarray) -> None:
    (root / "EMNIST").mkdir(exist_ok=True)
    good = {"images": PIXELS, "labels": LABELS, "mapping": CODES}
    np.savez(root / "EMNIST" / "emnist_bymerge_test.npz", **(good | arrays))


@pytest.mark.parametrize(
    ("name", "write", "split"),
    [
        ("emnist", write_raw, "Balanced, training"),
        ("emnist-bymerge", lambda root: write_raw(root, "bymerge-test"), "ByMerge, test part, unbalanced"),
        ("emnist-bymerge", write_prepared, "ByMerge, test part, unbalanced"),
    ],
)
def test_images_are_upright_and_the_split_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], None], split: str
) -> None:
    write(tmp_path)
    dataset = load_dataset(name, tmp_path)
    assert torch.equal(dataset.images, torch.from_numpy(PIXELS[:, None]).float() / 255)
    assert [dataset.class_names[label] for label in dataset.labels] == ["0", "A", "t", "a", "9", "1"]
    assert (dataset.name, dataset.num_classes) == (name, 47) and split in dataset.origin


def cut(root: Path, part: str) -> None:
    path = write_raw(root, part)
    path.write_bytes(path.read_bytes()[:-1])


def spoil(**arrays: np.ndarray) -> Callable[[Path], None]:
    return lambda root: write_prepared(root, **arrays)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("emnist", lambda root: cut(root, "balanced-train"), "truncated or damaged"),
        ("emnist", write_prepared, "dataset 'emnist' is not under"),
        ("emnist-bymerge", lambda root: cut(root, "bymerge-test"), "truncated or damaged"),
        ("emnist-bymerge", write_raw, "dataset 'emnist-bymerge' is not under"),
        ("emnist-bymerge", spoil(images=PIXELS[:, :8]), r"shape \(6, 8, 28\) instead of"),
        ("emnist-bymerge", spoil(labels=LABELS + 1), "has label 47"),
        ("emnist-bymerge", spoil(labels=LABELS[:5]), "labels of shape"),
        ("emnist-bymerge", spoil(mapping=CODES[::-1]), "not those of EMNIST"),
        ("emnist-bymerge", spoil(mapping=CODES[:10]), "not those of EMNIST"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, damage: Callable[[Path], None], message: str) -> None:
    damage(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset(name, tmp_path)
    assert f"harness data fetch {name}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["emnist", "emnist-bymerge"])
def test_fetch_keeps_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def download(target: Path, split: str, download: bool) -> None:
        for part in (f"{split}-train", f"{split}-test", "letters-train"):
            write_raw(target, part)

    monkeypatch.setattr(torchvision.datasets, "EMNIST", download)
    fetch_dataset(name, tmp_path)
    assert len(load_dataset(name, tmp_path).images) == 6
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2


def test_the_real_arrays(real: Callable[..., Any]) -> None:
    dataset = real("emnist-bymerge")
    assert dataset.image_shape == (1, 28, 28) and len(dataset.images) == 116_323
    assert dataset.labels.unique().tolist() == list(range(47))
    # Upright: a one is higher than wide.
    ones = dataset.images[dataset.labels == 1][:, 0].mean(0)
    assert (ones.amax(1) > 0.2).sum() > (ones.amax(0) > 0.2).sum()
