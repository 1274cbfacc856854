"""Bundled data, status, data root, downloads, and that the package installs no top-level name."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness.datasets
from harness.base.errors import UsageError
from harness.datasets import DATASETS, Dataset, cifar10, data_root, dataset_status, fetch_dataset, load_dataset, mnist
from harness.datasets.catalogue import _move_files
from harness.datasets.make_samples import SAMPLES, make_samples
from harness.datasets.samples import BUNDLED

GENERATED = ["logistic-0-0", "logistic-1-1", "logistic-5-5"]
NAMES = [
    "acs-income", "adult", "cancer", "cifar10", "cifar10-sample", "digits", "emnist", "emnist-bymerge",
    "fashion-mnist", "lfw", *GENERATED, "mnist", "mnist-sample", "notes", "retina",
]  # fmt: skip
BUNDLED_NAMES = ["cancer", "cifar10-sample", "digits", *GENERATED, "mnist-sample", "notes"]


@pytest.fixture(autouse=True)
def no_debian_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "DEBIAN_FOLDER", tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "shape", "per_class"),
    [("mnist-sample", (1, 28, 28), 100), ("cifar10-sample", (3, 32, 32), 50), ("digits", (1, 8, 8), None)],
)
def test_available_without_a_data_root(
    tmp_path: Path, name: str, shape: tuple[int, int, int], per_class: int | None
) -> None:
    dataset = load_dataset(name, tmp_path / "absent")
    assert (dataset.name, dataset.image_shape, dataset.num_classes) == (name, shape, 10)
    assert (dataset.images.dtype, dataset.labels.dtype) == (torch.float32, torch.int64)
    assert (dataset.images.min(), dataset.images.max()) == (0, 1)
    counts = dataset.labels.bincount().tolist()
    assert counts == [per_class] * 10 if per_class else min(counts) > 170
    assert dataset.images.flatten(1).unique(dim=0).shape[0] == len(dataset.images)


def test_samples_are_what_the_maintenance_script_makes(tmp_path: Path) -> None:
    root = data_root(None)
    try:
        make_samples(root, tmp_path)
    except UsageError as error:
        pytest.skip(f"needs the full datasets: {error}")
    for name in SAMPLES:
        with np.load(tmp_path / f"{name}.npz") as made, np.load(BUNDLED / f"{name}.npz") as bundled:
            assert made.files == bundled.files
            assert all(np.array_equal(made[array], bundled[array]) for array in made.files)


def test_every_bundled_file_states_its_licence() -> None:
    licences = (BUNDLED / "LICENCES.md").read_text()
    assert all(path.name in licences for path in BUNDLED.glob("*.npz"))


def test_status_of_an_empty_root(tmp_path: Path) -> None:
    status = {entry.name: entry for entry in dataset_status(tmp_path)}
    assert list(status) == list(DATASETS) == NAMES
    assert [name for name in NAMES if status[name].available] == BUNDLED_NAMES
    assert status["mnist"].obtain == "harness data fetch mnist"
    assert status["fashion-mnist"].obtain.endswith("or install Debian's package dataset-fashion-mnist")
    assert status["retina"].obtain.startswith("put the images of each class into a folder")
    assert all(entry.origin and entry.licence and entry.where for entry in status.values())


def test_status_looks_at_names_only(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").touch()
    assert not status_of("mnist", tmp_path)
    (raw / "train-labels-idx1-ubyte").touch()
    assert status_of("mnist", tmp_path)


def status_of(name: str, root: Path) -> bool:
    return next(entry.available for entry in dataset_status(root) if entry.name == name)


def test_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    assert data_root(None) == tmp_path
    assert data_root(tmp_path / "option") == tmp_path / "option"
    monkeypatch.setenv("HARNESS_DATA", "")
    assert data_root(None) == Path.home() / ".cache" / "harness"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder; name a folder with --data-root"):
        data_root(tmp_path / "file")


@pytest.mark.parametrize("name", ["mnist-sample", "cifar10-sample", "digits"])
def test_nothing_to_fetch(tmp_path: Path, name: str) -> None:
    fetch_dataset(name, tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_fetch_unknown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown dataset"):
        fetch_dataset("imagenet", tmp_path)


def fail(*arguments: object, **options: object) -> None:
    raise OSError("no route\nto host")


def test_what_is_fetched_replaces_no_link(tmp_path: Path) -> None:
    for folder in ("made", "root"):
        (tmp_path / folder).mkdir()
    (tmp_path / "made" / "data.bin").write_bytes(b"new")
    (tmp_path / "root" / "data.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"\(it is a link\); choose another place with --data-root"):
        _move_files(tmp_path / "made", tmp_path / "root")
    assert (tmp_path / "root" / "data.bin").is_symlink()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mnist", "torchvision.datasets.MNIST.download"),
        ("fashion-mnist", "torchvision.datasets.FashionMNIST.download"),
        ("emnist", "torchvision.datasets.EMNIST.download"),
        ("cifar10", "torchvision.datasets.utils.download_url"),
        ("lfw", "sklearn.datasets.fetch_lfw_people"),
    ],
)
def test_failed_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, function: str) -> None:
    monkeypatch.setattr(function, fail)
    with pytest.raises(UsageError, match=rf"\(no route\); check the connection.*harness data fetch {name}$"):
        fetch_dataset(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fetch_fixes_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(root: Path, content: bytes) -> None:
        raw = root / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for part in ("train", "t10k"):
            (raw / f"{part}-images-idx3-ubyte").write_bytes(content)
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
        (raw / "train-images-idx3-ubyte.gz").touch()

    def download(target: Path, download: bool) -> None:
        write(target, bytes([0, 0, 8, 3, *([0, 0, 0, 1] * 3), 255]))

    write(tmp_path, b"damaged")
    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    fetch_dataset("mnist", tmp_path)
    assert load_dataset("mnist", tmp_path).labels.tolist() == [7]
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]
    monkeypatch.setattr("torchvision.datasets.MNIST", fail)
    fetch_dataset("mnist", tmp_path)
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match="could not be downloaded"):  # the test part counts too
        fetch_dataset("mnist", tmp_path)


@pytest.mark.parametrize("batches", [5, 4])
def test_fetch_cifar10_reads_the_expected_members_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    def download_url(url: str, root: str, filename: str, md5: str) -> None:
        names = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, batches + 1)]
        names.append("cifar-10-batches-bin/test_batch.bin")
        with tarfile.open(Path(root) / filename, "w:gz") as archive:
            for name in ("../outside", "cifar-10-batches-bin/extra", *names):
                member = tarfile.TarInfo(name)
                member.size = 3073
                archive.addfile(member, io.BytesIO(bytes(3073)))

    monkeypatch.setattr("torchvision.datasets.utils.download_url", download_url)
    monkeypatch.setattr(cifar10, "IMAGES_PER_BATCH", 1)
    root = tmp_path / "root"
    if batches < 5:
        with pytest.raises(UsageError, match=r"no file cifar-10-batches-bin/data_batch_5\.bin"):
            fetch_dataset("cifar10", root)
        return
    fetch_dataset("cifar10", root)
    assert len(load_dataset("cifar10", root).images) == 5
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == [
        *(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin",
    ]
    assert list(tmp_path.iterdir()) == [root]


def test_fetch_lfw_leaves_the_prepared_arrays_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    def fetch_lfw_people(data_home: str, **options: object) -> None:
        person = Path(data_home) / "lfw_home" / "lfw_funneled" / "A_B"
        person.mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (250, 250), (10 * number, 0, 255)).save(person / f"{number:02}.png")

    monkeypatch.setattr("sklearn.datasets.fetch_lfw_people", fetch_lfw_people)
    fetch_dataset("lfw", tmp_path)
    dataset = load_dataset("lfw", tmp_path)
    assert (len(dataset.images), dataset.class_names) == (20, ("A B",))
    assert dataset.images[:, 0, 0, 0].mul(255).round().sort().values.tolist() == [10 * number for number in range(20)]
    assert [path.name for path in tmp_path.rglob("*")] == ["LFW", "lfw_people_min20_color_32x32.npz"]


def test_no_top_level_package_is_ours() -> None:
    """A flat install would overwrite, and on removal delete, an installed package of the same name."""
    program = "import importlib.util; print(importlib.util.find_spec('datasets'))"
    command = [sys.executable, "-P", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert str(Path(harness.datasets.__file__).parent) not in found


GOOD = {
    "images": torch.zeros(20, 1, 8, 8), "labels": torch.arange(20) % 2, "class_names": ("a", "b"), "origin": "made up",
}  # fmt: skip
BAD: dict[str, tuple[Any, str]] = {
    "bytes as numbers": (GOOD | {"images": torch.full((20, 1, 8, 8), 255.0)}, "values from 255 to 255, and .0, 1."),
    "bytes": (GOOD | {"images": torch.zeros(20, 1, 8, 8, dtype=torch.uint8)}, "no tensor .N, C, H, W. of float32"),
    "no number": (GOOD | {"images": torch.full((20, 1, 8, 8), torch.nan)}, "image values from nan to nan"),
    "channels last": (GOOD | {"images": torch.zeros(20, 8, 8, 3)}, "images of 8 channels, and 1 or 3 come first"),
    "labels from 1": (GOOD | {"labels": 1 + torch.arange(20) % 2}, "labels from 1 to 2, and 2 class names from 0"),
    "labels of floats": (GOOD | {"labels": torch.zeros(20)}, "labels that are no tensor .N,. of int64"),
    "too few labels": (GOOD | {"labels": torch.zeros(5, dtype=torch.int64)}, "5 labels for 20 examples"),
    "nothing": (None, "its function returns NoneType; let it return a Dataset"),
}


@pytest.mark.parametrize(("made", "said"), [(GOOD, ""), *BAD.values()], ids=["good", *BAD])
def test_what_a_loader_from_elsewhere_returns_is_checked(
    made: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DATASETS.aliases("digits")  # what is installed is looked for before this is added
    monkeypatch.setitem(DATASETS._entries, "somebodys", lambda root: made and Dataset("somebodys", **made))
    if not said:
        assert len(load_dataset("somebodys", tmp_path).labels) == 20
        return
    with pytest.raises(UsageError, match=f"dataset 'somebodys'.* {said}"):
        load_dataset("somebodys", tmp_path)
