"""Other packages' parts: faulty ones are left out, networks are tried, and what they are made of counts."""

import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.attacks import ATTACKS
from harness.base.errors import UsageError
from harness.base.registry import Registry
from harness.defenses import DEFENSES
from harness.models import MODELS, RowModel
from harness.own_sources import own_sources
from harness.presets import PRESETS

pytestmark = pytest.mark.usefixtures("coarse_losses")

Harness = Callable[..., Any]
Install = Callable[[str, str], None]
KINDS: dict[str, Registry[Any]] = {"attacks": ATTACKS, "defenses": DEFENSES, "models": MODELS}

DEFENSE = """
from harness.federation.defense import Defense
from harness.defenses.registry import DEFENSES, validated_defense

@DEFENSES.register({names})
@validated_defense
class Mine(Defense):
    strength: float{default}
"""
NETWORK = """
from torch import nn
from harness.models import MODELS

@MODELS.register("outside")
def outside(image_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), {layer}, nn.Linear(8, classes))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a module as a plugin of a kind, as an outside package's entry point."""
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for registry in KINDS.values():
        for name in ("_entries", "_aliases"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
        monkeypatch.setattr(registry, "_plugins_loaded", False)

    def package(kind: str, code: str) -> None:
        sys.modules.pop("plugin_of_mine", None)
        (place / "plugin_of_mine.py").write_text(code)
        metadata = place / "plugin_of_mine-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin_of_mine\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[harness.{kind}]\nmine = plugin_of_mine\n")

    yield package
    sys.modules.pop("plugin_of_mine", None)


FAULTY = {
    "fails": ("import absent_module", "ModuleNotFoundError"),
    "is no Python": ("def", "SyntaxError"),
    "ends the program": ("import sys; sys.exit(0)", "sys.exit(0)"),
    "takes a name": (DEFENSE.format(names="'none'", default=" = 1.0"), "'none' is registered twice"),
    "takes an alias": (DEFENSE.format(names="'mine', 'fed_cdp'", default=" = 1.0"), "'fed_cdp' is registered twice"),
    "hides behind an alias": (DEFENSE.format(names="'geyer'", default=" = 1.0"), "'geyer' is registered twice"),
    "has a hook of earlier versions": (
        DEFENSE.format(names="'mine'", default=" = 1.0")
        + "    def client_message(self, update, context): return update",
        "Mine.client_message() is no method of a defense any more; let operations() return",
    ),
    "has a name nobody can write": (DEFENSE.format(names="'a+b'", default=" = 1.0"), "letters, digits"),
}


@pytest.mark.parametrize(("code", "why"), FAULTY.values(), ids=FAULTY)
def test_a_faulty_plugin_is_named_and_left_out(harness: Harness, install: Install, code: str, why: str) -> None:
    install("defenses", code)
    finished = harness("list", "defenses")
    assert finished.code == 0 and "  fed_cdp" in finished.out and "  mine" not in finished.out
    assert finished.err.count("\n") == 1 and "plugin 'mine' (plugin_of_mine) is left out" in finished.err
    assert why in finished.err
    assert DEFENSES.resolve("fed_cdp") == "fed_cdp" and DEFENSES.resolve("geyer") == "global_dp"


def test_a_folder_of_its_name_is_not_taken_for_it(
    harness: Harness, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a project that is installed to be edited, and lies in the current folder."""
    install("defenses", DEFENSE.format(names="'mine'", default=" = 1.0"))
    project = tmp_path / "plugin_of_mine" / "plugin_of_mine.py"
    project.parent.mkdir()
    (tmp_path / "site-packages" / project.name).rename(project)
    editable = SimpleNamespace(
        find_spec=lambda name, path=None, target=None: spec_from_file_location(name, project)
        if name == project.stem else None
    )  # fmt: skip
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, editable])
    before = list(sys.path)
    finished = harness("list", "defenses")
    assert "  mine" in finished.out and finished.err == "" and set(before) <= set(sys.path)


def test_a_defense_that_demands_a_setting_stands_beside_the_others(harness: Harness, install: Install) -> None:
    install("defenses", DEFENSE.format(names="'demanding'", default=""))
    finished = harness("list", "defenses")
    assert finished.code == 0 and "  demanding" in finished.out and "strength=required" in finished.out
    assert harness("evaluate", "--defense", "demanding").err.count("strength") == 1
    grids = PRESETS["nightly"][1]()
    assert not any("demanding" in grid["defense"] for grid in grids) and "fed_cdp" in grids[0]["defense"]


def test_a_plugins_output_is_not_part_of_the_document(harness: Harness, install: Install) -> None:
    install("defenses", "print('hello')\n" + DEFENSE.format(names="'talking'", default=" = 1.0"))
    finished = harness("list", "--json")
    assert "talking" in [row["name"] for row in json.loads(finished.out)["defenses"]] and "hello" in finished.err


def test_a_network_of_another_package_is_tried_like_an_own_one(install: Install) -> None:
    install("models", NETWORK.format(layer="nn.BatchNorm1d(8, track_running_stats=False).eval()"))
    with pytest.raises(UsageError, match="fails on images"):
        RowModel("outside", (1, 8, 8), 4)


@pytest.mark.parametrize("kind", ["defense", "model"])
def test_what_a_plugin_is_made_of_is_part_of_a_result(install: Install, kind: str) -> None:
    def source(version: str) -> dict[str, str]:
        MODELS._entries.pop("outside", None)
        DEFENSES._entries.pop("mine", None)
        code = {"model": NETWORK.format(layer="nn.Sigmoid()"), "defense": DEFENSE.format(names="'mine'", default="=1.")}
        install(f"{kind}s", code[kind] + version)
        KINDS[f"{kind}s"]._plugins_loaded = False
        if kind == "model":
            return own_sources("outside", "digits")
        return own_sources("lenet", "digits", "pruning+mine")

    before = source("")
    assert set(before) == {f"{kind}_source"} and source("") == before and source("# edited") != before


def test_a_newer_version_makes_a_cell_and_a_round_again(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ("--dataset", "digits", "--model", "mlp", "--attack-arg", "max_iterations=1", "--victims", "2", "--resume")
    evaluate = ("evaluate", "--defense", "none", "--surface", "2", "--no-pictures", *tiny)
    train = (
        "train", "--dataset", "digits", "--clients", "2", "--clients-per-round", "2", "--local-steps", "1",
        "--batch-size", "2", "--rounds", "1", "--model", "mlp", "--resume",
    )  # fmt: skip
    assert harness(*evaluate).code == harness(*train).code == 0
    stored = {path.name for kind in ("*.npz", "cells/*.json") for path in Path("runs").rglob(kind)}
    for module in ("evaluation.run", "evaluation.attacking", "training.clients"):
        monkeypatch.setattr(f"harness.{module}.__version__", "99")
    assert harness(*evaluate).code == 0
    now = {path.name for kind in ("*.npz", "cells/*.json") for path in Path("runs").rglob(kind)}
    assert len(now) == 2 * len(stored)
    finished = harness(*train)
    assert finished.code == 2 and "another version of the harness" in finished.err
