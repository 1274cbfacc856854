"""A user's class folders of photographs: how they become images, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.base.errors import UsageError
from harness.datasets import fetch_dataset, load_dataset
from harness.datasets.retina import SIDE


def save(path: Path, colours: tuple[str, str, str] = ("black", "red", "black"), mode: str = "RGB") -> None:
    """Three upright bands, the middle one as wide as the image is high."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (600, 300), colours[0])
    image.paste(colours[1], (150, 0, 450, 300))
    image.paste(colours[2], (450, 0, 600, 300))
    image.convert(mode).save(path)


def folders(root: Path) -> None:
    save(root / "retina" / "healthy" / "b.png", ("black", "white", "black"), "L")
    save(root / "retina" / "healthy" / "a.jpg")
    save(root / "retina" / "severe" / "c.png", ("black", "blue", "black"))
    (root / "retina" / ".hidden").touch()


def test_the_square_in_the_middle_is_resized(tmp_path: Path) -> None:
    folders(tmp_path)
    dataset = load_dataset("retina", tmp_path)
    assert (dataset.image_shape, dataset.class_names) == ((3, SIDE, SIDE), ("healthy", "severe"))
    assert dataset.labels.tolist() == [0, 0, 1]
    middles = dataset.images[:, :, 2:-2, 2:-2].mean((2, 3))
    assert middles.tolist() == [pytest.approx(each, abs=0.02) for each in ([1, 0, 0], [1, 1, 1], [0, 0, 1])]


def test_a_changed_image_is_read_again(tmp_path: Path) -> None:
    folders(tmp_path)
    load_dataset("retina", tmp_path)
    save(tmp_path / "retina" / "severe" / "c.png", ("black", "lime", "black"))
    assert load_dataset("retina", tmp_path).images[2, 1].mean() > 0.9


def write(path: str, content: bytes) -> Callable[[Path], object]:
    def damage(root: Path) -> None:
        folders(root)
        (root / "retina" / path).write_bytes(content)

    return damage


def cut(root: Path) -> None:
    folders(root)
    path = root / "retina" / "severe" / "c.png"
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: None, "put the images of each class into a folder of their own below retina/"),
        (lambda root: (root / "retina").mkdir(), "has 0 class folders; give every class a folder"),
        (lambda root: save(root / "retina" / "one" / "a.png"), "has 1 class folders"),
        (lambda root: (folders(root), (root / "retina" / "none").mkdir()), "none holds no images; add images"),
        (write("train.csv", b"id,diagnosis"), "train.csv lies beside the class folders; put it into"),
        (write("healthy/notes.txt", b"no image"), "notes.txt is not a readable image; replace it"),
        (write("healthy/empty.png", b""), "empty.png is not a readable image"),
        (cut, "c.png is not a readable image"),
        (
            lambda root: (folders(root), (root / "retina" / "severe" / "more").mkdir()),
            "more cannot be read .it is a folder.; replace it",
        ),
    ],
)
def test_bad_folders(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset("retina", tmp_path)
    assert "\n" not in str(caught.value)


def test_there_is_nothing_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="below retina/"):
        fetch_dataset("retina", tmp_path)


@pytest.mark.parametrize(("dtype", "ending"), [(np.uint16, "png"), (np.uint16, "tiff")])
def test_greys_of_sixteen_bits_are_those_of_eight(tmp_path: Path, dtype: type, ending: str) -> None:
    steps = np.linspace(0, 1, 256).round(3).repeat(256).reshape(256, 256)
    for folder, most, kind, end in (("8", 255, np.uint8, "png"), ("16", 65535, dtype, ending)):
        for label in ("a", "b"):
            (tmp_path / folder / "retina" / label).mkdir(parents=True)
            Image.fromarray((steps * most).round().astype(kind)).save(tmp_path / folder / "retina" / label / f"x.{end}")
    fine, deep = (load_dataset("retina", tmp_path / folder).images for folder in ("8", "16"))
    assert len(deep.unique()) > 50
    assert float((fine - deep).abs().max()) <= 1.01 / 255


def test_pixels_of_no_known_range_are_refused(tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "retina" / label).mkdir(parents=True)
        Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(tmp_path / "retina" / label / "x.tiff")
    with pytest.raises(UsageError, match="pixels of mode F, whose range is not known; save it with 8 or 16 bits"):
        load_dataset("retina", tmp_path)
