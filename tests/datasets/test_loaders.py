"""The registered datasets: small files made here in each format, damaged ones, and the real files where at hand."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from harness.base.errors import UsageError
from harness.datasets import cifar10, load_dataset, mnist

RANDOM = np.random.default_rng(0)


def write_idx(root: Path, folder: str = "MNIST") -> tuple[np.ndarray, np.ndarray]:
    images = RANDOM.integers(0, 256, (12, 28, 28), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *images.shape) + images.tobytes())
    (raw / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 12) + labels.tobytes())
    return images, labels


def write_cifar10(root: Path) -> np.ndarray:
    records = RANDOM.integers(0, 256, (5, 2, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for number, batch in enumerate(records, start=1):
        (folder / f"data_batch_{number}.bin").write_bytes(batch.tobytes())
    return records.reshape(10, 3073)


def write_faces(root: Path) -> None:
    (root / "LFW").mkdir()
    faces = RANDOM.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    path = root / "LFW" / "lfw_people_min20_color_32x32.npz"
    np.savez(path, images=faces, target=np.array([0, 1, 1, 0, 1]), target_names=np.array(["A B", "C D"]))


def write_photographs(root: Path) -> Path:
    """Two people whose order changes when underscores become spaces, and one with too few photographs."""
    home = root / "lfw_home" / "lfw_funneled"
    for name, count in {"Ann-Eve_B": 20, "Ann_C": 21, "Rare_D": 2}.items():
        (home / name).mkdir(parents=True)
        for number in range(count):
            pixels = RANDOM.integers(0, 256, (250, 250, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(home / name / f"{name}_{number:04}.jpg")
    return home


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "IMAGES_PER_BATCH", 2)


@pytest.fixture(autouse=True)
def debian_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, whatever is installed on this machine."""
    folder = tmp_path_factory.mktemp("debian")
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", folder)
    return folder


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx(tmp_path: Path, name: str, folder: str) -> None:
    images, labels = write_idx(tmp_path, folder)
    dataset = load_dataset(name, tmp_path)
    assert torch.equal(dataset.images, torch.from_numpy(images[:, None]).float() / 255)
    assert dataset.labels.tolist() == labels.tolist()
    assert (dataset.name, dataset.num_classes) == (name, 10)


def test_fashion_mnist_as_debian_installs_it(tmp_path: Path, debian_folder: Path) -> None:
    images, _ = write_idx(tmp_path / "elsewhere")
    for path in (tmp_path / "elsewhere" / "MNIST" / "raw").iterdir():
        (debian_folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    dataset = load_dataset("fashion-mnist", tmp_path)
    assert torch.equal(dataset.images, torch.from_numpy(images[:, None]).float() / 255)
    (debian_folder / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip file")
    check_refused("fashion-mnist", tmp_path, "is damaged, or no gzip file")
    (debian_folder / "train-images-idx3-ubyte.gz").unlink()
    check_refused("fashion-mnist", tmp_path, "or install Debian's package dataset-fashion-mnist")
    check_refused("mnist", tmp_path, "get it with: harness data fetch mnist \\(or name")


def test_cifar10(tmp_path: Path) -> None:
    records = write_cifar10(tmp_path)
    dataset = load_dataset("cifar10", tmp_path)
    assert dataset.labels.tolist() == records[:, 0].tolist()
    assert dataset.images[7, 1, 2, 3].item() == pytest.approx(records[7, 1 + 1024 + 2 * 32 + 3] / 255)


def test_prepared_faces(tmp_path: Path) -> None:
    write_faces(tmp_path)
    dataset = load_dataset("lfw", tmp_path)
    assert (dataset.image_shape, dataset.class_names) == ((3, 32, 32), ("A B", "C D"))


def test_photographs_are_read_as_scikit_learn_reads_them(tmp_path: Path) -> None:
    from sklearn.datasets import fetch_lfw_people

    home = write_photographs(tmp_path)
    for pairs in ("pairsDevTrain.txt", "pairsDevTest.txt", "pairs.txt"):
        (home.parent / pairs).touch()
    crop = slice(61, 189)
    reference = fetch_lfw_people(
        data_home=tmp_path,
        download_if_missing=False,
        min_faces_per_person=20,
        color=True,
        slice_=(crop, crop),
        resize=0.25,
    )
    dataset = load_dataset("lfw", tmp_path)
    images = reference.images / (255 if reference.images.max() > 1 else 1)
    np.testing.assert_allclose(dataset.images.permute(0, 2, 3, 1).numpy(), images, atol=1e-6)
    assert dataset.labels.tolist() == reference.target.tolist()
    assert dataset.class_names == tuple(reference.target_names) == ("Ann C", "Ann-Eve B")


def cut(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:-1])


def overwrite(path: str, offset: int, value: bytes) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        content = bytearray((root / path).read_bytes())
        content[offset : offset + len(value)] = value
        (root / path).write_bytes(content)

    return damage


def empty(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes(b"")


def save_faces(**arrays: np.ndarray) -> Callable[[Path], None]:
    good = {"images": np.zeros((2, 32, 32, 3)), "target": np.array([0, 1]), "target_names": np.array(["A", "B"])}
    return lambda root: np.savez(root / FACES, **(good | arrays))


IMAGES, LABELS = "MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"
BATCH, FACES = "cifar-10-batches-bin/data_batch_3.bin", "LFW/lfw_people_min20_color_32x32.npz"


@pytest.mark.parametrize(
    ("name", "write", "damage", "message"),
    [
        ("mnist", write_idx, cut(IMAGES), "truncated or damaged"),
        ("mnist", write_idx, cut(LABELS), "truncated or damaged"),
        ("mnist", write_idx, empty(IMAGES), "not an unpacked idx file"),
        ("mnist", write_idx, overwrite(IMAGES, 0, b"\x1f\x8b"), "not an unpacked idx file"),
        ("mnist", write_idx, overwrite(IMAGES, 4, b"\xff" * 12), "truncated or damaged"),
        ("mnist", write_idx, overwrite(LABELS, 8, b"\x0a"), "has label 10, but there are at most 10"),
        ("mnist", write_idx, lambda root: (root / LABELS).unlink(), "dataset 'mnist' is not under"),
        ("cifar10", write_cifar10, cut(BATCH), "truncated or damaged"),
        ("cifar10", write_cifar10, empty(BATCH), "truncated or damaged"),
        ("cifar10", write_cifar10, overwrite(BATCH, 0, b"\xff"), "has label 255"),
        ("cifar10", write_cifar10, lambda root: (root / BATCH).unlink(), "dataset 'cifar10' is not under"),
        ("lfw", write_faces, cut(FACES), "cannot be read as an .npz"),
        ("lfw", write_faces, save_faces(images=np.zeros((2, 8, 8, 3))), "instead of"),
        ("lfw", write_faces, save_faces(target_names=np.array("A")), "no list of names"),
        ("lfw", write_faces, save_faces(target_names=np.array(["A"])), "has label 1"),
        ("lfw", write_faces, save_faces(images=np.full((2, 32, 32, 3), 255.0)), "values from 255 to 255"),
    ],
)
def test_damaged_files(
    tmp_path: Path, name: str, write: Callable[[Path], object], damage: Callable[[Path], object], message: str
) -> None:
    write(tmp_path)
    damage(tmp_path)
    check_refused(name, tmp_path, message)


def check_refused(name: str, root: Path, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset(name, root)
    assert f"harness data fetch {name}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "lfw"])
def test_missing(tmp_path: Path, name: str) -> None:
    check_refused(name, tmp_path, f"dataset '{name}' is not under .*--data-root")


def test_the_pickled_cifar10_is_named_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    check_refused("cifar10", tmp_path, "never opened because a pickle can run code")


def test_photographs_that_cannot_be_used(tmp_path: Path) -> None:
    home = tmp_path / "lfw_home" / "lfw_funneled"
    (home / "A_B").mkdir(parents=True)
    check_refused("lfw", tmp_path, "has nobody with 20 photographs")
    for number in range(20):
        (home / "A_B" / f"{number}.jpg").write_bytes(b"\xff\xd8 no photograph")
    check_refused("lfw", tmp_path, "not a readable photograph")


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        load_dataset("mnits", tmp_path)


@pytest.mark.parametrize(
    ("name", "count", "shape", "classes"),
    [
        ("mnist", 60_000, (1, 28, 28), 10),
        ("fashion-mnist", 60_000, (1, 28, 28), 10),
        pytest.param("cifar10", 50_000, (3, 32, 32), 10, marks=pytest.mark.slow),
        ("lfw", 3_023, (3, 32, 32), 62),
    ],
)
def test_real_files(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, shape: tuple[int, int, int], classes: int,
    real: Callable[..., Any],
) -> None:  # fmt: skip
    monkeypatch.undo()
    dataset = real(name)
    assert (len(dataset.images), dataset.image_shape, dataset.num_classes) == (count, shape, classes)
    assert (dataset.images.min(), dataset.images.max()) == (0, 1)
    assert dataset.labels.unique().tolist() == list(range(classes))
