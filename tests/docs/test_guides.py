"""The guides' attack and defense, exactly as printed, work as a file of one's own and as an outside package."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks import ATTACKS
from harness.cli import run
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.layout import Layout
from harness.registry import Registry
from harness.results import CellResult, read_results

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True)
class Guide:
    """A guide, what it adds, and a tiny run that uses it."""

    file: str
    registry: Registry[Any]
    name: str
    options: tuple[str, ...]

    def block(self, language: str) -> str:
        """The only code block of a language."""
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / self.file).read_text(), re.DOTALL | re.MULTILINE)
        return block


ATTACK = Guide(
    "adding-an-attack.md", ATTACKS, "smooth_matching",
    ("--defense", "none", "--attack", "smooth_matching", "--attack-arg", "max_iterations=150"),
)  # fmt: skip
DEFENSE = Guide(
    "adding-a-defense.md", DEFENSES, "top_share",
    ("--defense", "top_share", "--attack", "cpl", "--defense-arg", "keep=0.5", "--attack-arg", "max_iterations=10"),
)  # fmt: skip
GUIDES = pytest.mark.parametrize("guide", [ATTACK, DEFENSE], ids=lambda guide: guide.name)


@pytest.fixture
def installed(guide: Guide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guide's code as an installed outside package, found by the entry point the guide prints."""
    groups = tomllib.loads(guide.block("toml"))["project"]["entry-points"]
    (group,) = groups
    assert group == guide.registry.group
    ((name, module),) = groups[group].items()
    package, _, stem = module.partition(".")
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / f"{stem}.py").write_text(guide.block("python"))
    metadata = tmp_path / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(guide.registry, "_entries", dict(guide.registry._entries))
    monkeypatch.setattr(guide.registry, "_aliases", dict(guide.registry._aliases))
    monkeypatch.setattr(guide.registry, "_plugins_loaded", False)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "no-data"))
    importlib.invalidate_caches()
    yield
    for loaded in (module, package):
        sys.modules.pop(loaded, None)


@GUIDES
@pytest.mark.usefixtures("installed")
def test_it_is_found_by_name_and_listed(guide: Guide, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", f"{guide.registry.kind}s"]) == 0
    assert f"  {guide.name}" in capsys.readouterr().out


@GUIDES
@pytest.mark.usefixtures("installed")
def test_it_runs_from_the_command_line(guide: Guide, tmp_path: Path) -> None:
    tiny = ("--dataset", "digits", "--victims", "3", "--surface", "1", "--no-pictures", "--out", str(tmp_path / "runs"))
    assert run(["evaluate", *guide.options, *tiny]) == 0
    (cell,) = [cell for cell in read_results(tmp_path / "runs").cells if cell.role == "cell"]
    assert getattr(cell, guide.registry.kind) == guide.name
    # Undefended, and half of an update, every image comes back.
    assert _reconstructed(cell) == 3 and cell.verdict == "leaks"


def _reconstructed(cell: CellResult) -> int:
    return cell.asr["strict"].successes


@pytest.mark.parametrize("guide", [DEFENSE], ids=["top_share"])
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("noise", "scale", "spread"), [(0.0, 1.0, 0.0), (2.0, 1.0, 2.0), (2.0, 0.0, 0.0)])
def test_the_defense_sends_the_largest_share(guide: Guide, noise: float, scale: float, spread: float) -> None:
    layout = Layout(("weight",), ((4000,),))
    context = RoundContext(0, 0, 0.1, Cohort(), layout, ((0, 0), (0, 1)), scale)
    update = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = guide.registry["top_share"](keep=0.25, noise=noise).client_message(update, context)
    kept = sent != 0
    assert kept.sum(1).tolist() == [1000, 1000]
    for row, mask in zip(update.abs(), kept, strict=True):
        assert row[mask].min() > row[~mask].max()
    assert abs((sent - update)[kept].std().item() - spread) <= 0.1 * spread


@GUIDES
def test_the_code_is_short_and_the_guide_names_real_files(guide: Guide) -> None:
    assert len(guide.block("python").splitlines()) < 60
    text = (DOCS / guide.file).read_text()
    named = set(re.findall(r"`((?:attacks|defenses|tests)/[\w/.]*)`", text)) - {f"attacks/{ATTACK.name}.py"}
    named -= {f"defenses/{DEFENSE.name}.py"}
    assert named and all((DOCS.parent / path).exists() for path in named), named
