"""Datasets of the Hugging Face hub, which a stand-in of its library has: nothing here asks the hub."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

import harness
from harness.base.errors import UsageError
from harness.datasets import dataset_name, fetch_dataset, load_dataset

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Image:
    """A column of pictures."""


class ClassLabel:
    """A column of classes."""


class Rows(list):
    features: dict[str, Any]


def rows(size: int = 8, mode: str = "L", **others: Any) -> Rows:
    random = np.random.default_rng(0)
    made = Rows()
    for number in range(20):
        pixels = random.integers(0, 256, (size, size) if mode == "L" else (size, size, 3), dtype=np.uint8)
        made.append({"image": Picture.fromarray(pixels), "label": number % 4})
    made.features = {"image": Image(), "label": ClassLabel()} | others
    return made


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library; what it was asked for is in ``asked``."""
    library, api = ModuleType("datasets"), ModuleType("huggingface_hub")
    state = SimpleNamespace(rows=rows(), asked=[], library=library)

    def load(name: str, **how: Any) -> Rows:
        state.asked.append((name, how))
        return state.rows

    def info(name: str, revision: str | None) -> Any:
        if "absent" in name:
            raise ConnectionError("404\nno such dataset")
        return SimpleNamespace(sha=COMMIT)

    library.__version__, library.load_dataset, library.ClassLabel = "5.2.0", load, ClassLabel
    api.HfApi = lambda: SimpleNamespace(dataset_info=info)
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "huggingface_hub", api)
    return state


def test_a_fetched_dataset_is_attacked_under_its_commit(hub: Any, harness: Harness, tmp_path: Path) -> None:
    root = ("--data-root", str(tmp_path / "data"))
    done = harness("data", "fetch", "hf:some/digits@main", *root)
    name = f"hf:some/digits@{COMMIT}"
    assert (done.code, done.out) == (0, f"{name} is ready\n")
    assert hub.asked == [("some/digits", {"split": "train", "revision": COMMIT})]
    hub.asked.clear()
    line = f"evaluate --defense none --dataset {name} --model mlp --victims 2 --attack-arg max_iterations=1"
    assert harness(*line.split(), *root, "--surface", "2").code == 0
    assert not hub.asked
    run = load_run()
    assert {cell.dataset for cell in run.cells} == {name}
    loaded = load_dataset(name, tmp_path / "data")
    assert np.array_equal(loaded.images[3, 0] * 255, np.asarray(hub.rows[3]["image"])) and loaded.name == name
    assert len(load_dataset(name, tmp_path / "data", "train").labels) < 20


def load_run() -> Any:
    return harness.load("runs")


def test_colours_stay(hub: Any, tmp_path: Path) -> None:
    hub.rows = rows(mode="RGB")
    assert load_dataset(fetch_dataset("hf:colours", tmp_path), tmp_path).images.shape == (20, 3, 8, 8)


def of(name: str, **change: Any) -> Callable[[Any, Path, pytest.MonkeyPatch], Any]:
    def call(hub: Any, root: Path, patch: pytest.MonkeyPatch) -> None:
        for key, value in change.items():
            setattr(hub, key, value)
        fetch_dataset(name, root)

    return call


def library(**change: Any) -> Callable[[Any, Path, pytest.MonkeyPatch], Any]:
    def call(hub: Any, root: Path, patch: pytest.MonkeyPatch) -> None:
        for key, value in change.items():
            patch.delattr(hub.library, key) if value is None else patch.setattr(hub.library, key, value)
        fetch_dataset("hf:digits", root)

    return call


def absent(hub: Any, root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "datasets", None)
    fetch_dataset("hf:digits", root)


MIXED = rows()
MIXED[1]["image"] = Picture.fromarray(np.zeros((9, 9), np.uint8))
EMPTY = Rows()
EMPTY.features = rows().features

MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "no library": (absent, r"need the package datasets; pip install 'gradient-leakage-harness\[hf\]'"),
    "another library": (library(load_dataset=None), "`datasets` is not Hugging Face's but"),
    "an old library": (library(__version__="2.19.0"), "may run code of the hub; take version 4 or later"),
    "no such dataset": (
        of("hf:absent"),
        "could not be loaded .ConnectionError: 404 no such dataset.; check its name and",
    ),
    "no name": (of("hf:../../etc"), "is no name of the hub"),
    "no images": (of("hf:x", rows=rows(image=ClassLabel())), "only images with a class are read"),
    "several sizes": (of("hf:x", rows=MIXED), "images of several sizes"),
    "no rows": (of("hf:x", rows=EMPTY), "has no rows"),
    "no commit": (lambda *_: dataset_name("hf:digits"), "names no commit, and data on the hub change"),
    "a branch": (lambda *_: dataset_name("hf:digits@main"), "harness data fetch hf:digits prints the name"),
    "not fetched": (lambda _, root, __: load_dataset(f"hf:x@{COMMIT}", root), "get it with: harness data fetch hf:x@"),
}


@pytest.mark.parametrize(("call", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(
    call: Callable[..., Any], said: str, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=said) as told:
        call(hub, tmp_path, monkeypatch)
    assert "\n" not in str(told.value) and not any(tmp_path.rglob("*.npz"))


def test_a_damaged_file_is_one_line(hub: Any, tmp_path: Path) -> None:
    name = fetch_dataset("hf:digits", tmp_path)
    (file,) = tmp_path.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UsageError, match=f"get it with: harness data fetch {name}"):
        load_dataset(name, tmp_path)
