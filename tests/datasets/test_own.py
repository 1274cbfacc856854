"""Own .npz data: what is accepted, and the one line each mistake gets."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.base.errors import UsageError
from harness.datasets import load_dataset

GREY = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
LABELS = np.array([0, 2, 1, 2])


def save(folder: Path, **arrays: np.ndarray) -> str:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 6, 5), (1, 6, 5)),
        ((4, 1, 6, 5), (1, 6, 5)),
        ((4, 3, 6, 5), (3, 6, 5)),
        ((4, 6, 5, 1), (1, 6, 5)),
        ((4, 6, 5, 3), (3, 6, 5)),
    ],
)
def test_layouts(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    images = np.arange(np.prod(shape)).reshape(shape) % 256
    dataset = load_dataset(save(tmp_path, images=images.astype(np.uint8), labels=LABELS), tmp_path)
    assert dataset.image_shape == expected
    assert dataset.images[1, -1, 2, 3] == pytest.approx(images.reshape(4, -1)[1, flat_index(shape, expected)] / 255)


def flat_index(shape: tuple[int, ...], image: tuple[int, int, int]) -> int:
    """Where pixel (last channel, row 2, column 3) lies in one image of the file's layout."""
    channels_last = len(shape) == 4 and shape[1] not in (1, 3)
    position = (2, 3, image[0] - 1) if channels_last else (image[0] - 1, 2, 3)
    return int(np.ravel_multi_index(position, (*image[1:], image[0]) if channels_last else image))


@pytest.mark.parametrize("name", ["own.npy", "own.h5", "own.pt", "folder/own"])
def test_other_files_are_told_how_to_become_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"is no \.npz, \.csv or .*convert it.*savez\('NEW\.npz', images=images"):
        load_dataset(str(tmp_path / name), tmp_path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder; give the path of an \.npz.*--dataset retina"):
        load_dataset(str(tmp_path), tmp_path)


def test_sixteen_bits_keep_their_levels(tmp_path: Path) -> None:
    deep = (GREY.astype(np.uint16) * 257 + 3).clip(0, 65535)
    images = load_dataset(save(tmp_path, images=deep, labels=LABELS), tmp_path).images
    assert len(images.unique()) == len(np.unique(deep)) and images.max() == pytest.approx(deep.max() / 65535)


def test_twelve_bits_in_sixteen_are_no_black_images(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="images of type uint16; save them as uint8"):
        load_dataset(save(tmp_path, images=GREY.astype(np.uint16) * 16, labels=LABELS), tmp_path)


@pytest.mark.parametrize(
    ("labels", "said"), [([1, 2, 1, 2], "no example with label 0, and counts 3"), ([0, 3, 0, 3], "label 1, 2, and")]
)
def test_unused_labels_are_told(tmp_path: Path, labels: list[int], said: str, caplog: pytest.LogCaptureFixture) -> None:
    load_dataset(save(tmp_path, images=GREY, labels=np.array(labels)), tmp_path)
    assert said in caplog.text
    caplog.clear()
    load_dataset(save(tmp_path, images=GREY, labels=LABELS), tmp_path)
    assert not caplog.text


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", ">f4"])
def test_types_become_float32_in_the_unit_range(tmp_path: Path, dtype: str) -> None:
    images = np.array([0, 255], np.uint8) if dtype == "uint8" else np.array([0, 1], dtype)
    path = save(tmp_path, images=np.tile(images, (4, 6, 1)), labels=LABELS.astype(np.int16))
    dataset = load_dataset(path, tmp_path)
    assert (dataset.images.dtype, dataset.labels.dtype) == (torch.float32, torch.int64)
    assert (dataset.images.min(), dataset.images.max()) == (0, 1)
    assert (dataset.name, dataset.num_classes, dataset.class_names) == ("own.npz", 3, ("0", "1", "2"))
    assert dataset.labels.tolist() == LABELS.tolist()
    assert str(tmp_path) not in dataset.origin


def with_value(value: float) -> np.ndarray:
    images = np.zeros((4, 6, 5))
    images[2, 3, 4] = value
    return images


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": GREY}, "no array 'labels'"),
        ({"labels": LABELS}, "no array 'images'"),
        ({"images": with_value(255.0)}, "values from 0 to 255; scale floats"),
        ({"images": with_value(-2.0)}, "take mean and deviation off again, and name them behind the model: NAME"),
        ({"images": with_value(-0.1)}, "values from -0.1 to 0"),
        ({"images": with_value(np.nan)}, "NaN or infinite"),
        ({"images": with_value(np.inf)}, "NaN or infinite"),
        ({"images": GREY.astype(np.int32)}, "type int32; save them as uint8"),
        ({"images": GREY / GREY.max() / 255}, "almost black; divide bytes by 255 once"),
        ({"images": (GREY.mean() < GREY).astype(np.uint8)}, "bytes of 0 and 1 as images; multiply them by 255"),
        ({"images": GREY.astype("U3")}, "type <U3"),
        ({"images": GREY.astype(object)}, "pickled objects"),
        ({"images": np.zeros((4, 30))}, r"shape \(4, 30\)"),
        ({"images": np.zeros((4, 6, 5, 4))}, "one or three channels"),
        ({"images": np.zeros((0, 6, 5))}, "at least one image"),
        ({"images": np.zeros((4, 0, 5))}, "shape"),
        ({"labels": LABELS[:3]}, r"labels of shape \(3,\) for 4 images"),
        ({"labels": LABELS[:, None]}, "one label per image"),
        ({"labels": LABELS - 1}, r"negative label \(-1\)"),
        ({"labels": LABELS / 2}, "labels of type float64"),
        ({"labels": LABELS.astype(object)}, "pickled objects"),
        ({"labels": LABELS.astype(np.uint64) + np.uint64(2**63)}, "number the classes from 0"),
    ],
)
def test_unfit_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    whole = arrays if "no array" in message else {"images": GREY, "labels": LABELS} | arrays
    check_refused(save(tmp_path, **whole), message)


def check_refused(path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset(path, Path())
    assert "\n" not in str(caught.value)
    assert path in str(caught.value)


def archive_bytes() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, images=GREY, labels=LABELS)
    return stream.getvalue()


def npy_bytes() -> bytes:
    stream = io.BytesIO()
    np.save(stream, GREY)
    return stream.getvalue()


class Bomb:
    """Ends the test run when unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", archive_bytes()[:-30], archive_bytes()[:200], npy_bytes(), pickle.dumps(Bomb())],
    ids=["empty", "text", "no directory", "cut", "npy", "pickle"],
)
def test_not_an_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(content)
    check_refused(str(path), "cannot be read as an .npz archive")


def test_damaged_bytes_never_end_in_another_error(tmp_path: Path) -> None:
    good, path, random = archive_bytes(), tmp_path / "own.npz", np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        damaged[random.integers(len(good))] = random.integers(256)
        path.write_bytes(damaged)
        try:
            load_dataset(str(path), tmp_path)
        except UsageError:
            refused += 1
    assert refused > 150


def test_objects_are_refused_before_they_are_unpickled(tmp_path: Path) -> None:
    check_refused(save(tmp_path, images=np.array([Bomb()], object), labels=LABELS), "pickled objects")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    check_refused(str(tmp_path / "absent.npz"), "is not a file; give the path")
    (tmp_path / "folder.npz").mkdir()
    check_refused(str(tmp_path / "folder.npz"), "is not a file")


@pytest.mark.parametrize("name", ["images", "labels"])
def test_members_that_are_no_arrays_are_not_unpickled_either(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, **{other: GREY for other in {"images", "labels"} - {name}})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", pickle.dumps(Bomb()))
    check_refused(path, "plain arrays")
