"""Every example runs and says what its text says; those on frameworks are run by tests/judging."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.defenses import DEFENSES
from harness.testing import assert_defense_contract

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "first_look.ipynb"


def printed(name: str, folder: Path) -> str:
    program = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def test_every_example_is_in_the_list_and_nothing_else() -> None:
    listed = re.findall(r"\]\(([\w./]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    folders = {path.name for path in EXAMPLES.iterdir() if path.name != "README.md"} - {"__pycache__", "runs"}
    assert {name.split("/")[0] for name in listed if not name.startswith("..")} == folders


def test_the_new_defense_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFENSES, "_entries", dict(DEFENSES._entries))
    found = importlib.util.spec_from_file_location("new_defense", EXAMPLES / "new_defense.py")
    assert found and found.loader
    monkeypatch.setitem(sys.modules, "new_defense", module := importlib.util.module_from_spec(found))
    found.loader.exec_module(module)
    assert_defense_contract(module.Coarse())
    assert_defense_contract(module.Coarse(step=1e-5))


def test_the_workflow_is_the_guides() -> None:
    guide = (EXAMPLES.parent / "docs" / "gate-in-your-repository.md").read_text(encoding="utf-8")
    assert f"```yaml\n{(EXAMPLES / 'gate' / 'resilience.yml').read_text(encoding='utf-8')}```" in guide


@pytest.mark.slow
def test_the_new_defense_gets_its_verdict(tmp_path: Path) -> None:
    lines = printed("new_defense.py", tmp_path).splitlines()
    assert len(lines) == 4 and all(" leaks: " in line for line in lines)
    assert lines[0].endswith("64 of 64 images come back") and lines[2].endswith(" 0 of 64 images come back")


@pytest.mark.slow
def test_images_come_back_through_the_own_resnet(tmp_path: Path) -> None:
    undefended, defended = printed("own_resnet.py", tmp_path).splitlines()
    assert undefended.startswith("none: leaks") and defended == "fed_cdp: inconclusive, 0 of 12 images come back"


def said(notebook: dict) -> str:
    made = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return "".join("".join(output.get("text", ())) for output in made if output.get("name") == "stdout")


def test_the_notebook_is_kept_with_small_outputs() -> None:
    assert NOTEBOOK.stat().st_size < 100_000
    assert "resilient" in said(json.loads(NOTEBOOK.read_text(encoding="utf-8")))


def test_the_cells_on_results_give_the_verdicts_that_they_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kernel of its own, which takes longer to start than they to run."""
    monkeypatch.chdir(tmp_path)
    notebook, names = json.loads((EXAMPLES / "results.ipynb").read_text(encoding="utf-8")), dict[str, Any]()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert {one["verdict"] for one in names["run"].rows} == set(verdicts_of(notebook))
    assert {one.name for one in tmp_path.iterdir()} == {"runs", "report.html"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_network", "results"])
def test_a_small_notebook_runs_and_says_what_it_said(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    kept = verdicts_of(notebook)
    assert set(kept) == {"leaks", "undecided" if name == "own_network" else "inconclusive"}
    if name == "own_network":
        assert len([line for line in notebook.cells[1].source.splitlines() if line.strip()]) <= 10
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert verdicts_of(notebook) == kept
    assert {one.name for one in tmp_path.iterdir()} == (set() if name == "own_network" else {"runs", "report.html"})


def verdicts_of(notebook: dict) -> list[str]:
    """The verdicts that its outputs show, in their order."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    shown = " ".join(json.dumps(output) for output in outputs if output.get("name") != "stderr")
    return re.findall(r"\b(leaks|inconclusive|undecided|resilient)\b", shown)


@pytest.mark.slow
def test_the_notebook_runs_and_says_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kept = said(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    # p-values, and how many images come back behind weak noise, are the processor's.
    verdicts = re.compile(r"^(none|fed_cdp.*?) +(cpl|map) +(\w+)", re.MULTILINE)
    assert len(verdicts.findall(kept)) == 6
    assert verdicts.findall(said(notebook)) == verdicts.findall(kept)
