"""The guides' attack, defense and dataset, exactly as printed, work as an outside package; and so do their tests."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.attacks import ATTACKS, run_attack
from harness.base.registry import Registry
from harness.base.vectors import Layout
from harness.cli import run
from harness.datasets import DATASETS
from harness.defenses import DEFENSES, Cohort, RoundContext
from harness.observation import Noise
from harness.results import CellResult, read_results
from harness.testing import assert_attack_contract, digits, digits_prior, undefended

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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

    @property
    def module(self) -> str:
        """What its entry point names, the only one."""
        ((group, points),) = tomllib.loads(self.block("toml"))["project"]["entry-points"].items()
        assert group == self.registry.group and list(points) == [self.name]
        return points[self.name]


ATTACK = Guide(
    "adding-an-attack.md", ATTACKS, "smooth_matching",
    ("--defense", "none", "--attack", "smooth_matching", "--attack-arg", "max_iterations=150"),
)  # fmt: skip
DEFENSE = Guide(
    "defense-hooks.md", DEFENSES, "top_share",
    ("--defense", "top_share", "--attack", "cpl", "--defense-arg", "keep=0.5", "--attack-arg", "max_iterations=10"),
)  # fmt: skip
DATASET = Guide(
    "adding-a-dataset.md", DATASETS, "stripes",
    ("--dataset", "stripes", "--defense", "none", "--attack", "cpl", "--attack-arg", "max_iterations=15"),
)  # fmt: skip
TESTED = pytest.mark.parametrize("guide", [
    pytest.param(ATTACK, marks=pytest.mark.slow), DEFENSE,
], ids=lambda guide: guide.name)  # fmt: skip
GUIDES = pytest.mark.parametrize("guide", [ATTACK, DEFENSE, DATASET], ids=lambda guide: guide.name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Guide], Path]:
    """Makes the folder of a guide's package, once."""

    made: dict[str, Path] = {}

    def make(guide: Guide) -> Path:
        if guide.name in made:
            return made[guide.name]
        package, _, stem = guide.module.partition(".")
        project = tmp_path_factory.mktemp(package)
        (project / package).mkdir()
        (project / package / "__init__.py").touch()
        (project / package / f"{stem}.py").write_text(guide.block("python"))
        (project / "pyproject.toml").write_text(guide.block("toml"))
        build = "from setuptools.build_meta import prepare_metadata_for_build_wheel as build; build('.')"
        subprocess.run([sys.executable, "-c", build], cwd=project, check=True, capture_output=True)
        return made.setdefault(guide.name, project)

    return make


@pytest.fixture
def installed(
    guide: Guide, built: Callable[[Guide], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of that folder, on the path with the entry points that its printed pyproject.toml makes."""
    package = guide.module.partition(".")[0]
    project = Path(shutil.copytree(built(guide), tmp_path / "project"))
    monkeypatch.syspath_prepend(project)
    monkeypatch.setattr(guide.registry, "_entries", dict(guide.registry._entries))
    monkeypatch.setattr(guide.registry, "_aliases", dict(guide.registry._aliases))
    monkeypatch.setattr(guide.registry, "_plugins_loaded", False)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "no-data"))
    importlib.invalidate_caches()
    yield project
    for loaded in (guide.module, package):
        sys.modules.pop(loaded, None)


@GUIDES
@pytest.mark.usefixtures("installed")
def test_it_is_found_by_name_and_listed(guide: Guide, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", f"{guide.registry.kind}s"]) == 0
    assert f"  {guide.name}" in capsys.readouterr().out


@GUIDES
@pytest.mark.usefixtures("installed")
def test_it_runs_from_the_command_line(guide: Guide, tmp_path: Path) -> None:
    tiny = ["--victims", "3", "--surface", "1", "--no-pictures", "--out", str(tmp_path / "runs")]
    dataset = [] if guide is DATASET else ["--dataset", "digits"]
    assert run(["evaluate", *guide.options, *dataset, *tiny]) == 0
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


@TESTED
@pytest.mark.slow
def test_its_test_lines_pass(guide: Guide, installed: Path) -> None:
    """The one for a package of one's own, and the one for this repository's table."""
    kind = f"{guide.registry.kind}s"
    (installed / "test_own.py").write_text(guide.block("py"))
    table = {"attacks": "test_attacks.py", "defenses": "test_contract.py"}[kind]
    assert f"tests/{kind}/{table}" in (DOCS / guide.file).read_text()
    for file in {table, "conftest.py"} & {path.name for path in (ROOT / "tests" / kind).iterdir()}:
        (installed / file).write_text((ROOT / "tests" / kind / file).read_text())
    text, changed = re.subn(r"^TABLE.*= [\[{]$", rf"\g<0>\n    {guide.block('text')}", (installed / table).read_text(),
                            flags=re.MULTILINE)  # fmt: skip
    assert changed == 1
    (installed / table).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers",
         "-o", "markers=slow", ".", "-k", f"test_own or {guide.name} or every"],
        cwd=installed, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(installed)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 5


@GUIDES
def test_the_code_is_short_and_the_guide_names_real_files(guide: Guide) -> None:
    assert len(guide.block("python").splitlines()) < 60
    text = (DOCS / guide.file).read_text()
    named = set(re.findall(r"`((?:attacks|defenses|datasets|harness|tests)/[\w/.]*)`", text))
    named -= {f"{guide.registry.kind}s/{guide.name}.py"}
    assert named and all((ROOT / path).exists() for path in named), named


def test_the_informed_attack_keeps_the_contract_and_beats_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's second attack, exactly as printed: short, and of use where noise is known."""
    block = ATTACK.block("python3")
    assert len(block.splitlines()) < 60
    monkeypatch.setattr(ATTACKS, "_entries", dict(ATTACKS._entries))
    monkeypatch.setattr(ATTACKS, "_aliases", dict(ATTACKS._aliases))
    exec(compile(block, "ridge_matching.py", "exec"), {"__name__": __name__})
    ridge = ATTACKS["ridge_matching"]
    assert_attack_contract(ridge(max_iterations=2))
    images, labels = digits(5)
    clean = undefended(images, labels, model="mlp", prior=digits_prior())
    noise = 0.01 * torch.randn(clean.target.shape, generator=torch.Generator().manual_seed(0))
    noisy = replace(clean, target=clean.target + noise, noise=Noise("gaussian", 0.01))
    plain = noisy.known_to("plain")
    tried = [
        (ridge(), clean),
        (ridge(), noisy),
        (ATTACKS["blind"](), noisy),
        (ATTACKS["cpl"](max_iterations=20), plain),
    ]
    exact, own, guess, other = (_rmse(run_attack(attack, seen).images, images) for attack, seen in tried)
    assert exact < 0.02 and own < 0.8 * guess and own < 0.8 * other


def _rmse(made: torch.Tensor, truth: torch.Tensor) -> float:
    return float((made.clamp(0, 1) - truth).square().flatten(1).mean(1).sqrt().mean())
