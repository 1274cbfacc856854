"""A result made from another content of the user's own files is never taken for this one's."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.base.errors import UsageError
from harness.own_sources import own_sources
from harness.training import Training

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]

NETWORK = """
from torch import nn

def make(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.Sigmoid(), nn.Linear({width}, classes))
"""
EVALUATE = (
    "evaluate", "--defense", "none", "--attack", "idlg", "--victims", "2", "--surface", "2", "--dataset", "own.npz",
    "--model", "network_of_mine:make", "--attack-arg", "max_iterations=2", "--json", "--resume",
    "--no-pictures",
)  # fmt: skip
TRAIN = (
    "train", "--clients", "4", "--clients-per-round", "2", "--local-steps", "2", "--batch-size", "2", "--split", "iid",
    "--dataset", "own.npz", "--model", "network_of_mine:make", "--rounds", "1", "--keep-rounds", "1",
)  # fmt: skip


def write_network(width: int) -> None:
    Path("network_of_mine.py").write_text(NETWORK.format(width=width))
    sys.modules.pop("network_of_mine", None)
    importlib.invalidate_caches()


def write_data(seed: int) -> None:
    images = np.random.default_rng(seed).random((60, 8, 8), dtype=np.float32)
    np.savez("own.npz", images=images, labels=np.arange(60) % 3)


@pytest.fixture(autouse=True)
def own_files(harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of the same size and second
    write_network(16)
    write_data(0)


CHANGES = {"network": lambda: write_network(18), "dataset": lambda: write_data(1)}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_cell_is_made_again(harness: Harness, changed: str) -> None:
    def observation() -> str:
        return json.loads(harness(*EVALUATE).out)["cells"][0]["observation_id"]

    before = observation()
    stored = sorted(Path("runs").rglob("cells/*.json"))
    assert observation() == before and sorted(Path("runs").rglob("cells/*.json")) == stored
    CHANGES[changed]()
    assert observation() != before


@pytest.mark.parametrize("changed", ["network", pytest.param("dataset", marks=pytest.mark.slow)])
def test_a_training_run_does_not_go_on(harness: Harness, changed: str) -> None:
    assert harness(*TRAIN).code == 0
    assert harness(*TRAIN, "--resume").code == 0
    CHANGES[changed]()
    finished = harness(*TRAIN, "--resume")
    assert finished.code == 2 and len(finished.err.splitlines()) == 1
    assert f"another content of the {changed}'s file" in finished.err
    attacked = harness("evaluate", "--training", "training", "--round", "1", "--attack", "idlg", "--victims", "2")
    assert attacked.code == 2 and f"the {changed}'s file has changed since" in attacked.err


@pytest.mark.parametrize("changed", [pytest.param("network", marks=pytest.mark.slow), "dataset"])
def test_what_changes_while_a_run_lasts_is_not_what_it_was_made_from(
    harness: Harness, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Training.play_round

    def played(run: Training, round_index: int, chunk: int) -> Any:
        CHANGES[changed]()
        return play(run, round_index, chunk)

    monkeypatch.setattr(Training, "play_round", played)
    assert harness(*TRAIN).code == 0
    finished = harness(*TRAIN, "--resume")
    assert finished.code == 2 and f"another content of the {changed}'s file" in finished.err


def test_what_a_network_imports_from_its_folder_counts(harness: Harness) -> None:
    Path("network_of_mine.py").write_text("import widths\n" + NETWORK.format(width="widths.WIDTH"))
    Path("widths.py").write_text("WIDTH = 16")
    sys.modules.pop("network_of_mine", None)
    before = own_sources("network_of_mine:make", "digits")
    assert own_sources("network_of_mine:make", "digits") == before
    Path("widths.py").write_text("WIDTH = 24  # more")
    assert own_sources("network_of_mine:make", "digits") != before
    sys.modules.pop("widths")


def test_any_callable_may_make_a_network(harness: Harness) -> None:
    source = NETWORK.format(width=9) + "\nfrom functools import partial\nmade = partial(make)\n"
    Path("network_of_mine.py").write_text(source)
    sys.modules.pop("network_of_mine", None)
    assert set(own_sources("network_of_mine:made", "own.npz")) == {"model_source", "dataset_file"}
    assert own_sources("lenet", "digits", prior="auto") == own_sources("lenet", "digits", prior="none") == {}


def test_a_tokenizer_that_a_network_brings_counts(harness: Harness) -> None:
    Path("network_of_mine.py").write_text(NETWORK.format(width=16) + "\nmake.tokenizer = 'tokenizer.json'\n")
    sys.modules.pop("network_of_mine", None)
    found = []
    for content in ("one", "another", "one"):
        Path("tokenizer.json").write_text(content)
        found.append(own_sources("network_of_mine:make", "digits"))
    assert found[0] == found[2] != found[1]
    Path("network_of_mine.py").write_text(NETWORK.format(width=16) + "\nmake.tokenizer = 3\n")
    sys.modules.pop("network_of_mine", None)
    with pytest.raises(UsageError, match="a tokenizer that is no path"):
        own_sources("network_of_mine:make", "digits")


def test_a_file_of_public_data_counts(harness: Harness) -> None:
    Path("public.npz").write_bytes(b"one")
    one = own_sources("lenet", "digits", prior="public.npz")
    Path("public.npz").write_bytes(b"another")
    assert set(one) == {"prior_file"} and own_sources("lenet", "digits", prior="public.npz") != one
